"""Forecast the draws of a round on a table: ranks, their hardness, and the count that may be true matches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.losses import LogitLoss
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.produce.data import fingerprint
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.screens.view import Judged, View, read_view
from aoq.pipeline.tables.table import NegativeTable, read_table
from aoq.pipeline.training.drawn_ranks import FEWEST, HARDER, WHAT, DrawnRanks, drawn_ranks, expected_rank

Sizes = tuple[int, int]
"""Counts of images and captions."""


def open_table(chain: Chain) -> tuple[NegativeTable, View | None]:
    """Open the table that the student trains on, and the screen's view of it, if there is a screen."""
    owner = chain.owner("hard_negatives")  # of the same training data, and made when its table is
    table = read_table(owner["hard_negatives"].opened() / "table", dataset=fingerprint(owner))
    view = read_view(chain["screen"].opened() / "view", table.manifest) if chain.experiment.screen else None
    return table, view


def ranks_of(chain: Chain, sizes: Sizes, direction: Direction, depth: int, judged: Judged | None) -> DrawnRanks:
    """Ranks that the student draws from lists of `depth`, after the screen."""
    screen, (images, captions) = chain.experiment.screen, sizes
    left = None if screen is None or judged is None else judged.weights(screen.suspected) > 0
    return drawn_ranks(
        chain.experiment.sampling,
        direction,
        depth=depth,
        candidates=captions if direction == "i2t" else images,
        batch=chain.experiment.student.batch_size,
        drawable=left,
    )


def cautions(experiment: Experiment) -> Iterator[str]:
    """Warn before training of choices that gained nothing when measured."""
    loss = experiment.student.loss
    if isinstance(loss, LogitLoss):
        if experiment.sampling.hardness is not None:
            yield (
                f"loss {loss.name!r} on the hardest ranks alone ended 9 to 13 rsum below its control on Flickr8k, on "
                "whole lists level with it: leave [sampling] hardness out, and train the control too"
            )
    elif experiment.model.makes_embeddings:
        yield (
            f"{experiment.model.name!r} compares one vector with one: when such students were trained to their best on "
            "Flickr8k, VSRN ended 6 rsum above its control, VSE++ level, VSE∞ 4 below; train the control too"
        )


def forecast(chain: Chain, sizes: Sizes, depths: Mapping[Direction, int]) -> Iterator[str]:
    """Describe the offline negatives' hardness, one sentence per direction, before the round begins; then cautions.

    `depths` are the lengths of the lists that will be mined. Once the table is made, it counts those that the screen
    suspects; without a screen, those that score at least as high as the anchor's lowest-scoring positive.
    """
    yield from _by_direction(chain, sizes, depths)
    yield from cautions(chain.experiment)


def _by_direction(chain: Chain, sizes: Sizes, depths: Mapping[Direction, int]) -> Iterator[str]:
    batch = chain.experiment.student.batch_size
    if sizes[0] < batch:
        yield f"{sizes[0]:,} images are fewer than a batch of {batch}: its own negatives are all there are"
    table, view = None, None
    if chain["hard_negatives"].exists() and ("screen" not in chain.stages or chain["screen"].exists()):
        table, view = open_table(chain)
    for direction in DIRECTIONS:
        depth = depths[direction] if table is None else table[direction].h
        judged = view[direction] if view else None
        ranks = ranks_of(chain, sizes, direction, depth, judged)
        doubts = "" if table is None else f"; {_doubt(table[direction], judged, ranks)}"
        yield f"{ranks}{doubts}"
        if ranks.harder < 1:
            few = max(FEWEST, expected_rank(ranks.candidates, batch, HARDER))
            harder = f'draw from the first {few} ([sampling] hardness = "auto"), or ' if few < ranks.stop else ""
            yield (
                f"about {1 - ranks.harder:.0%} of these {WHAT[direction]} are easier than the hardest in-batch "
                f"negative, and will not help: {harder}train with a smaller batch"
            )


def _doubt(lists: NegativeLists, judged: Judged | None, ranks: DrawnRanks) -> str:
    drawn = slice(ranks.start, ranks.stop)
    listed = lists.negative_ids[:, drawn] >= 0
    if judged is not None:
        doubtful, what = judged.flags[:, drawn] != 0, "are left out or suspected by the screen"
    else:
        doubtful = lists.scores[:, drawn] >= lists.positive_score[:, None]
        what = "score at least as high as the anchor's lowest-scoring positive"
    return f"{(doubtful & listed).sum() / max(1, listed.sum()):.1%} of these {what}"
