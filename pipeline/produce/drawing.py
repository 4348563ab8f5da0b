"""Describe the draws of a round on a table before it begins: ranks, their hardness, and how many may match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.losses import LogitLoss
from aoq.pipeline.config.sampling import Sampling
from aoq.pipeline.data.demo import is_true, read_scenes
from aoq.pipeline.data.demo_scenes import Scenes
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.produce.data import fingerprint, open_true_train_split
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.screens.view import Judged, View, read_view
from aoq.pipeline.tables.table import NegativeTable, read_table
from aoq.pipeline.training.drawn_ranks import WHAT, DrawnRanks, drawn_ranks

Sizes = tuple[int, int]
"""Counts of images and captions."""
Opened = tuple[NegativeTable, View | None]
MANY = 1 / 3
"""Fraction of negatives at least as high as the anchor's own pair from which on the teacher tells no matches."""
ENOUGH = 4000
"""Photographs from which on models that compare words with regions gained from offline negatives."""
CHECKED = 2000
"""Negatives of a direction of which a generated world is asked whether they match."""


def open_table(chain: Chain) -> Opened:
    """Open the table that the student trains on, and the screen's view of it, if there is a screen."""
    owner = chain.owner("hard_negatives")  # of the same training data, and made when its table is
    table = read_table(owner["hard_negatives"].opened() / "table", dataset=fingerprint(owner))
    view = read_view(chain["screen"].opened() / "view", table.manifest) if chain.experiment.screen else None
    return table, view


def ranks_of(
    chain: Chain,
    sizes: Sizes,
    direction: Direction,
    depth: int,
    judged: Judged | None,
    sampling: Sampling | None = None,
) -> DrawnRanks:
    """Ranks that the student draws from lists of `depth`, after the screen; `sampling` replaces its own."""
    screen, (images, captions) = chain.experiment.screen, sizes
    left = None if screen is None or judged is None else judged.weights(screen.suspected) > 0
    return drawn_ranks(
        sampling or chain.experiment.sampling,
        direction,
        depth=depth,
        candidates=captions if direction == "i2t" else images,
        batch=chain.experiment.student.batch_size,
        drawable=left,
    )


def cautions(experiment: Experiment, images: int) -> Iterator[str]:
    """Warn before training on `images` images of what gained nothing when measured."""
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
            "Flickr8k, VSRN ended 6 rsum above its control, VSE++ level, VSE∞ 4 below, and 7 below on the hardest "
            'ranks alone (hardness = "auto"); train the control too'
        )
    elif images < ENOUGH and experiment.dataset.demo is None:
        yield (
            f"{images:,} images are few: on Flickr8k SCAN gained nothing with 2,000 photographs, 7 rsum with 4,000, 10 "
            "with 6,000; train the control too"
        )


def forecast(chain: Chain, sizes: Sizes, depths: Mapping[Direction, int]) -> Iterator[str]:
    """Describe the draws before the table exists, from the lengths of the lists that will be mined, or from the table
    once it is made."""
    made = chain["hard_negatives"].exists() and ("screen" not in chain.stages or chain["screen"].exists())
    opened = open_table(chain) if made else None
    if opened is not None:
        depths = {direction: opened[0][direction].h for direction in DIRECTIONS}
    yield from describe_draws(chain, sizes, depths, opened)


def describe_draws(chain: Chain, sizes: Sizes, depths: Mapping[Direction, int], opened: Opened | None) -> Iterator[str]:
    """Describe the offline negatives' hardness, one sentence per direction; then advice and cautions.

    With the table each sentence has the fraction that the screen suspects, or that the teacher scores at least as high
    as the anchor's lowest own pair, and the fraction of matches where the world is generated.
    """
    experiment = chain.experiment
    if sizes[0] < experiment.student.batch_size:
        yield f"{sizes[0]:,} images are fewer than a batch of {experiment.student.batch_size}, which holds most of them"
    table, view = opened or (None, None)
    truth, cut = None if table is None else _Truth.of(chain), []
    for direction in DIRECTIONS:
        depth, judged, doubts = depths[direction], view[direction] if view else None, []
        ranks = ranks_of(chain, sizes, direction, depth, judged)
        if table is not None:
            doubts.append(_doubt(experiment, table[direction], judged, ranks))
            if truth is not None:
                doubts.append(truth.said(table[direction], ranks))
        yield "; ".join([str(ranks), *doubts])
        auto = ranks_of(chain, sizes, direction, depth, judged, Sampling(hardness="auto"))
        if auto.easier < ranks.easier:
            cut.append(f"{auto.stop} {WHAT[direction]}")
    if cut and experiment.sampling.hardness is None and experiment.model.attends:
        yield f'[sampling] hardness = "auto" would draw from the first {" and ".join(cut)}'
    yield from cautions(experiment, sizes[0])


def _doubt(experiment: Experiment, lists: NegativeLists, judged: Judged | None, ranks: DrawnRanks) -> str:
    """Say how many of the drawn negatives the screen doubts, or else the teacher."""
    drawn = slice(ranks.start, ranks.stop)
    listed = lists.negative_ids[:, drawn] >= 0
    if judged is None:
        share = _fraction(lists.scores[:, drawn] >= lists.positive_score[:, None], listed)
        said = f"the teacher scores {share:.1%} of them at least as high as the anchor's lowest own pair"
        return f"{said}: it is too weak to tell which match" if share > MANY else said
    said = f"{_fraction(judged.flags[:, drawn] != 0, listed):.1%} of them are left out or suspected by the screen"
    if experiment.screen is None or experiment.screen.match_prior is None:
        return said
    return f"{said}, whose suspicion is {judged.suspicion[:, drawn][listed].mean():.1%} on average"


def _fraction(chosen: Bool[np.ndarray, "anchors ranks"], listed: Bool[np.ndarray, "anchors ranks"]) -> float:
    return float((chosen & listed).sum() / max(1, listed.sum()))


@dataclass(frozen=True)
class _Truth:
    """The captions and scenes of a generated world."""

    captions: Sequence[str]
    scenes: Scenes

    @classmethod
    def of(cls, chain: Chain) -> _Truth | None:
        """Open the truth about the training split; None if the world is not generated."""
        dataset = chain.experiment.dataset
        if dataset.demo is None:
            return None
        return cls(open_true_train_split(chain).captions, read_scenes(chain.folder, dataset.train))

    def said(self, lists: NegativeLists, ranks: DrawnRanks) -> str:
        """Say how many of the drawn negatives match their anchor, by a sample of them."""
        drawn = lists.negative_ids[:, ranks.start : ranks.stop]
        anchors, places = np.nonzero(drawn >= 0)
        some = np.random.default_rng(0).permutation(len(anchors))[:CHECKED]
        others = drawn[anchors[some], places[some]]
        images, captions = (anchors[some], others) if ranks.direction == "i2t" else (others, anchors[some])
        pairs = zip(images.tolist(), captions.tolist(), strict=True)
        match = [is_true(self.captions[caption], self._scene(image)).item() for image, caption in pairs]
        return f"{np.mean(match):.1%} of them match, as the generated world knows"

    def _scene(self, image: int) -> Scenes:
        scenes, one = self.scenes, slice(image, image + 1)
        return Scenes(scenes.groups[one], scenes.cells[one], scenes.ground[one])
