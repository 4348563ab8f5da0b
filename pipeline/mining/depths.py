"""Fit the lists of [mining] to the data: an anchor has no more negatives than there are other candidates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from aoq.pipeline.search.positives import pairs_of
from aoq.pipeline.search.problem import Direction


class Fitting(NamedTuple):
    """Lists that the data can fill: captions of an image, images of a caption; and what was shortened, "" if nothing.

    >>> Fitting.to(np.repeat(np.arange(40), 5), 40, 200, h_captions=300, h_images=20)
    Fitting(captions=195, images=20, said='lists hold 195 captions in place of 300: the data has no more negatives')
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
        pairs = pairs_of(positives, images, captions)
        asked = {"captions": (captions, h_captions, pairs[:, 0]), "images": (images, h_images, pairs[:, 1])}
        kept, said = {}, []
        for what, (count, h, anchors) in asked.items():
            most = count - int(np.bincount(anchors).max(initial=0))
            if most < 1:
                anchor = {"captions": "image", "images": "caption"}[what]
                raise ValueError(
                    f"{anchor} {np.bincount(anchors).argmax()} matches all {count} {what}, so it has no negative; "
                    "add data, or correct the pairs."
                )
            kept[what] = min(h, most)
            if h > most:
                said.append(f"{most} {what} in place of {h}")
        return cls(**kept, said=f"lists hold {' and '.join(said)}: the data has no more negatives" if said else "")
