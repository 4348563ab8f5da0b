"""What a split holds, in one line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int32

MOST_ROWS = 1000


@dataclass(frozen=True)
class Facts:
    """The size of a split, and how its captions are paired with its images."""

    split: str
    images: int
    regions: int
    feature_size: int
    dtype: str
    norm: float | None
    """Median norm of the regions; None if none has one."""
    captions: int
    fewest: int
    """Captions of the image that has the fewest."""
    most: int
    paired_by: str
    """The file that pairs them; empty if they stand in the images' order."""
    rows_an_image: int
    photographs: int

    def __str__(self) -> str:
        each = f"{self.most}" if self.fewest == self.most else f"{self.fewest} to {self.most}"
        norm = "" if self.norm is None else f", median norm {self.norm:.2g}"
        pairing = f"by {self.paired_by}" if self.paired_by else f"by their order (no {self.split}_pairs.npy)"
        parts = [
            f"{self.split}: {self.images:,} images × {self.regions} regions × {self.feature_size} features "
            f"({self.dtype}{norm}), {self.captions:,} captions, {each} per image {pairing}"
        ]
        if self.rows_an_image > 1:
            parts.append(f"each image is repeated in {self.rows_an_image} rows")
        if self.photographs < self.images:
            parts.append(f"{self.photographs:,} photographs by {self.split}_identity.npy")
        return "; ".join(parts)


def describe(
    split: str,
    features: Float[np.ndarray, "rows regions features"],
    repeat: int,
    image_of: Int32[np.ndarray, " captions"],
    paired_by: str,
    identity: Int32[np.ndarray, " images"] | None,
) -> Facts:
    rows, regions, feature_size = features.shape
    counts, images = np.bincount(image_of), rows // repeat
    sizes = images, regions, feature_size, str(features.dtype), median_norm(features), len(image_of)
    photographs = images if identity is None else len(np.unique(identity))
    return Facts(split, *sizes, int(counts.min()), int(counts.max()), paired_by, repeat, photographs)


def median_norm(features: Float[np.ndarray, "rows regions features"]) -> float | None:
    """Median norm of the regions of up to MOST_ROWS evenly spaced rows; zeros and broken regions are left out.

    >>> median_norm(np.array([[[3.0, 4.0], [0.0, 0.0]]], dtype=np.float16))
    5.0
    """
    rows = np.unique(np.linspace(0, len(features) - 1, MOST_ROWS).astype(np.int64))
    norms = np.concatenate([np.linalg.norm(features[row].astype(np.float64), axis=1) for row in rows])
    usual = norms[np.isfinite(norms) & (norms > 0)]
    return float(np.median(usual)) if len(usual) else None
