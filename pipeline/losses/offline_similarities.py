"""Similarities of the offline negatives in a batch of embeddings, in the groups of `BatchSampler`."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import OfflineSimilarities


def offline_similarities(
    images: Float[Tensor, "rows D"],
    captions: Float[Tensor, "rows D"],
    image_rows: Int[Tensor, " rows"] | None = None,
    *,
    companions: bool = True,
) -> OfflineSimilarities:
    """Compute the offline similarities of a batch whose embeddings are in three groups: anchors, offline, companions.

    Without `companions` there are two groups, and no derived pairs. Given the batch's `image_rows`, derived pairs that
    are true pairs are no negatives. They are rare: the sampler redraws where an anchor's two negatives correspond.

    >>> import torch
    >>> images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])  # i, i_off, i_own
    >>> captions = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])  # t, t_off, t_own
    >>> offline = offline_similarities(images, captions)
    >>> offline.image_to_caption, offline.caption_to_image, offline.offline_pair, offline.companion_pair
    (tensor([0.6000]), tensor([0.]), tensor([0.8000]), tensor([0.8000]))
    """
    names = ["anchors", "offline", *(["companions"] if companions else [])]
    if len(images) % len(names) or len(images) != len(captions):
        raise ValueError(
            f"{len(images)} images and {len(captions)} captions are not {len(names)} groups of pairs: "
            f"{', '.join(names)}."
        )
    size = len(images) // len(names)
    anchor_images, *other_images = images.split(size)
    anchor_captions, *other_captions = captions.split(size)
    pairs = zip(other_images, other_captions, strict=True)
    derived = [(image * caption).sum(dim=1) for image, caption in pairs] if companions else []
    if image_rows is not None and companions:
        corresponding = image_rows[size : 2 * size] == image_rows[2 * size :]
        derived = [similarity.masked_fill(corresponding, NO_NEGATIVE) for similarity in derived]
    return OfflineSimilarities(
        (anchor_images * other_captions[0]).sum(dim=1), (other_images[0] * anchor_captions).sum(dim=1), *derived
    )
