"""How large a mining job is, and what follows from that alone."""

from __future__ import annotations

from dataclasses import dataclass

from aoq.pipeline.search.limits import sample_and_rank
from aoq.pipeline.search.problem import DIRECTIONS, Direction

KEPT_BYTES = 12
"""Of a pair that waits for the merge: caption, image, near score."""


@dataclass(frozen=True)
class Shape:
    images: int
    captions: int
    dimensions: int
    most_captions: int
    """Of one image."""
    h_captions: int
    h_images: int

    def counts(self, direction: Direction) -> tuple[int, int]:
        """Anchors and candidates."""
        return (self.images, self.captions) if direction == "i2t" else (self.captions, self.images)

    def h(self, direction: Direction) -> int:
        return self.h_captions if direction == "i2t" else self.h_images

    def wanted(self, direction: Direction) -> int:
        """As `Side.wanted`; a caption is of one image at most."""
        return self.h(direction) + (self.most_captions if direction == "i2t" else min(1, self.most_captions))

    def kept(self, direction: Direction) -> float:
        """Candidates that an anchor keeps of the one pass: so many are expected above its limit."""
        candidates = self.counts(direction)[1]
        size, rank = sample_and_rank(candidates, self.wanted(direction))
        return float(candidates * rank / size)

    def operations(self, search: str) -> float:
        """Floating-point operations of the near products of an exact search."""
        pairs = self.images * self.captions
        if search == "faiss-flat":
            return 2.0 * self.dimensions * 2 * pairs
        for direction in DIRECTIONS:
            anchors, candidates = self.counts(direction)
            pairs += anchors * sample_and_rank(candidates, self.wanted(direction))[0]
        return 2.0 * self.dimensions * pairs

    def work_bytes(self, search: str) -> int:
        """Of the units' files: uncompressed lists, and what waits for the merge."""
        lists = sum(self.counts(direction)[0] * (8 * self.h(direction) + 12) for direction in DIRECTIONS)
        return int(lists + (KEPT_BYTES * self.captions * self.kept("t2i") if search == "onepass" else 0))

    @property
    def vector_bytes(self) -> int:
        return 4 * self.dimensions * (self.images + self.captions)
