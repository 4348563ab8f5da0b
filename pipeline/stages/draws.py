"""What draws a student's batches from its table, and sentences about how hard its draws are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from aoq.pipeline.batches.lists import meeting_lists
from aoq.pipeline.batches.order import COMMUNITY, MinedBatches
from aoq.pipeline.build import planned_file
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.data.folder import Split
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import positive_pairs_of
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.splits import fingerprint
from aoq.pipeline.tables.pairs import rows_by_id
from aoq.pipeline.tables.screens.view import Judged, View, read_view
from aoq.pipeline.tables.table import NegativeTable, read_table
from aoq.pipeline.training.batches import Guide, score_all
from aoq.pipeline.training.drawable import DrawnRanks, drawable, drawn_ranks
from aoq.pipeline.training.sampler import WHOLE_LISTS, Sampler
from aoq.pipeline.vectors import open_vectors

logger = logging.getLogger(__name__)

TableAndView = tuple[NegativeTable, View | None]
PROBED, CONSTANT = 128, 1e-5
"""Rows of a batch on which a teacher is tried, and the difference of scores below which it has collapsed."""
MANY = 1 / 3
"""If the teacher scores this fraction of negatives at least as high as the anchor's own pair, it tells no matches."""


def open_student_table(chain: Chain) -> TableAndView:
    """Open the table that the student trains on, and the screen's view of it, if there is a screen."""
    owner = chain.owner("hard_negatives")  # has the same training data, and exists when its table does
    table = read_table(owner["hard_negatives"].opened() / "table", dataset=fingerprint(owner))
    view = read_view(chain["screen"].opened() / "view", table.manifest) if chain.experiment.screen else None
    return table, view


def make_guide(chain: Chain) -> Guide | None:
    """Make the guide from the teacher's vectors, if [sampling] has a margin for it."""
    margin = chain.experiment.sampling.guide_margin
    return None if margin is None else (EmbeddingStore.open(chain["embeddings"].opened()), margin)


def make_teachers(chain: Chain, stage: str, training: Training, split: Split, folder: Path) -> list[EmbeddingStore]:
    """Open the teachers of a training's batches, if it has any; `folder` keeps copies of vectors of files."""
    distillation = training.distillation
    if distillation is None or not distillation.scores_batch:
        return []
    stores = [EmbeddingStore.open(member.artifact.opened()) for member in chain.distilled[stage]]
    for number, files in enumerate(distillation.files):
        where, sides = f"[{stage}.distillation] teacher {number + 1} of files", {}
        rows = {"images": split.image_count, "captions": split.caption_count}
        folder.mkdir(parents=True, exist_ok=True)
        planned = chain[stage].ingredients["training"]["distillation"]["files"][number]
        for name, (path, _) in files.parts.items():
            planned_file(chain.data_root, path, planned[name][0])
        for side, count in rows.items():
            file = str(chain.data_root / getattr(files, side))
            sides[side] = open_vectors(file, folder / f"teacher{number}_{side}.npy", normalise=True).rows
            if side == "images" and files.image_ids is not None:
                sides[side] = sides[side][_rows_of_ids(chain.data_root / files.image_ids, split, where)]
            if len(sides[side]) != count:
                raise ValueError(f"{where}: {file} has {len(sides[side])} vectors, and the split has {count} {side}.")
        if (sizes := [vectors.shape[1] for vectors in sides.values()])[0] != sizes[1]:
            raise ValueError(f"{where}: images have {sizes[0]} dimensions and captions {sizes[1]}; give one model's.")
        stores.append(EmbeddingStore(**sides))
    rng = np.random.default_rng(0)
    probed = rng.integers(0, (split.image_count, split.caption_count), (PROBED, 2))
    for number, scores in enumerate(score_all(store, probed) for store in stores):
        if float(scores.max() - scores.min()) < CONSTANT:
            raise ValueError(
                f"[{stage}.distillation] teacher {number + 1} of {len(stores)} gives all pairs nearly the same score, "
                "so there is nothing to learn from it; name another."
            )
    if training.augment:
        logger.info("the teachers' embeddings are of the photographs as they are, without `augment`")
    return stores


def _rows_of_ids(file: Path, split: Split, where: str) -> list[int]:
    """Find the vectors of the split's images by the ids in a file, one a line."""
    rows = rows_by_id(read_lines(file))
    if absent := [name for name in split.ids if name not in rows]:
        raise ValueError(f"{where}: {file} lacks {len(absent)} of the split's images, the first is {absent[0]!r}.")
    return [rows[name] for name in split.ids]


def mine_batches(chain: Chain, split: Split, table: NegativeTable, view: View | None) -> MinedBatches | None:
    """Make the mined batches of each epoch, if [sampling] asks for them."""
    sampling = chain.experiment.sampling
    if sampling.batches is None:
        return None
    pairs, true = positive_pairs_of(split.image_of), positive_pairs_of(split.image_of, split.identity)
    lists = meeting_lists(table, pairs, true=true, view=view, ranks=sampling.batch_ranks)
    batch_size = chain.experiment.student.batch_size
    return MinedBatches(lists, batch_size, chain.experiment.seed, sampling.community or COMMUNITY)


