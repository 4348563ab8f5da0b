"""Draw a student's batches from its table, open its teachers, and describe how hard the draws are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aoq.pipeline.batches.lists import meeting_lists
from aoq.pipeline.batches.order import COMMUNITY, mined_order
from aoq.pipeline.build import UNITS, planned_file
from aoq.pipeline.config.screen import ScreenSection
from aoq.pipeline.config.training import TeacherVectors, Training
from aoq.pipeline.data.folder import Split
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.engine import Verify
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import matching_pairs
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.data import check_pretrained
from aoq.pipeline.stages.splits import fingerprint, open_pairs
from aoq.pipeline.tables.pairs import read_id_file, rows_by_id
from aoq.pipeline.tables.screens.view import Judged, View, read_view
from aoq.pipeline.tables.table import NegativeTable, Parts, read_table
from aoq.pipeline.training.batches import read_items, score_all, score_batch
from aoq.pipeline.training.checkpoint import load_model
from aoq.pipeline.training.drawable import DrawnRanks, drawable, drawn_ranks
from aoq.pipeline.training.loop import Run
from aoq.pipeline.training.sampler import WHOLE_LISTS, Sampler
from aoq.pipeline.vectors import open_sides

logger = logging.getLogger(__name__)

TableAndView = tuple[NegativeTable, View | None]
PROBED, CONSTANT = 128, 1e-5
"""Rows of a batch on which a teacher is tried, and the difference of scores below which it has collapsed."""


def open_student_table(chain: Chain) -> TableAndView:
    """Open the table that the student trains on, and the screen's view of it, if there is a screen."""
    owner = chain.owner("hard_negatives")  # has the same training data, and exists when its table does
    table = read_table(owner["hard_negatives"].opened() / "table", dataset=fingerprint(owner))
    view = read_view(chain["screen"].opened() / "view", table.manifest) if chain.experiment.screen else None
    return table, view


def table_draws(chain: Chain, split: Split, training: Training) -> dict[str, Any]:
    """Return a trainer's arguments that draw from the table: offline negatives, mined batches, the teacher as guide."""
    (table, view), sampling = open_student_table(chain), chain.experiment.sampling
    draws: dict[str, Any] = {}
    if sampling.batches is not None:
        pairs, true = matching_pairs(split.image_of), matching_pairs(split.image_of, split.identity)
        lists = meeting_lists(table, pairs, true=true, view=view, ranks=sampling.batch_ranks)
        drawing = {"seed": chain.experiment.seed, "community": sampling.community or COMMUNITY}
        draws["mined"] = partial(mined_order, lists, training.batch_size, **drawing)
    listed = training.distillation is not None and training.distillation.listed > 0
    draws["sampler"] = _make_sampler(chain, split, table, view) if training.loss.draws_offline or listed else None
    if sampling.guides:
        draws["guide"] = EmbeddingStore.open(chain["embeddings"].opened())
        draws["guiding"] = sampling.guide_margin, sampling.guide_similarity
    return draws


def make_teachers(
    chain: Chain, stage: str, training: Training, split: Split, run: Run, verify: Verify
) -> dict[str, Any]:
    """Return a trainer's arguments with the teachers of its batches: embeddings, and models that have none."""
    distillation, folder = training.distillation, run.work / UNITS
    if distillation is None or not distillation.scores_batch:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    stores, models, names = [], [], []
    for member in sorted(chain.distilled[stage], key=lambda member: member.stage == "second_round"):
        names.append(member.reference or "of the table")
        if member.stage != "second_round":
            stores.append(EmbeddingStore.open(member.artifact.opened()))
            continue
        check_pretrained(member.chain)
        model = load_model(member.artifact.opened() / "model.safetensors", **member.chain.experiment.model.towers)
        models.append((model.to(run.device), open_pairs(member.chain, "train", verify)))
    hashes = chain[stage].ingredients["training"]["distillation"]["files"]
    for number, (files, planned) in enumerate(zip(distillation.files, hashes, strict=True)):
        for name, (path, _) in files.parts.items():
            planned_file(chain.data_root, path, planned[name][0])
        try:
            stores.append(_open_teacher_files(files, chain.data_root, split, folder / f"teacher{number}"))
            names.insert(len(stores) - 1, files.images)
        except ValueError as error:
            raise ValueError(f"[{stage}.distillation] teacher {number + 1} of files: {error}") from None
    probed = np.random.default_rng(0).integers(0, (split.image_count, split.caption_count), (PROBED, 2))
    tried = [score_all(store, probed) for store in stores]
    for model, pairs in models:
        images, captions = read_items(pairs, probed)
        tried.append(score_batch(model, images.to(run.device), captions.to(run.device)))
    for name, scores in zip(names, tried, strict=True):
        if not scores.isfinite().all():
            raise ValueError(f"[{stage}.distillation] teacher {name} gives scores that are not finite; name another.")
        if float(scores.max() - scores.min()) < CONSTANT:
            same = f"teacher {name} gives all pairs nearly the same score, so there is nothing to learn from it"
            raise ValueError(f"[{stage}.distillation] {same}; name another.")
    if training.augment:
        logger.info("the teachers see the photographs as they are, without `augment`")
    return {"teacher_embeddings": stores, "teacher_models": models}


