"""Units of work of a slow model: listed pairs scored, and sampled anchors searched in full."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float32, Int64

from aoq.models.base import Code, MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.embedding import encode_captions, encode_images
from aoq.pipeline.mining import shortlist as sizes
from aoq.pipeline.mining.shortlist import Block, Shortlist
from aoq.pipeline.search.problem import DIRECTIONS, Direction, blocks
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.units import Unit

ROUNDING = 1e-5
"""A pair's score by itself and in a matrix may differ by so much at most."""


@dataclass
class Rescoring:
    """What is to be scored, by whom, and how much of each list is kept."""

    model: MatchingModel
    """In eval mode, on `device`."""
    pairs: PairData
    shortlist: Shortlist
    h_captions: int
    h_images: int
    checked_anchors: int
    device: torch.device
    _images: tuple[Block, Code] | None = field(default=None, repr=False)

    def image_codes(self, block: Block) -> Code:
        """Those of the last block asked for are kept."""
        if self._images is None or self._images[0] != block:
            self._images = None
            self._images = block, encode_images(self.model, self.pairs, self.device, np.arange(*block))
        return self._images[1]

    def h(self, direction: Direction) -> int:
        return self.h_captions if direction == "i2t" else self.h_images

    def checked(self, direction: Direction) -> Int64[np.ndarray, " anchors"]:
        """The anchors that are searched in full, rising."""
        count = self.shortlist.anchors(direction)
        return np.sort(np.random.default_rng(0).choice(count, min(self.checked_anchors, count), replace=False))


def image_blocks(shortlist: Shortlist) -> list[Block]:
    return blocks(shortlist.anchors("i2t"), sizes.IMAGE_BLOCK)


def caption_blocks(shortlist: Shortlist) -> list[Block]:
    return blocks(shortlist.anchors("t2i"), sizes.CAPTION_BLOCK)


def rescoring_units(job: Rescoring) -> list[Unit[Rescoring]]:
    """None of them needs another."""
    scored = [
        Unit((_scored_name(images, captions),), partial(_score, images, captions))
        for images in image_blocks(job.shortlist)
        for captions in caption_blocks(job.shortlist)
    ]
    searched = [
        Unit((_searched_name(direction, block),), partial(_search, direction, block))
        for direction in DIRECTIONS
        for block in _search_blocks(job, direction)
    ]
    return scored + searched


def read_scores(
    work: Path, images: list[Block], captions: list[Block]
) -> tuple[Int64[np.ndarray, " pairs"], Float32[np.ndarray, " pairs"]]:
    """The pairs of these blocks, rising, and their scores."""
    paths = [work / f"{_scored_name(one, other)}.parquet" for one in images for other in captions]
    table = pa.concat_tables([pq.read_table(path, page_checksum_verification=True) for path in paths])
    keys, scores = table["pair"].to_numpy(), table["score"].to_numpy()
    order = np.argsort(keys, kind="stable")
    return keys[order], scores[order]


def best_scores(job: Rescoring, direction: Direction, work: Path) -> Float32[np.ndarray, "checked most"]:
    """Of each checked anchor the h best scores among all its negatives, and -inf where it has fewer; falling."""
    paths = [work / f"{_searched_name(direction, block)}.parquet" for block in _search_blocks(job, direction)]
    rows = len(job.checked(direction))
    parts = [pq.read_table(path, page_checksum_verification=True)["score"].to_numpy() for path in paths]
    found = np.concatenate([part.reshape(rows, -1) for part in parts], axis=1)
    return -np.sort(-found, axis=1)[:, : job.h(direction)]


@torch.inference_mode()
def _score(images: Block, captions: Block, job: Rescoring, store: Store) -> list[pa.Table]:
    keys = job.shortlist.keys(images, captions)
    rows, columns = np.divmod(keys, job.shortlist.anchors("t2i"))
    scores = np.empty(len(keys), dtype=np.float32)
    for tile, codes in encode_captions(job.model, job.pairs, job.device, np.unique(columns)):
        place = np.full(captions[1] - captions[0], -1)
        place[tile - captions[0]] = np.arange(len(tile))
        places = place[columns - captions[0]]
        chosen = np.flatnonzero(places >= 0)
        for start, stop in blocks(len(chosen), sizes.PAIR_TILE):
            part = chosen[start:stop]
            one = job.image_codes(images)[_index(rows[part] - images[0], job.device)]
            other = codes[_index(places[part], job.device)]
            scores[part] = job.model.pair_similarity(one, other).float().cpu().numpy()
    if len(broken := np.flatnonzero(~np.isfinite(scores))):
        raise ValueError(
            f"the teacher's similarity of image {rows[broken[0]]} and caption {columns[broken[0]]} is "
            f"{scores[broken[0]]}; the model or its features are broken, so choose another teacher."
        )
    return [pa.table({"pair": keys, "score": scores})]


@torch.inference_mode()
def _search(direction: Direction, block: Block, job: Rescoring, store: Store) -> list[pa.Table]:
    """The h best negatives' scores of each checked anchor among a block of candidates."""
    anchors, candidates = job.checked(direction), np.arange(*block)
    images, captions = (anchors, candidates) if direction == "i2t" else (candidates, anchors)
    scores = np.empty((len(images), len(captions)), dtype=np.float32)
    codes = encode_images(job.model, job.pairs, job.device, images)
    for tile, tile_codes in encode_captions(job.model, job.pairs, job.device, captions):
        columns = np.searchsorted(captions, tile)
        scores[:, columns] = job.model.similarity(codes, tile_codes).float().cpu().numpy()
    scores[job.shortlist.image_of[captions] == images[:, None]] = -np.inf
    mine = scores if direction == "i2t" else scores.T
    best = -np.sort(-mine, axis=1)[:, : job.h(direction)]
    return [pa.table({"anchor_id": np.repeat(anchors, best.shape[1]), "score": best.ravel()})]


def _search_blocks(job: Rescoring, direction: Direction) -> list[Block]:
    return blocks(job.shortlist.anchors("t2i" if direction == "i2t" else "i2t"), sizes.SEARCH_BLOCK)


def _scored_name(images: Block, captions: Block) -> str:
    return f"pairs-{images[0]:09d}-{captions[0]:09d}"


def _searched_name(direction: Direction, block: Block) -> str:
    return f"search-{direction}-{block[0]:09d}"


def _index(rows: Int64[np.ndarray, " some"], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(rows).to(device)
