"""What every matching model owes: a code per image and per caption, and similarities between codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.models.attention import Direction


@dataclass(frozen=True)
class Images:
    """A batch of images as region features; `mask` is True where a region is real (None: all are).

    In training mode BatchNorm takes each of `groups` equal parts of the batch by itself, as if they were encoded in
    turn. A selection of images is one group.
    """

    features: Float[Tensor, "images regions features"]
    mask: Bool[Tensor, "images regions"] | None = None
    boxes: Float[Tensor, "images regions coordinates"] | None = None
    groups: int = 1

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: slice | Tensor) -> Images:
        return Images(
            self.features[rows],
            None if self.mask is None else self.mask[rows],
            None if self.boxes is None else self.boxes[rows],
        )

    def to(self, device: torch.device) -> Images:
        return Images(
            self.features.to(device),
            None if self.mask is None else self.mask.to(device),
            None if self.boxes is None else self.boxes.to(device),
            self.groups,
        )


@dataclass(frozen=True)
class Captions:
    """A batch of captions as word ids, 0-padded, in any order of lengths; `lengths` stays on the CPU."""

    words: Int[Tensor, "captions words"]
    lengths: Int[Tensor, " captions"]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, rows: slice | Tensor) -> Captions:
        lengths = self.lengths[rows]
        return Captions(self.words[rows][:, : int(lengths.max())], lengths)

    def to(self, device: torch.device) -> Captions:
        return Captions(self.words.to(device), self.lengths)


@dataclass(frozen=True)
class Code:
    """What a model keeps of N images or captions.

    `vectors` is (N, D) for embedding models and (N, fragments, D) for models that compare fragments, where
    `mask` (N, fragments) is True at real fragments, and `pooled` (N, P) may hold one vector an item besides.
    `context` (N, ...) is whatever the auxiliary loss needs, and `context_mask` is True at its real fragments.
    """

    vectors: Float[Tensor, "items ..."]
    mask: Bool[Tensor, "items fragments"] | None = None
    pooled: Float[Tensor, "items P"] | None = None
    context: Float[Tensor, "items ..."] | None = None
    context_mask: Bool[Tensor, "items parts"] | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice | Tensor) -> Code:
        return Code(
            self.vectors[rows],
            None if self.mask is None else self.mask[rows],
            None if self.pooled is None else self.pooled[rows],
            None if self.context is None else self.context[rows],
            None if self.context_mask is None else self.context_mask[rows],
        )


def concatenate(codes: Sequence[Code]) -> Code:
    """One code of all items; shorter fragment axes are padded with masked zeros. The context is dropped."""
    if codes[0].vectors.ndim == 2:
        return Code(torch.cat([code.vectors for code in codes]))
    longest = max(code.vectors.shape[1] for code in codes)
    vectors, masks = [], []
    for code in codes:
        missing = longest - code.vectors.shape[1]
        real = code.mask if code.mask is not None else code.vectors.new_ones(code.vectors.shape[:2]).bool()
        vectors.append(F.pad(code.vectors, (0, 0, 0, missing)))
        masks.append(F.pad(real, (0, missing), value=False))
    pooled = [code.pooled for code in codes if code.pooled is not None]
    return Code(torch.cat(vectors), torch.cat(masks), torch.cat(pooled) if pooled else None)


@dataclass(frozen=True)
class FragmentAttention:
    """Where the fragments of P aligned pairs look, in one direction: a query attends to sum_k weights[k] keys[k].

    Words are the queries of "t2i" and regions those of "i2t". Weights are not negative, 0 at queries and keys that are
    not real, and those of a real query sum to 1 (0 where a model lets it attend to nothing). They have a gradient.
    """

    direction: Direction
    queries: Float[Tensor, "pairs queries D"]
    keys: Float[Tensor, "pairs keys D"]
    weights: Float[Tensor, "pairs queries keys"]
    query_mask: Bool[Tensor, "pairs queries"]
    key_mask: Bool[Tensor, "pairs keys"]


class MatchingModel(nn.Module, ABC):
    """Similarities between images and captions: higher is closer, always.

    In eval mode `pair_similarity` equals the matching entries of `similarity`, whatever the padding, the batch
    mates or the order of lengths.
    """

    similarity_range: tuple[float, float] = (-1.0, 1.0)
    needs_boxes: bool = False
    """True if `Images.boxes` must be there."""
    takes_masks: bool = True
    """False if every image must have all its regions."""
    attends: bool = False
    """True if fragments attend to fragments: `fragment_attention` says where."""

    @abstractmethod
    def encode_images(self, images: Images) -> Code: ...

    @abstractmethod
    def encode_captions(self, captions: Captions) -> Code: ...

    @abstractmethod
    def similarity(self, images: Code, captions: Code) -> Float[Tensor, "images captions"]:
        """Score every image against every caption."""

    @abstractmethod
    def pair_similarity(self, images: Code, captions: Code) -> Float[Tensor, " pairs"]:
        """Score image b against caption b, for aligned codes."""

    def fragment_attention(self, images: Code, captions: Code) -> tuple[FragmentAttention, ...]:
        """Where image b and caption b of aligned codes look in each other, in each direction the model attends in."""
        raise ValueError(
            f"{type(self).__name__} compares whole images and captions and has no attention; choose a model whose "
            "words and regions attend to each other."
        )

    def auxiliary_loss(self, images: Code, captions: Captions) -> Float[Tensor, ""] | None:
        """A further loss on matched pairs (VSRN's captioner), already weighted; None for models without one."""
        return None

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before the first step of each epoch of a training, counted from 0."""
        return

    def observe(self, images: Code, captions: Code, similarity: Float[Tensor, "pairs pairs"]) -> None:
        """Called once a training step with the anchors and their matrix, for models that watch its distribution."""
        return


class EmbeddingModel(MatchingModel):
    """A model whose similarity is the dot product of two embeddings, so a search index can serve it."""

    def similarity(self, images: Code, captions: Code) -> Float[Tensor, "images captions"]:
        return images.vectors @ captions.vectors.T

    def pair_similarity(self, images: Code, captions: Code) -> Float[Tensor, " pairs"]:
        return (images.vectors * captions.vectors).sum(dim=-1)