def _open_teacher_files(files: TeacherVectors, root: Path, split: Split, copies: Path) -> EmbeddingStore:
    """Open vectors of the split's images, which may have ids, and captions from files."""
    copies.mkdir(exist_ok=True)
    opened = open_sides(str(root / files.images), str(root / files.captions), copies, normalise=True)
    images, captions = opened.values()
    if files.image_ids is not None:
        rows_by_id(split.ids)  # refuses an id of two images
        if len(rows := rows_by_id(read_id_file(str(root / files.image_ids)))) != len(images):
            raise ValueError(
                f"{files.image_ids} has {len(rows)} ids, but {files.images} {len(images)} vectors; give one each."
            )
        if absent := [name for name in split.ids if name not in rows]:
            lacks = f"{files.image_ids} lacks {len(absent)} of the split's images"
            raise ValueError(f"{lacks}, the first is {absent[0]!r}.")
        images = images[[rows[name] for name in split.ids]]
    counts = {"images": split.image_count, "captions": split.caption_count}
    for (side, count), vectors in zip(counts.items(), (images, captions), strict=True):
        if len(vectors) != count:
            raise ValueError(f"{getattr(files, side)} has {len(vectors)} vectors, but the split has {count} {side}.")
    return EmbeddingStore(images, captions)


def _make_sampler(chain: Chain, split: Split, table: NegativeTable, view: View | None) -> Sampler:
    """Make the sampler of the table, narrowed by [sampling] and judged by [screen]."""
    screen, sampling = chain.experiment.screen, chain.experiment.sampling
    distillation = chain.experiment.student.distillation
    sizes, gaps = (split.image_count, split.caption_count), None
    for sentence in _describe_draws(chain, sizes, (table, view), {}):
        logger.info("%s", sentence)
    if sampling.gap is not None and sampling.sharpness is not None:
        gaps = (sampling.gap, sampling.sharpness)
    lists, parts = {}, Parts(table, view, screen.suspected if screen else "drop")
    for direction in DIRECTIONS:
        judged, listed = view[direction] if view else None, table[direction]
        ranks = _range(chain, sizes, direction, listed.h, judged)
        drawn = lists[direction] = drawable(
            direction, listed, h=ranks.stop, after=ranks.start, judged=judged, suspected=parts.suspected, gaps=gaps
        )
        shortest = int((drawn.ids >= 0).sum(axis=1).min())
        most = max(sampling.negatives or 0, 0 if distillation is None else distillation.listed)
        if shortest < most:
            sentence = "%s: the shortest list has %d negatives, and %d are drawn: short lists have fewer terms"
            logger.info(sentence, direction, shortest, most)
    return Sampler(
        lists["i2t"],
        lists["t2i"],
        split.image_of,
        strategy=sampling.strategy,
        resample=sampling.resample,
        windows=sampling.windows or WHOLE_LISTS,
        identity=split.identity,
        negatives=sampling.negatives,
        shared=sampling.columns != "own",
        matches=parts.matches,
        highest_scores=parts.highest_scores,
    )


def _range(chain: Chain, sizes: tuple[int, int], direction: Direction, depth: int, judged: Judged | None) -> DrawnRanks:
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
    """Describe how hard the offline negatives are, one sentence per direction; with the table, how many may match."""
    if sizes[0] < (batch := chain.experiment.student.batch_size):
        yield f"{sizes[0]:,} images are fewer than a batch of {batch}, which holds most of them"
    for direction in DIRECTIONS:
        if opened is None:
            yield str(_range(chain, sizes, direction, depths[direction], None))
            continue
        lists, judged = opened[0][direction], opened[1][direction] if opened[1] else None
        ranks = _range(chain, sizes, direction, lists.h, judged)
        yield f"{ranks}; {_state_doubts(lists, judged, ranks, chain.experiment.screen)}"


def _state_doubts(lists: NegativeLists, judged: Judged | None, ranks: DrawnRanks, screen: ScreenSection | None) -> str:
    """Say how many of the drawn negatives the screen doubts, or, without a screen, the teacher."""
    drawn = slice(ranks.start, ranks.stop)
    listed = lists.negative_ids[:, drawn] >= 0
    doubtful = lists.scores >= lists.positive_score[:, None] if judged is None else judged.flags != 0
    share = float((doubtful[:, drawn] & listed).sum() / max(1, listed.sum()))
    if judged is None:
        return f"the teacher scores {share:.1%} of them at least as high as the anchor's lowest positive"
    sentence = f"{share:.1%} of them are left out or suspected by the screen"
    if screen is None or screen.match_prior is None:
        return sentence
    return f"{sentence}, whose suspicion is {judged.suspicion[:, drawn][listed].mean():.1%} on average"
