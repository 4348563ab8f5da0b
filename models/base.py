"""Interface of matching models: a code per image and per caption, and similarities between codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.models.packing import ranks, sent
from aoq.models.towers.preprocessing import Preprocessing
from aoq.models.towers.tower import SideName, Tower, named_towers

Size = Annotated[int, Gt(0)]
StepCount = Annotated[int, Gt(0), Le(1000)]
Length = Annotated[int, Ge(3)]
PositiveNumber = Annotated[float, Gt(0.0)]
Weight = Annotated[float, Ge(0.0)]
Fraction = Annotated[float, Ge(0.0), Lt(1.0)]

AttentionDirection = Literal["t2i", "i2t"]
Normalisation = Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"]
Aggregation = Literal["LogSumExp", "Mean", "Max", "Sum"]


@dataclass(frozen=True)
class Images:
    """A batch of images as region features; `mask` is True where a region is real (None: all are).

    For models whose tower reads photographs, `features` are their 8-bit pixels, as the tower sees them.

    In training mode BatchNorm normalises each of `groups` equal parts of the batch separately, as if they were encoded
    in turn. A selection of images is one group. `mask_here` is the mask on the CPU, once the images are elsewhere.
    """

    features: Float[Tensor, "images regions features"] | UInt8[Tensor, "images height width 3"]
    mask: Bool[Tensor, "images regions"] | None = None
    boxes: Float[Tensor, "images regions coordinates"] | None = None
    groups: int = 1
    mask_here: Bool[Tensor, "images regions"] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def real_here(self) -> Bool[Tensor, "images regions"] | None:
        return self.mask.cpu() if self.mask_here is None and self.mask is not None else self.mask_here

    def __getitem__(self, rows: slice | Tensor) -> Images:
        return replace(self._each(lambda part: part[rows]), groups=1)

    def to(self, device: torch.device) -> Images:
        """Move to a device without waiting for it; float16, of half the bytes, becomes float32 there."""
        moved = replace(self._each(lambda part: sent(part, device)), mask_here=self.real_here())
        return replace(moved, features=moved.features.float()) if moved.features.dtype == torch.float16 else moved

    def pin_memory(self) -> Images:
        return self._each(torch.Tensor.pin_memory)

    def _each(self, function: Callable[[Tensor], Any]) -> Images:
        return replace(self, **{name: function(part) for name, part in vars(self).items() if isinstance(part, Tensor)})


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

    def real(self) -> tuple[Int[Tensor, "captions words"], Bool[Tensor, "captions words"]]:
        """Return the ids up to the longest caption, with any padding, and the mask of real ones."""
        longest = int(self.lengths.max())
        return self.words[:, :longest], sent(ranks(longest, self.lengths), self.words.device)

    def to(self, device: torch.device) -> Captions:
        return Captions(sent(self.words, device), self.lengths)

    def pin_memory(self) -> Captions:
        return Captions(self.words.pin_memory(), self.lengths)


@dataclass(frozen=True)
class Code:
    """Codes of N images or captions.

    `vectors` is (N, D) for embedding models and (N, fragments, D) for models that compare fragments, where
    `mask` (N, fragments) is True at real fragments, and `pooled` (N, P) may hold one more vector per item.
    `context` (N, ...) is for the auxiliary loss, and `context_mask` is True at its real fragments.
    `lengths`, on the CPU, counts the real fragments of each item or of its context, which then come first.
    """

    vectors: Float[Tensor, "items ..."]
    mask: Bool[Tensor, "items fragments"] | None = None
    pooled: Float[Tensor, "items P"] | None = None
    context: Float[Tensor, "items ..."] | None = None
    context_mask: Bool[Tensor, "items parts"] | None = None
    lengths: Int[Tensor, " items"] | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice | Tensor) -> Code:
        """Choose items; a tensor of rows on the CPU avoids waiting for the device."""
        parts = {name: part for name, part in vars(self).items() if part is not None}
        if isinstance(rows, slice):
            return Code(**{name: part[rows] for name, part in parts.items()})
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        lengths, chosen = parts.pop("lengths", None), sent(rows, self.vectors.device)
        # Not `part[chosen]`: its gradient accumulates more slowly.
        code = Code(**{name: part.index_select(0, chosen) for name, part in parts.items()})
        return code if lengths is None else replace(code, lengths=lengths[rows.cpu()])


def real_fragments(code: Code) -> Bool[Tensor, "items fragments"]:
    """Return the mask of a code's fragments; without one, all are real."""
    return code.vectors.new_ones(code.vectors.shape[:2], dtype=torch.bool) if code.mask is None else code.mask


