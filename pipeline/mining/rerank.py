"""Reorder the candidates of a table by a slow model's scores.

Each pair of the shortlists is scored once, in units that survive a crash. Recall is estimated by searching a few
anchors in full with the slow model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int32, Int64

from aoq.models.base import Code, MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.embedding import encode_captions, encode_images
from aoq.pipeline.engine import products_in
from aoq.pipeline.files import digest
from aoq.pipeline.mining import sizes
from aoq.pipeline.search.lists import NegativeLists, in_table_order
from aoq.pipeline.search.problem import DIRECTIONS, OPPOSITE, Direction, blocks
from aoq.pipeline.search.units import Folder, Store, Unit, run_in_process, unit_name
from aoq.pipeline.tables.pairs import Pairs, group_positives, is_among, listed_keys, pair_keys
from aoq.pipeline.tables.writing import write_table

logger = logging.getLogger(__name__)

PAIR_ROUNDING = 1e-5
"""Largest difference between a pair's own score and its score in a matrix."""
_Block = tuple[int, int]
"""Start and stop of the anchors of a unit."""


@dataclass(frozen=True)
class Shortlist:
    """Candidates of every image and caption, padded with -1, and the true pairs; each pair is scored once."""

    captions: Int32[np.ndarray, "images depth_captions"]
    images: Int32[np.ndarray, "captions depth_images"]
    positives: Pairs

    def __getitem__(self, direction: Direction) -> Int32[np.ndarray, "anchors depth"]:
        return self.captions if direction == "i2t" else self.images

    def blocks(self, direction: Direction) -> list[_Block]:
        return blocks(len(self[direction]), sizes.IMAGE_BLOCK if direction == "i2t" else sizes.CAPTION_BLOCK)

    def row_keys(self, direction: Direction, block: _Block) -> Int64[np.ndarray, "anchors depth"]:
        """Number the listed pairs of a block of anchors as image * captions + caption; padding is -1."""
        return listed_keys(direction, np.arange(*block)[:, None], self[direction][slice(*block)], len(self.images))

    def keys(self, images: _Block, captions: _Block) -> Int64[np.ndarray, " pairs"]:
        """Return the pairs of two blocks to score, rising."""
        listed = [self.row_keys("i2t", images).ravel(), self.row_keys("t2i", captions).ravel()]
        keys = np.concatenate([*listed, pair_keys(self.positives[:, 0], self.positives[:, 1], len(self.images))])
        rows, columns = np.divmod(keys, len(self.images))
        inside = (rows >= images[0]) & (rows < images[1]) & (columns >= captions[0]) & (columns < captions[1])
        return np.unique(keys[inside])


@dataclass
class Rescoring:
    """Candidates to score, the model that scores them, and the depth of the reranked lists."""

    model: MatchingModel
    """Model in eval mode, on `device`."""
    pairs: PairData
    shortlist: Shortlist
    h: Mapping[Direction, int]
    checked_anchors: int
    device: torch.device
    _images: tuple[_Block, Code] | None = field(default=None, repr=False)

    def image_codes(self, block: _Block) -> Code:
        """Encode a block of images; the last block's codes are cached."""
        if self._images is None or self._images[0] != block:
            self._images = None
            self._images = block, encode_images(self.model, self.pairs, self.device, np.arange(*block))
        return self._images[1]

    def checked(self, direction: Direction) -> Int64[np.ndarray, " anchors"]:
        """Return the anchors that are searched in full, rising."""
        count = len(self.shortlist[direction])
        return np.sort(np.random.default_rng(0).choice(count, min(self.checked_anchors, count), replace=False))


