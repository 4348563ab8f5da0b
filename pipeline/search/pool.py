"""The best candidates of each anchor so far, as integer keys that sort by falling score, then rising id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int32, Int64
from torch import Tensor

from aoq.pipeline.search.device import append_keys, marked_places, sort_rows

NO_CANDIDATE = torch.iinfo(torch.int64).max
"""The key that sorts last: no candidate."""
KEY_BYTES = 8


@dataclass(frozen=True)
class Pool:
    """Unsorted keys of the candidates that anchors keep; anchor n has `counts[n]` of them.

    Any other candidate scores below the anchor's limit, or ties with it and sorts after h kept candidates, because
    candidates are offered in the order of their ids.
    """

    h: int
    limits: Float32[Tensor, " anchors"]
    counts: Int64[Tensor, " anchors"]
    keys: Int64[Tensor, "anchors width"]

    @classmethod
    def empty(cls, limits: Float32[Tensor, " anchors"], h: int, candidates: int) -> Pool:
        """Start without candidates."""
        counts = torch.zeros(len(limits), dtype=torch.int64, device=limits.device)
        shape = len(limits), width_for(h, candidates)
        return cls(h, limits.clone(), counts, torch.full(shape, NO_CANDIDATE, dtype=torch.int64, device=limits.device))

    def __getitem__(self, rows: slice) -> Pool:
        """Select anchors, as a view: candidates added to it are added here too."""
        return Pool(self.h, self.limits[rows], self.counts[rows], self.keys[rows])

    def reached(
        self, anchors: Int64[Tensor, " pairs"], scores: Float32[Tensor, " pairs"]
    ) -> Int64[Tensor, " some"] | None:
        """Find the pairs to keep; None if they do not fit even after limits are raised."""
        for _ in range(2):
            reached = marked_places(scores >= self.limits[anchors])
            crowded = self.counts + torch.bincount(anchors[reached], minlength=len(self.counts)) > self.keys.shape[1]
            if not crowded.any():
                return reached
            self._raise_limits(crowded.nonzero().squeeze(1))
        return None

    def add(
        self, anchors: Int64[Tensor, " pairs"], candidates: Int64[Tensor, " pairs"], scores: Float32[Tensor, " pairs"]
    ) -> None:
        """Keep these pairs, which must fit."""
        append_keys(self.keys, self.counts, anchors, make_keys(candidates, scores))

    def trim(self) -> None:
        """Reduce each anchor's candidates to the h best."""
        self._raise_limits((self.counts > self.h).nonzero().squeeze(1))

    def _raise_limits(self, rows: Int64[Tensor, " some"]) -> None:
        """Keep the h best. From now on a candidate must beat the last of them, because ties have higher ids."""
        keys = sort_rows(self.keys[rows])
        keys[:, self.h :] = NO_CANDIDATE
        last = key_scores(keys[:, self.h - 1])
        raised = torch.nextafter(last, torch.full_like(last, torch.inf))
        raised = torch.where(self.counts[rows] < self.h, -torch.inf, raised)
        self.keys[rows], self.counts[rows] = keys, self.counts[rows].clamp(max=self.h)
        self.limits[rows] = torch.maximum(self.limits[rows], raised)


def width_for(h: int, candidates: int) -> int:
    """Return the number of keys per anchor: more than most anchors keep, because raising limits takes time."""
    return max(h, min(candidates, 3 * h + 256))


def make_keys(candidates: Int64[Tensor, " pairs"], scores: Float32[Tensor, " pairs"]) -> Int64[Tensor, " pairs"]:
    """Make keys: the id in the low bits, and above it the bits of the score, so that a higher score gives a lower key.

    >>> keys = make_keys(torch.tensor([4, 7, 2]), torch.tensor([0.5, 0.5, -1.0]))
    >>> (keys & 0xFFFFFFFF)[keys.argsort()].tolist()
    [4, 7, 2]
    """
    bits = scores.view(torch.int32)
    return (~torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)).long() << 32 | candidates


def key_scores(keys: Int64[Tensor, "*axes"]) -> Float32[Tensor, "*axes"]:
    """Decode the scores of keys; that of `NO_CANDIDATE` is NaN."""
    bits = ~(keys >> 32).int()
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32)


@dataclass(frozen=True)
class Heads:
    """The h best candidates of each anchor by falling score, then rising id; padded with -1 and -inf.

    No other candidate scores above `bound`, except for ties with the last one, which sort after it. A list is
    certified (proven exact) if its last score is above the bound, or if the bound is -inf because all were scored.
    """

    ids: Int32[np.ndarray, "anchors h"]
    scores: Float32[np.ndarray, "anchors h"]
    bound: Float32[np.ndarray, " anchors"]

    @classmethod
    def of(cls, keys: Int64[Tensor, "anchors width"], limits: Float32[Tensor, " anchors"], h: int) -> Heads:
        """Take the h best of `keys`, which are sorted in place; other candidates score below `limits` or sort later."""
        best = sort_rows(keys)[:, :h]
        ids = torch.where(best == NO_CANDIDATE, -1, best & 0xFFFFFFFF).int()
        scores = torch.where(best == NO_CANDIDATE, -torch.inf, key_scores(best))
        bound = torch.nextafter(torch.minimum(limits, scores[:, -1]), torch.full_like(limits, -torch.inf))
        # A list that ends early without a limit holds all negatives there are.
        bound = torch.where((ids[:, -1] < 0) & (limits > -torch.inf), torch.inf, bound)
        return cls(*(each.cpu().numpy() for each in (ids, scores, bound)))

    @property
    def certified(self) -> Bool[np.ndarray, " anchors"]:
        return (self.scores[:, -1] > self.bound) | (self.bound == -np.inf)
