"""Input of the losses: the similarities of a batch of B matched pairs, the mask of its positives, and log figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aoq.pipeline.losses.hinge import NO_NEGATIVE, Number, online_negative

_SIMILARITY_ROUNDING = 1e-5
"""Similarities this close count as equal: a drawn pair that is also in the batch is rounded differently there."""


@dataclass(frozen=True)
class OfflineSimilarities:
    """Similarities with the negatives drawn from the table, AOQ eqs. (3) to (5).

    For pair (i, t): `t_off` is an offline negative caption of i, `i_off` an offline negative image of t, and
    (`i_own`, `t_own`) are the companions: the image of `t_off` and a caption of `i_off`.
    """

    image_to_caption: Float[Tensor, " batch"]
    """S(i, t_off)"""
    caption_to_image: Float[Tensor, " batch"]
    """S(i_off, t)"""
    offline_pair: Float[Tensor, " batch"] | None = None
    """S(i_off, t_off), for the quintuplet losses"""
    companion_pair: Float[Tensor, " batch"] | None = None
    """S(i_own, t_own), for the quintuplet losses"""
    match_probability: Float[Tensor, "2 batch"] | None = None
    """Probability, for soft margins or weights, that i and t_off match (row 0), and that i_off and t do (row 1)"""
    _: KW_ONLY
    columns: tuple[Float[Tensor, "batch K"], Float[Tensor, "batch K"]] | None = None
    """Where K negatives are drawn for each anchor, those of images and of captions; -10^4 (`NO_NEGATIVE`) is none."""
    others: tuple[Float[Tensor, "batch others"], Float[Tensor, "batch others"]] | None = None
    """Negatives drawn for other anchors; they count as in-batch ones."""

    @classmethod
    def of_columns(
        cls, captions: Float[Tensor, "batch columns"], images: Float[Tensor, "batch columns"], groups: int
    ) -> OfflineSimilarities:
        """Take the drawn captions for each image, and images for each caption; t_off and i_off are the hardest.

        There is a column for each of the `groups` or, group by group, for each anchor that draws.
        """
        own, others = [captions, images], None
        if captions.shape[1] != groups:
            size = len(captions)
            cubes = [side.view(size, groups, size) for side in own]
            own = [cube.diagonal(dim1=0, dim2=2).T for cube in cubes]
            is_own = torch.eye(size, dtype=torch.bool, device=captions.device)[:, None]
            image, caption = (cube.masked_fill(is_own, NO_NEGATIVE).flatten(1) for cube in cubes)
            others = image, caption
        return cls(own[0].amax(1), own[1].amax(1), columns=(own[0], own[1]), others=others)

    @property
    def all_drawn(self) -> tuple[Float[Tensor, "batch K"], Float[Tensor, "batch K"]]:
        """All negatives drawn for images, and all for captions, a row per anchor."""
        if self.columns is not None:
            return self.columns
        return self.image_to_caption[:, None], self.caption_to_image[:, None]

    @property
    def drawn(self) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """S(i, t_off) and S(i_off, t)."""
        return self.image_to_caption, self.caption_to_image


@dataclass(frozen=True)
class Similarities:
    """The online matrix (image rows, caption columns, matched pairs on the diagonal) and the offline pairs."""

    matrix: Float[Tensor, "batch batch"]
    is_positive: Bool[Tensor, "batch batch"]
    """Entries that are not negatives; an array, such as `BatchSampler.is_positive`, becomes a tensor."""
    offline: OfflineSimilarities | None = None
    hardness: Number = math.inf
    """Concentration of the weights on the most similar in-batch negatives; infinity is the hardest one alone."""

    def __post_init__(self) -> None:
        is_positive = torch.as_tensor(self.is_positive, device=self.matrix.device)
        if is_positive.dtype != torch.bool or is_positive.shape != self.matrix.shape:
            kind = f"{is_positive.dtype} of shape {tuple(is_positive.shape)}, but must be bool of the matrix's shape"
            raise ValueError(f"is_positive is {kind}; make it with `aoq.positive_pairs` from the batch's image rows.")
        object.__setattr__(self, "is_positive", is_positive)
        if self.offline is not None and len(self.offline.image_to_caption) != len(self.matrix):
            drawn = f"{len(self.offline.image_to_caption)} offline similarities for a batch of {len(self.matrix)} pairs"
            raise ValueError(f"{drawn}; call `aoq.offline_similarities` with the options of the `BatchSampler`.")

    @property
    def positive(self) -> Float[Tensor, " batch"]:
        return self.matrix.diagonal()

    @property
    def directions(self) -> list[tuple[Float[Tensor, "batch columns"], Bool[Tensor, "batch columns"]]]:
        """The matrix with a row per anchor, and its positives: images are anchors, then captions.

        Negatives drawn for other anchors are further columns.
        """
        both = [(self.matrix, self.is_positive), (self.matrix.T, self.is_positive.T)]
        if self.offline is None or self.offline.others is None:
            return both
        return [
            (torch.cat([matrix, more], dim=1), torch.cat([positive, more < NO_NEGATIVE / 2], dim=1))
            for (matrix, positive), more in zip(both, self.offline.others, strict=True)
        ]

    @property
    def online(self) -> list[Float[Tensor, " batch"]]:
        """S(i, t_on) and S(i_on, t), at this hardness."""
        return [online_negative(*direction, hardness=self.hardness) for direction in self.directions]


@dataclass(frozen=True)
class LossValue:
    """The sum to minimise, and figures about it for the log (detached)."""

    total: Float[Tensor, ""]
    figures: dict[str, Tensor]


LossFunction = Callable[..., LossValue]
"""A loss on `Similarities`; its other keywords are numbers."""


def positive_pairs(
    image_rows: Int[Tensor, " batch"] | Int[np.ndarray, " batch"], *, mask_positives: bool
) -> Bool[Tensor, "batch batch"]:
    """Mark the entries of the online matrix that are not negatives.

    A batch may hold two captions of one image. The official code excludes only the diagonal (`mask_positives=False`).

    >>> positive_pairs(torch.tensor([7, 3, 7]), mask_positives=True).int()
    tensor([[1, 0, 1],
            [0, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """
    image_rows = torch.as_tensor(image_rows)
    if not mask_positives:
        return torch.eye(len(image_rows), dtype=torch.bool, device=image_rows.device)
    return image_rows[:, None] == image_rows[None, :]


def guided_matches(scores: Float[Tensor, "batch batch"], *, margin: float = 0.0) -> Bool[Tensor, "batch batch"]:
    """Mark the pairs of a batch that a guide's scores (image rows, caption columns) exclude as negatives.

        g(i, j) > min(g(i, i), g(j, j)) - margin

    GISTEmbed excludes an anchor's negative that its guide scores above the anchor's own pair. Here a pair is excluded
    for both its image and its caption if it exceeds either's own pair; the diagonal is marked too. The mask is combined
    with the true pairs: `is_positive | guided_matches(scores)`.

    >>> guided_matches(torch.tensor([[0.9, 0.3, 0.1], [0.2, 0.4, 0.5], [0.0, 0.1, 0.6]])).int()
    tensor([[1, 0, 0],
            [0, 1, 1],
            [0, 0, 1]], dtype=torch.int32)
    """
    own = scores.diagonal()
    return ((scores > own[:, None] - margin) | (scores > own[None, :] - margin)).fill_diagonal_(True)


def duplicate_matches(
    images: Float[Tensor, "batch D"], captions: Float[Tensor, "batch E"], *, least: float
) -> Bool[Tensor, "batch batch"]:
    """Mark the pairs (i, j) of a batch whose images, or whose captions, have at least this cosine by a guide's vectors.

    A caption that nearly repeats an image's own is not its negative (RzenEmbed, arXiv 2510.27350, compares candidates
    with the positive). The mask is combined with the true pairs: `is_positive | duplicate_matches(…)`.

    >>> captions = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> duplicate_matches(torch.eye(3), captions, least=0.95).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    sides = (torch.nn.functional.normalize(side, dim=1) for side in (images, captions))
    of_images, of_captions = (side @ side.T >= least for side in sides)
    return (of_images | of_captions).fill_diagonal_(True)


def offline_similarities(
    images: Float[Tensor, "rows D"],
    captions: Float[Tensor, "rows D"],
    image_rows: Int[Tensor, " rows"] | Int[np.ndarray, " rows"] | None = None,
    *,
    companions: bool = True,
    excluded: Bool[Tensor, "2 batch columns"] | Bool[np.ndarray, "2 batch columns"] | None = None,
) -> OfflineSimilarities:
    """Compute the offline similarities of a batch whose embeddings are in three groups: anchors, offline, companions.

    Without `companions` there are two groups, and no derived pairs. Given the batch's `image_rows`, derived pairs that
    are true pairs are not negatives. They are rare: the sampler redraws where an anchor's two negatives correspond.
    With several negatives per anchor, `excluded` is `BatchSampler.excluded` of the batch, and companions are left out.

    >>> images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])  # i, i_off, i_own
    >>> captions = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])  # t, t_off, t_own
    >>> offline = offline_similarities(images, captions)
    >>> offline.image_to_caption, offline.caption_to_image, offline.offline_pair, offline.companion_pair
    (tensor([0.6000]), tensor([0.]), tensor([0.8000]), tensor([0.8000]))
    """
    if excluded is not None:
        return _all_columns(images, captions, torch.as_tensor(excluded, device=images.device))
    names = ["anchors", "offline", *(["companions"] if companions else [])]
    if len(images) % len(names) or len(images) != len(captions):
        raise ValueError(
            f"{len(images)} images and {len(captions)} captions are not {len(names)} groups of pairs: "
            f"{', '.join(names)}; with several negatives per anchor, give `BatchSampler.excluded`."
        )
    if image_rows is not None and len(image_rows) != len(images):
        raise ValueError(f"{len(image_rows)} image rows for {len(images)} images; give the rows of the whole batch.")
    size = len(images) // len(names)
    anchor_images, *other_images = images.split(size)
    anchor_captions, *other_captions = captions.split(size)
    pairs = zip(other_images, other_captions, strict=True)
    derived = [(image * caption).sum(dim=1) for image, caption in pairs] if companions else []
    if image_rows is not None and companions:
        corresponding = torch.eq(*torch.as_tensor(image_rows, device=images.device)[size:].split(size))
        derived = [similarity.masked_fill(corresponding, NO_NEGATIVE) for similarity in derived]
    return OfflineSimilarities(
        (anchor_images * other_captions[0]).sum(dim=1), (other_images[0] * anchor_captions).sum(dim=1), *derived
    )


def _all_columns(
    images: Float[Tensor, "rows D"], captions: Float[Tensor, "rows D"], excluded: Bool[Tensor, "2 batch columns"]
) -> OfflineSimilarities:
    """Compare the anchors with all drawn rows, or with their own where `excluded` has a column per group."""
    size = max(1, excluded.shape[1])
    groups = len(images) // size - 1
    if (
        len(images) != len(captions)
        or len(images) != (groups + 1) * size
        or excluded.shape[2] not in (groups, groups * size)
        or excluded.dtype != torch.bool
        or groups < 1
    ):
        shapes = f"{len(images)} images, {len(captions)} captions and `excluded` of {tuple(excluded.shape)}"
        raise ValueError(f"{shapes} are not one batch; give all rows of a batch, and `BatchSampler.excluded` of it.")
    columns = []
    for anchors, drawn, mask in zip((images, captions), (captions[size:], images[size:]), excluded, strict=True):
        if excluded.shape[2] == groups:
            scores = torch.einsum("bd,gbd->bg", anchors[:size], drawn.view(groups, size, -1))
        else:
            scores = anchors[:size] @ drawn.T
        columns.append(scores.masked_fill(mask, NO_NEGATIVE))
    return OfflineSimilarities.of_columns(columns[0], columns[1], groups)


def levelled(pairs: Similarities) -> Similarities:
    """Set all similarities of the batch to their mean, as in a collapsed model; derived pairs are left out."""
    mean = pairs.matrix.detach().mean()
    offline = pairs.offline
    if offline is not None:

        def level(sides: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            image, caption = (torch.where(one < NO_NEGATIVE / 2, NO_NEGATIVE, mean) for one in sides)
            return image, caption

        own = level(offline.all_drawn)
        others = None if offline.others is None else level(offline.others)
        drawn = OfflineSimilarities.of_columns(*own, groups=own[0].shape[1])
        offline = replace(drawn, match_probability=offline.match_probability, others=others)
    return replace(pairs, matrix=mean.expand_as(pairs.matrix), offline=offline)


def offline_figures(pairs: Similarities) -> dict[str, Tensor]:
    """Return the fractions of offline negatives harder than the hardest in-batch one, and than the positive, if any."""
    if pairs.offline is None:
        return {}
    offline, probability = torch.stack(pairs.offline.all_drawn).detach(), pairs.offline.match_probability
    hardest = torch.stack(replace(pairs, hardness=math.inf, offline=None).online)[..., None]
    count = (offline > NO_NEGATIVE / 2).sum().clamp(min=1)
    soft = {} if probability is None else {"offline_match_probability": probability.mean()}
    levels = {"offline_above_positive_share": pairs.positive[:, None], "offline_harder_share": hardest}
    above = {name: (offline > level + _SIMILARITY_ROUNDING).sum().double() for name, level in levels.items()}
    return soft | {name: number / count for name, number in above.items()}


def check_temperature(temperature: float | Tensor) -> None:
    """Refuse a number that is not a temperature; a learnt one stays unread on its device."""
    if not isinstance(temperature, Tensor) and not 0 < temperature < math.inf:
        raise ValueError(f"temperatures must be above 0 and finite; got {temperature}.")
