"""Make what a student's batches are drawn by: the sampler of its table, the order of mined batches, the guide."""

from __future__ import annotations

import logging

from aoq.pipeline.batches.lists import meeting_lists
from aoq.pipeline.batches.order import COMMUNITY, KeptOrder, MinedBatches
from aoq.pipeline.data.folder import Split
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.produce.drawing import describe_draws, ranks_of
from aoq.pipeline.search.positives import positive_pairs_of
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.screens.view import View
from aoq.pipeline.tables.table import NegativeTable
from aoq.pipeline.training.batches import Guide
from aoq.pipeline.training.drawable import GapWeights, drawable
from aoq.pipeline.training.sampler import WHOLE, Sampler

logger = logging.getLogger(__name__)


def make_guide(chain: Chain) -> Guide | None:
    """Make the guide from the teacher's vectors, if [sampling] has a margin for it."""
    margin = chain.experiment.sampling.guide_margin
    return None if margin is None else Guide(EmbeddingStore.open(chain["embeddings"].opened()), margin)


def make_orders(chain: Chain, split: Split, table: NegativeTable, view: View | None) -> KeptOrder | None:
    """Make the mined batches of each epoch, if [sampling] asks for them."""
    sampling = chain.experiment.sampling
    if sampling.batches is None:
        return None
    pairs, true = positive_pairs_of(split.image_of), positive_pairs_of(split.image_of, split.identity)
    lists = meeting_lists(table, pairs, true=true, view=view, ranks=sampling.batch_ranks)
    batch_size = chain.experiment.student.batch_size
    mined = MinedBatches(lists, batch_size, chain.experiment.seed, sampling.community or COMMUNITY)
    return KeptOrder(mined.order)


def make_sampler(chain: Chain, split: Split, table: NegativeTable, view: View | None) -> Sampler:
    """Make the sampler of the table, narrowed by [sampling] and judged by [screen]."""
    screen, sampling = chain.experiment.screen, chain.experiment.sampling
    sizes = (split.image_count, split.caption_count)
    depths = {direction: table[direction].h for direction in DIRECTIONS}
    for sentence in describe_draws(chain, sizes, depths, (table, view)):
        logger.info("%s", sentence)
    suspected, gaps = screen.suspected if screen else "drop", None
    if sampling.gap is not None and sampling.sharpness is not None:
        gaps = GapWeights(sampling.gap, sampling.sharpness)
    lists = {}
    for direction in DIRECTIONS:
        judged = view[direction] if view else None
        ranks = ranks_of(chain, sizes, direction, depths[direction], judged)
        lists[direction] = drawable(
            direction,
            table[direction],
            h=ranks.stop,
            after=ranks.start,
            judged=judged,
            suspected=suspected,
            gaps=gaps,
        )
        if (probability := lists[direction].match_probability) is not None:
            softer = chain.experiment.student.loss.softens
            logger.info("%s: %s, with p %.3f on average", direction, softer, probability.mean())
    return Sampler(
        lists["i2t"],
        lists["t2i"],
        split.image_of,
        strategy=sampling.strategy,
        resample=sampling.resample,
        windows=sampling.windows or WHOLE,
        identity=split.identity,
    )