def concatenate(codes: Sequence[Code]) -> Code:
    """Join codes into one; shorter fragment axes are padded with masked zeros. The context is dropped."""
    lengths = [code.lengths for code in codes if code.lengths is not None]
    pooled = [code.pooled for code in codes if code.pooled is not None]
    others = {"pooled": torch.cat(pooled)} if pooled else {}
    others |= {"lengths": torch.cat(lengths)} if len(lengths) == len(codes) else {}
    if len({code.vectors.shape[1:] for code in codes}) == 1 and all(code.mask is None for code in codes):
        return Code(torch.cat([code.vectors for code in codes]), **others)
    longest = max(code.vectors.shape[1] for code in codes)
    vectors = [F.pad(code.vectors, (0, 0, 0, longest - code.vectors.shape[1])) for code in codes]
    masks = [F.pad(real_fragments(code), (0, longest - code.vectors.shape[1]), value=False) for code in codes]
    return Code(torch.cat(vectors), torch.cat(masks), **others)


def real_first(code: Code) -> Code:
    """Return the code with its real fragments first, and their `lengths`; computing these waits for the device."""
    if code.lengths is not None:
        return code
    mask = real_fragments(code)
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    vectors = code.vectors.gather(1, order.unsqueeze(2).expand_as(code.vectors))
    return replace(code, vectors=vectors, mask=mask.gather(1, order), lengths=mask.sum(1).cpu())


@dataclass(frozen=True)
class FragmentAttention:
    """Attention within P aligned pairs, in one direction: a query attends to sum_k weights[k] keys[k].

    Words are the queries of "t2i" and regions those of "i2t". Weights are not negative, 0 at queries and keys that are
    not real, and those of a real query sum to 1 (0 where a model lets it attend to nothing). They have a gradient,
    except for MaxSim's, which are 1 at one key.
    """

    direction: AttentionDirection
    queries: Float[Tensor, "pairs queries D"]
    keys: Float[Tensor, "pairs keys D"]
    weights: Float[Tensor, "pairs queries keys"]
    query_mask: Bool[Tensor, "pairs queries"]
    key_mask: Bool[Tensor, "pairs keys"]
    has_ends: bool = True
    """True if a caption's first and last words are marks of its start and end."""


class MatchingModel(nn.Module, ABC):
    """Similarities between images and captions: higher is closer, always.

    In eval mode `pair_similarity` equals the matching entries of `similarity`, whatever the padding, batch or order.

    Constructors take keywords only, which are the keys of [model]. Several models share these:

    Args:
        embedding_size: Length of the vectors that are compared.
        word_size: Length of a word vector.
        bidirectional: A GRU in both directions over the words; their states are averaged.
        image_tower: A pretrained encoder of photographs, `timm:`, `transformers:` or `open_clip:`; its patches replace
            the regions.
        text_tower: A pretrained encoder of captions, `transformers:`, `open_clip:` or `static:`, instead of the GRU.
        normalise_images: Divide image vectors by their norm.
    """

    needs_boxes: bool = False
    """True if the model needs `Images.boxes`."""
    takes_masks: bool = True
    """False if every image must have all its regions."""
    attends: bool = False
    """True if fragments attend to fragments, as `fragment_attention` returns."""
    scores_alone: bool = False
    """True if a pair's score depends on its codes alone, in training too, and draws no random numbers."""

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
        """Return the attention between image b and caption b of aligned codes, in each of the model's directions."""
        raise ValueError(
            f"{type(self).__name__} compares whole images and captions and has no attention; choose a model whose "
            "words and regions attend to each other."
        )

    def auxiliary_loss(self, images: Code, captions: Captions) -> Float[Tensor, ""] | None:
        """Compute a model's further loss on matched pairs (VSRN's captioner), a weighted mean; None if it has none."""
        return None

    @property
    def towers(self) -> dict[SideName, Tower]:
        return named_towers(getattr(self, "image", None), getattr(self, "text", None))

    def load_pretrained(self) -> None:
        """Load the towers' published weights; called once on a fresh model before training."""
        for tower in self.towers.values():
            tower.load_pretrained()

    def pair_numbers(self) -> dict[str, float]:
        """Return the `temperature`, and SigLIP's `bias`, of the pretrained pair of both towers."""
        return self.towers["image"].pair_numbers()

    @property
    def preprocessing(self) -> Preprocessing | None:
        """Preprocessing of photographs, if the model reads them; None if it reads region features."""
        return getattr(self.towers.get("image"), "preprocessing", None)

    def pretrained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are trained at their own rate: the networks of the towers."""
        return [one for tower in self.towers.values() for one in tower.network.parameters()]

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Begin an epoch, counted from 0; called before its first step."""
        return

    @property
    def observes(self) -> bool:
        return type(self).observe is not MatchingModel.observe

    def observe(self, images: Code, captions: Code, similarity: Float[Tensor, "pairs pairs"]) -> None:
        """Observe the anchors and their matrix; called once per training step, for models that use its distribution."""
        return


class EmbeddingModel(MatchingModel):
    """A model whose similarity is the dot product of two embeddings, so a search index can serve it."""

    def similarity(self, images: Code, captions: Code) -> Float[Tensor, "images captions"]:
        return images.vectors @ captions.vectors.T

    def pair_similarity(self, images: Code, captions: Code) -> Float[Tensor, " pairs"]:
        return (images.vectors * captions.vectors).sum(dim=-1)