def make_sampler(chain: Chain, split: Split, table: NegativeTable, view: View | None) -> Sampler:
    """Make the sampler of the table, narrowed by [sampling] and judged by [screen]."""
    screen, sampling, distillation = (
        chain.experiment.screen,
        chain.experiment.sampling,
        chain.experiment.student.distillation,
    )
    sizes = (split.image_count, split.caption_count)
    for sentence in _describe_draws(chain, sizes, (table, view), {}):
        logger.info("%s", sentence)
    suspected, gaps = screen.suspected if screen else "drop", None
    if sampling.gap is not None and sampling.sharpness is not None:
        gaps = (sampling.gap, sampling.sharpness)
    lists = {}
    for direction in DIRECTIONS:
        judged, listed = view[direction] if view else None, table[direction]
        ranks = _ranks(chain, sizes, direction, listed.h, judged)
        drawn = lists[direction] = drawable(
            direction, listed, h=ranks.stop, after=ranks.start, judged=judged, suspected=suspected, gaps=gaps
        )
        shortest = int((drawn.ids >= 0).sum(axis=1).min())
        if distillation is not None and shortest < distillation.listed:
            sentence = "%s: the shortest list has %d negatives, and distillation takes %d: short lists have fewer terms"
            logger.info(sentence, direction, shortest, distillation.listed)
        if (probability := drawn.match_probability) is not None:
            softer = chain.experiment.student.loss.softens
            logger.info("%s: %s, with p %.3f on average", direction, softer, probability.mean())
    return Sampler(
        lists["i2t"],
        lists["t2i"],
        split.image_of,
        strategy=sampling.strategy,
        resample=sampling.resample,
        windows=sampling.windows or WHOLE_LISTS,
        identity=split.identity,
    )


def _ranks(chain: Chain, sizes: tuple[int, int], direction: Direction, depth: int, judged: Judged | None) -> DrawnRanks:
    """Return the ranks that the student draws from lists of `depth`, after the screen."""
    screen, (images, captions) = chain.experiment.screen, sizes
    return drawn_ranks(
        chain.experiment.sampling,
        direction,
        depth=depth,
        candidates=captions if direction == "i2t" else images,
        batch=chain.experiment.student.batch_size,
        left=None if screen is None or judged is None else judged.weights(screen.suspected) > 0,
    )


def forecast(chain: Chain, sizes: tuple[int, int], depths: Mapping[Direction, int]) -> Iterator[str]:
    """Describe the draws: from the table or, before it exists, from the lengths of the lists that will be mined."""
    is_there = chain["hard_negatives"].exists() and ("screen" not in chain.stages or chain["screen"].exists())
    return _describe_draws(chain, sizes, open_student_table(chain) if is_there else None, depths)


def _describe_draws(
    chain: Chain, sizes: tuple[int, int], opened: TableAndView | None, depths: Mapping[Direction, int]
) -> Iterator[str]:
    """Describe the offline negatives' hardness, one sentence per direction.

    With the table, each sentence has the fraction that the screen suspects or that the teacher scores at least as high
    as the anchor's lowest own pair.
    """
    if sizes[0] < (batch := chain.experiment.student.batch_size):
        yield f"{sizes[0]:,} images are fewer than a batch of {batch}, which holds most of them"
    for direction in DIRECTIONS:
        if opened is None:
            yield str(_ranks(chain, sizes, direction, depths[direction], None))
            continue
        lists, judged = opened[0][direction], opened[1][direction] if opened[1] else None
        ranks = _ranks(chain, sizes, direction, lists.h, judged)
        yield f"{ranks}; {_describe_doubts(chain.experiment, lists, judged, ranks)}"


def _describe_doubts(experiment: Experiment, lists: NegativeLists, judged: Judged | None, ranks: DrawnRanks) -> str:
    """Say how many of the drawn negatives the screen doubts, or without a screen the teacher."""
    drawn = slice(ranks.start, ranks.stop)
    listed = lists.negative_ids[:, drawn] >= 0
    if judged is None:
        share = _fraction(lists.scores[:, drawn] >= lists.positive_score[:, None], listed)
        sentence = f"the teacher scores {share:.1%} of them at least as high as the anchor's lowest own pair"
        return f"{sentence}: it is too weak to tell which match" if share > MANY else sentence
    sentence = f"{_fraction(judged.flags[:, drawn] != 0, listed):.1%} of them are left out or suspected by the screen"
    if experiment.screen is None or experiment.screen.match_prior is None:
        return sentence
    return f"{sentence}, whose suspicion is {judged.suspicion[:, drawn][listed].mean():.1%} on average"


def _fraction(chosen: Bool[np.ndarray, "anchors ranks"], listed: Bool[np.ndarray, "anchors ranks"]) -> float:
    return float((chosen & listed).sum() / max(1, listed.sum()))
