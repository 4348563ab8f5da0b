"""Sizes of mining, known before a vector is read: depths that the data can fill, and the blocks of a reranking."""

from __future__ import annotations

import numpy as np
from jaxtyping import Integer

from aoq.pipeline.search.positives import unique_pairs
from aoq.pipeline.search.problem import Direction

IMAGE_BLOCK, CAPTION_BLOCK = 4096, 2048
"""Images and captions per unit of rescoring; it keeps the images' codes in memory."""
PAIR_TILE = 128
SEARCH_BLOCK = 2048
"""Candidates per unit of the full search with a reranking's teacher."""
TILES = {"images": IMAGE_BLOCK, "captions": CAPTION_BLOCK, "pairs": PAIR_TILE, "search": SEARCH_BLOCK}


def fit_depths(
    positives: Integer[np.ndarray, "*shape"], images: int, captions: int, *, h_captions: int, h_images: int
) -> tuple[dict[Direction, int], str]:
    """Shorten lists to the candidates that every anchor has beside its positives; say which were shortened.

    >>> fit_depths(np.repeat(np.arange(40), 5), 40, 200, h_captions=300, h_images=20)
    ({'i2t': 195, 't2i': 20}, 'lists hold 195 captions instead of 300: the data has no more negatives')
    """
    depths: dict[Direction, int] = {"i2t": h_captions, "t2i": h_images}
    counts, shorter = {"i2t": ("image", "captions", captions), "t2i": ("caption", "images", images)}, []
    for direction, anchors in zip(depths, unique_pairs(positives, images, captions).T, strict=True):
        anchor, candidates, count = counts[direction]
        positives_each = np.bincount(anchors, minlength=1)
        most = count - int(positives_each.max())
        if most < 1:
            raise ValueError(
                f"{anchor} {positives_each.argmax()} matches all {count} {candidates}, so it has no negative; add "
                "images with other captions."
            )
        if depths[direction] > most:
            shorter.append(f"{most} {candidates} instead of {depths[direction]}")
            depths[direction] = most
    return depths, f"lists hold {' and '.join(shorter)}: the data has no more negatives" if shorter else ""
