"""Fit the lists of [mining] to the data: an anchor has no more negatives than there are other candidates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from aoq.pipeline.search.positives import pairs_of
from aoq.pipeline.search.problem import Direction


class Fitting(NamedTuple):
    """Depths of lists that the data can fill: captions per image, images per caption; `said` names what was shortened.

    >>> Fitting.to(np.repeat(np.arange(40), 5), 40, 200, h_captions=300, h_images=20)
    Fitting(captions=195, images=20, said='lists hold 195 captions instead of 300: the data has no more negatives')
    """

    captions: int
    images: int
    said: str

    @property
    def by_direction(self) -> dict[Direction, int]:
        return {"i2t": self.captions, "t2i": self.images}

    @classmethod
    def to(
        cls, positives: Integer[np.ndarray, "*shape"], images: int, captions: int, *, h_captions: int, h_images: int
    ) -> Fitting:
        """Shorten lists to the candidates that every anchor has beside its positives.

        Raises ValueError if an anchor has no negative.
        """
        pairs, depths, shorter = pairs_of(positives, images, captions), [], []
        for anchor, what, anchors, count, h in (
            ("image", "captions", pairs[:, 0], captions, h_captions),
            ("caption", "images", pairs[:, 1], images, h_images),
        ):
            positives_each = np.bincount(anchors, minlength=1)
            most = count - int(positives_each.max())
            if most < 1:
                raise ValueError(
                    f"{anchor} {positives_each.argmax()} matches all {count} {what}, so it has no negative; add data, "
                    "or correct the pairs."
                )
            depths.append(min(h, most))
            if h > most:
                shorter.append(f"{most} {what} instead of {h}")
        said = f"lists hold {' and '.join(shorter)}: the data has no more negatives" if shorter else ""
        return cls(depths[0], depths[1], said)