def rerank(
    job: Rescoring,
    *,
    provenance: Mapping[str, Any],
    work: Path,
    output: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the table to the folder `output`; finished units of the same lists in `work` are reused, and stay."""
    job.model.eval()
    store = Folder.opened(work, digest([provenance, dict(job.h), job.checked_anchors]))
    run_in_process([rescoring_units(job)], job, store, progress)
    tables: dict[Direction, tuple[dict[str, Any], Iterator[NegativeLists]]] = {}
    for direction in DIRECTIONS:
        recall, anchors, h = measured_recall(job, direction, store), len(job.checked(direction)), job.h[direction]
        sentence = "%s: the lists hold %.1f %% of the teacher's top %d (%d anchors searched in full)"
        logger.info(sentence, direction, 100 * recall, h, anchors)
        about = {"h": h, "search": "rerank", "guarantee": "reranked"}
        about |= {"recall": round(recall, 6), "recall_anchors": anchors}
        tables[direction] = about, map(partial(_block_lists, job, direction, store), job.shortlist.blocks(direction))
    write_table(output, provenance, tables, job.shortlist.positives)


def measured_recall(job: Rescoring, direction: Direction, store: Store) -> float:
    """Return the fraction of a checked anchor's true top h that its list has, averaged over these anchors."""
    anchors = job.checked(direction)
    searched = blocks(len(job.shortlist[OPPOSITE[direction]]), sizes.SEARCH_BLOCK)
    parts = [store.read(unit_name(f"search-{direction}", *block))["score"].to_numpy() for block in searched]
    best = -np.sort(-np.concatenate([part.reshape(len(anchors), -1) for part in parts], axis=1), axis=1)
    best = best[:, : job.h[direction]]  # -inf if an anchor has fewer negatives
    wanted = np.isfinite(best).sum(axis=1)
    last = np.take_along_axis(best, np.maximum(wanted - 1, 0)[:, None], axis=1)
    scores = [
        _block_lists(job, direction, store, block).scores[anchors[inside] - block[0]]
        for block in job.shortlist.blocks(direction)
        if (inside := (anchors >= block[0]) & (anchors < block[1])).any()
    ]
    listed = (np.concatenate(scores) >= last - PAIR_ROUNDING).sum(axis=1)
    return float(np.where(wanted > 0, np.minimum(listed, wanted) / np.maximum(wanted, 1), 1.0).mean())


def _block_lists(job: Rescoring, direction: Direction, store: Store, block: _Block) -> NegativeLists:
    shortlist = job.shortlist
    images, captions = ([block] if one == direction else shortlist.blocks(one) for one in DIRECTIONS)
    scored = [store.read(unit_name("pairs", one[0], other[0])) for one in images for other in captions]
    table = pa.concat_tables(scored).sort_by("pair")
    keys, scores = table["pair"].to_numpy(), table["score"].to_numpy()
    ids, listed = shortlist[direction][slice(*block)], shortlist.row_keys(direction, block)
    rescored = np.where(listed < 0, np.float32(np.nan), scores[np.searchsorted(keys, listed)])
    own = group_positives(direction, shortlist.positives, len(shortlist[direction])).rows(np.arange(*block))
    owners = np.repeat(np.arange(*block), np.diff(own.offsets))
    pairs = listed_keys(direction, owners, own.ids, len(shortlist.images))
    ids, rescored = (column[:, : job.h[direction]] for column in in_table_order(ids, rescored))
    return NegativeLists(ids, rescored, own.lowest(scores[np.searchsorted(keys, pairs)]))


def rescoring_units(job: Rescoring) -> list[Unit[Rescoring]]:
    """Make independent units of work: listed pairs to score, and sampled anchors to search in full."""
    scored = [
        Unit((unit_name("pairs", images[0], captions[0]),), partial(_score_listed, images, captions))
        for images in job.shortlist.blocks("i2t")
        for captions in job.shortlist.blocks("t2i")
    ]
    searched = [
        Unit((unit_name(f"search-{direction}", *block),), partial(_search_block, direction, block))
        for direction in DIRECTIONS
        for block in blocks(len(job.shortlist[OPPOSITE[direction]]), sizes.SEARCH_BLOCK)
    ]
    return scored + searched


@torch.inference_mode()
@products_in("float32")
def _score_listed(images: _Block, captions: _Block, job: Rescoring, store: Store) -> list[pa.Table]:
    """Score the pairs of two blocks; return the pairs, rising, and their scores."""
    keys = job.shortlist.keys(images, captions)
    rows, columns = np.divmod(keys, len(job.shortlist.images))
    scores = np.empty(len(keys), dtype=np.float32)
    for tile, codes in encode_captions(job.model, job.pairs, job.device, np.unique(columns)):
        place = np.full(captions[1] - captions[0], -1)
        place[tile - captions[0]] = np.arange(len(tile))
        places = place[columns - captions[0]]
        chosen = np.flatnonzero(places >= 0)
        for start, stop in blocks(len(chosen), sizes.PAIR_TILE):
            part = chosen[start:stop]
            one = job.image_codes(images)[torch.from_numpy(rows[part] - images[0]).to(job.device)]
            other = codes[torch.from_numpy(places[part]).to(job.device)]
            scores[part] = job.model.pair_similarity(one, other).float().cpu().numpy()
    if len(broken := np.flatnonzero(~np.isfinite(scores))):
        raise ValueError(
            f"the teacher's similarity of image {rows[broken[0]]} and caption {columns[broken[0]]} is "
            f"{scores[broken[0]]}; the model or its features are broken, so choose another teacher."
        )
    return [pa.table({"pair": keys, "score": scores})]


@torch.inference_mode()
@products_in("float32")
def _search_block(direction: Direction, block: _Block, job: Rescoring, store: Store) -> list[pa.Table]:
    """Return the scores of each checked anchor's h best negatives in a block of candidates."""
    anchors, candidates = job.checked(direction), np.arange(*block)
    images, captions = (anchors, candidates) if direction == "i2t" else (candidates, anchors)
    scores = np.empty((len(images), len(captions)), dtype=np.float32)
    codes = encode_images(job.model, job.pairs, job.device, images)
    for tile, tile_codes in encode_captions(job.model, job.pairs, job.device, captions):
        columns = np.searchsorted(captions, tile)
        scores[:, columns] = job.model.similarity(codes, tile_codes).float().cpu().numpy()
    own = pair_keys(job.shortlist.positives[:, 0], job.shortlist.positives[:, 1], len(job.shortlist.images))
    pairs = pair_keys(images[:, None], captions[None], len(job.shortlist.images))
    scores[is_among(pairs, np.sort(own))] = -np.inf
    by_anchor = scores if direction == "i2t" else scores.T
    best = -np.sort(-by_anchor, axis=1)[:, : job.h[direction]]
    return [pa.table({"anchor_id": np.repeat(anchors, best.shape[1]), "score": best.ravel()})]
