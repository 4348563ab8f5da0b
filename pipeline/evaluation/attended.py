"""Compare a model's attention on a split with the regions that its phrases refer to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer

from aoq.models.base import MatchingModel
from aoq.pipeline.arithmetic import products_in
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.phrases import Phrase
from aoq.pipeline.embedding import encode_captions
from aoq.pipeline.evaluation.attention import OVERLAP, attention_curve, box_overlap


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
    split, used = pairs.split, slice(pairs.max_regions)
    if phrase.boxes is None:
        relevant = np.isin(np.arange(split.features.shape[1])[used], phrase.regions)
    else:
        assert split.boxes is not None  # `find_phrases` checks this
        boxes = np.array(split.boxes[image, used], dtype=np.float64)
        relevant = box_overlap(boxes, phrase.boxes).max(axis=1) > OVERLAP
    return relevant if split.mask is None else relevant & split.mask[image, used]
