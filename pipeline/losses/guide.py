"""False negatives of a batch, found by a guide: GISTEmbed (Solatorio 2024, arXiv 2402.16829)."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor


def guided_matches(scores: Float[Tensor, "batch batch"], *, margin: float = 0.0) -> Bool[Tensor, "batch batch"]:
    """Mark the pairs of a batch that a guide's scores (image rows, caption columns) exclude as negatives.

        g(i, j) > min(g(i, i), g(j, j)) - margin

    GISTEmbed excludes an anchor's negative that its guide scores above the anchor's own pair. Here a pair is excluded
    for both its image and its caption if it exceeds either's own pair. A higher `margin` excludes more. The matched
    pairs on the diagonal are marked too. Combine the mask with the true pairs: `is_positive | guided_matches(scores)`.

    >>> import torch
    >>> guided_matches(torch.tensor([[0.9, 0.3, 0.1], [0.2, 0.4, 0.5], [0.0, 0.1, 0.6]])).int()
    tensor([[1, 0, 0],
            [0, 1, 1],
            [0, 0, 1]], dtype=torch.int32)
    """
    own = scores.diagonal()
    matches = (scores > own[:, None] - margin) | (scores > own[None, :] - margin)
    matches.fill_diagonal_(True)
    return matches
