"""Attention precision, recall and F1 of words and their regions (Chen et al., WACV 2023, section 3.4).

A region is relevant to a phrase if it shows what the phrase refers to, and attended to by a word if its weight exceeds
a threshold. A phrase scores the highest precision, the highest recall and the highest F1 of its words, separately, so
the mean F1 over phrases is not the harmonic mean of the other two. The paper leaves these cases open: a word that
attends to nothing scores 0; a region that overlaps any of a phrase's boxes enough is relevant; a phrase without any
relevant region is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer

from aoq.models.base import MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.phrases import Phrase
from aoq.pipeline.embedding import encode_captions
from aoq.pipeline.engine import products_in
from aoq.pipeline.evaluation.retrieval import ATTENTION_SCORES

THRESHOLDS = np.arange(11) / 100
"""Thresholds of the paper: 0, 0.01, ..., 0.1 (36 regions of equal weight have 0.028 each)."""
OVERLAP = 0.4
"""A relevant region's IoU must exceed this (the paper's value)."""


def box_overlap(
    boxes: Float[np.ndarray, "boxes 4"], others: Float[np.ndarray, "others 4"]
) -> Float[np.ndarray, "boxes others"]:
    """Return the intersection over union of boxes with corners x1, y1, x2, y2; 0 for empty boxes.

    >>> box_overlap(np.array([[0.0, 0.0, 0.5, 1.0]]), np.array([[0.0, 0.0, 1.0, 1.0], [0.6, 0.0, 1.0, 1.0]]))
    array([[0.5, 0. ]])
    """
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = (high - low).clip(min=0).prod(axis=2)
    area, other_area = (np.prod(these[:, 2:] - these[:, :2], axis=1) for these in (boxes, others))
    union = area[:, None] + other_area - common
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def phrase_scores(
    weights: Float[np.ndarray, "words regions"], relevant: Bool[np.ndarray, " regions"]
) -> Float[np.ndarray, "3 thresholds"]:
    """Return the words' highest precision |A & R| / |A|, recall |A & R| / |R| and F1, eq. (9); R is not empty.

    >>> phrase_scores(np.array([[0.6, 0.3, 0.1]]), np.array([True, False, True]))[:, [0, -1]].round(2)
    array([[0.67, 0.5 ],
           [1.  , 0.5 ],
           [0.8 , 0.5 ]])
    """
    attended = weights[:, None, :] > THRESHOLDS[:, None]
    hits, count = (attended & relevant).sum(axis=2), attended.sum(axis=2)
    # 2 P R / (P + R) = 2 |A & R| / (|A| + |R|), also defined if P and R are 0.
    f1 = 2 * hits / (count + relevant.sum())
    return np.stack([hits / count.clip(min=1), hits / relevant.sum(), f1]).max(axis=1)


def attention_curve(
    phrases: Iterable[tuple[Float[np.ndarray, "_words _regions"], Bool[np.ndarray, " _regions"]]],
) -> dict[str, Any]:
    """Average scores over phrases, in percent, at the (lowest) threshold of the best F1; `curve` has all thresholds.

    A phrase is its words' weights and a mask of relevant regions. `left_out` counts phrases without a relevant region.

    >>> weights, dog = np.array([[0.7, 0.3]]), np.array([True, False])
    >>> attention_curve([(weights, dog), (weights, ~dog), (weights, dog & ~dog)])["left_out"]
    1
    """
    total, count, left_out = np.zeros((len(ATTENTION_SCORES), len(THRESHOLDS))), 0, 0
    for weights, relevant in phrases:
        if not relevant.any():
            left_out += 1
            continue
        total += phrase_scores(weights, relevant)
        count += 1
    if not count:
        raise ValueError(
            f"none of {left_out} phrases has a relevant region, so there is no attention to judge; check that the "
            "boxes of phrases and of regions are fractions of the same images' width and height."
        )
    curve = {"threshold": THRESHOLDS.tolist()}
    curve |= dict(zip(ATTENTION_SCORES, (100.0 * (total / count)).tolist(), strict=True))
    best = int(np.argmax(total[-1] / count))
    scores = {name: curve[name][best] for name in (*ATTENTION_SCORES, "threshold")}
    return {**scores, "phrases": count, "left_out": left_out, "curve": curve}


@torch.inference_mode()
@products_in("float32")
def measure_attention(
    model: MatchingModel, pairs: PairData, phrases: Sequence[Sequence[Phrase]], device: torch.device
) -> dict[str, Any] | None:
    """Measure how well words attend to regions; None if words do not attend, as in i2t-only models.

    Memory holds one tile of captions with their images.
    """
    model.eval()
    rows = np.array([row for row, spoken in enumerate(phrases) if spoken], dtype=np.int64)
    if not any(True for _ in word_attention(model, pairs, rows[:1], device)):
        return None
    return attention_curve(
        (weights[phrase.start : phrase.stop], relevant_regions(pairs, phrase, int(pairs.split.image_of[row])))
        for row, weights in word_attention(model, pairs, rows, device)
        for phrase in phrases[row]
    )


def word_attention(
    model: MatchingModel, pairs: PairData, rows: Integer[np.ndarray, " some"], device: torch.device
) -> Iterator[tuple[int, Float[np.ndarray, "words regions"]]]:
    """Yield these captions, in any order, with their words' weights over their image's regions, without `<start>`."""
    for tile, captions in encode_captions(model, pairs, device, rows):
        images = model.encode_images(pairs.images(pairs.split.image_of[tile]).to(device))
        for attention in model.fragment_attention(images, captions):
            if attention.direction == "t2i":
                yield from zip(tile.tolist(), attention.weights[:, 1:].float().cpu().numpy(), strict=True)


def relevant_regions(pairs: PairData, phrase: Phrase, image: int) -> Bool[np.ndarray, " regions"]:
    """Mark the real regions that a phrase names, or that overlap one of its boxes enough."""
    split, used = pairs.split, slice(pairs.regions)
    if phrase.boxes is None:
        relevant = np.isin(np.arange(split.features.shape[1])[used], phrase.regions)
    else:
        assert split.boxes is not None  # `find_phrases` checks this
        boxes = np.array(split.boxes[image, used], dtype=np.float64)
        relevant = box_overlap(boxes, phrase.boxes).max(axis=1) > OVERLAP
    return relevant if split.mask is None else relevant & split.mask[image, used]
