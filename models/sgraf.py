"""SGR and SAF: Similarity Reasoning and Filtration for Image-Text Matching (Diao et al., AAAI 2021).

Their ensemble, SGRAF, averages the similarities of the two, trained apart.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aoq.models.attention import Block, masked_softmax
from aoq.models.base import Captions, Code, Fraction, Images, Size, StepCount
from aoq.models.fragments import FragmentModel
from aoq.models.layers import (
    EPSILON,
    Fragments,
    Mask,
    clipped_unit,
    group_by_group,
    l1_normalise,
    l2_normalise,
    masked_mean,
    safe_norm,
)


class _SGRAF(FragmentModel):
    """Similarity vectors of a pair, one per word and one global; a subclass summarises them in one vector.

    s(x, y) = l2(W (x - y)^2 + b), of each word and what it attends to, and of the pooled image and caption.

    BatchNorm treats each region slot as a channel, so the number of regions is fixed, and none may be masked. While
    training, the image's statistics are those of its group.

    Args:
        similarity_size: Length of a similarity vector.
        dropout: Dropout of words and of pooled vectors.
    """

    takes_masks = False
    temperature = 9.0

    def __init__(
        self, *, regions: int = 36, similarity_size: Size = 256, dropout: Fraction = 0.4, **encoders: Any
    ) -> None:
        super().__init__(word_dropout=dropout, **encoders)
        embedding_size = self.project.out_features
        self.regions = regions if self.image is None else self.image.count_patches()
        self.pool_image = SummaryPooling(embedding_size, self.regions, dropout)
        self.pool_caption = SummaryPooling(embedding_size, None, dropout)
        self.local_similarity = _linear(embedding_size, similarity_size)
        self.global_similarity = _linear(embedding_size, similarity_size)
        self.score = _linear(similarity_size, 1)

    def encode_regions(self, images: Images) -> Code:
        count = images.features.shape[1]
        if count != self.regions:
            raise ValueError(
                f"this {type(self).__name__} was built for {self.regions} regions per image, but these have {count}: "
                "BatchNorm over region slots fixes the number. Set `max_regions`, or build it for the data's number."
            )
        real = images.real_here()
        if real is not None and not real.all():
            raise ValueError(
                f"{type(self).__name__} normalises each region slot over the batch, so no region may be masked; "
                "remove {split}_mask.npy, or keep only the regions that all images have with `max_regions`."
            )
        code = super().encode_regions(Images(images.features))
        return Code(code.vectors, pooled=self.pool_image(code.vectors, None, images.groups))

    def encode_captions(self, captions: Captions) -> Code:
        code = super().encode_captions(captions)
        return replace(code, pooled=self.pool_caption(code.vectors, code.mask))

    def local(self, block: Block) -> Float[Tensor, "I C W S"]:
        """Compute the similarity vectors of words, before normalisation."""
        weights = self.attend(block, "t2i")
        weights = weights * block.inverse_norm(weights, 3).unsqueeze(3)  # the attended vector has norm 1 now
        regions = block.regions.vectors
        if block.is_aligned:
            return self._differences(weights.squeeze(2), regions.squeeze(1), block.words).unsqueeze(0)
        weights, words = weights.permute(2, 0, 1, 3), block.words.flatten(0, 1)
        return self._differences(weights.flatten(1, 2), regions.squeeze(0), words).unflatten(1, weights.shape[1:3])

    def _differences(
        self, weights: Float[Tensor, "N Q R"], regions: Float[Tensor, "N R D"], words: Float[Tensor, "*#N Q D"]
    ) -> Float[Tensor, "N Q S"]:
        """Compute W (x - y)^2 + b for each word y and the weighted sum x of its regions, which is not stored."""

        def differences() -> Tensor:
            return self.local_similarity((weights @ regions - words).square())

        if not torch.is_grad_enabled():
            return differences()
        return checkpoint(differences, use_reentrant=False, preserve_rng_state=False)

    def whole(self, block: Block) -> Float[Tensor, "I C S"]:
        """Compute the global similarity vector, before normalisation."""
        assert block.pooled is not None
        assert block.regions.pooled is not None
        difference = block.regions.pooled.transpose(0, 1) - block.pooled
        return self.global_similarity(difference.square())

    def compare(self, block: Block) -> Float[Tensor, "C I"]:
        mask = None if block.word_mask is None else nn.functional.pad(block.word_mask, (1, 0), value=True)
        return self.score(self.summary(block, mask)).squeeze(-1).sigmoid().T

    @abstractmethod
    def summary(self, block: Block, mask: Bool[Tensor, "C nodes"] | None) -> Float[Tensor, "I C S"]:
        """Summarise a pair's nodes in one vector; `mask` is True at real nodes."""


class SGR(_SGRAF):
    """Graph reasoning: `steps` rounds of X <- ReLU(W softmax(Q K^T) X); the global node's vector is the result.

    Args:
        steps: Reasoning steps over the similarity graph.
    """

    def __init__(self, *, steps: StepCount = 3, **options: Any) -> None:
        super().__init__(**options)
        self.reasoning = nn.ModuleList(Reasoning(self.score.in_features) for _ in range(steps))

    def summary(self, block: Block, mask: Bool[Tensor, "C nodes"] | None) -> Float[Tensor, "I C S"]:
        nodes = clipped_unit(torch.cat([self.whole(block).unsqueeze(2), self.local(block)], dim=2), 3, slope=1.0)
        for step in self.reasoning[:-1]:
            nodes = step(nodes, nodes, mask)
        return self.reasoning[-1](nodes[:, :, :1], nodes, mask).squeeze(2)  # only the global node is read


class SAF(_SGRAF):
    """Attention filtration: each node is gated, and the gated nodes are added.

    gate = l1(sigmoid(BatchNorm(w s + b))). The official code scores caption by caption, so in training the gate's
    statistics are those of one caption with all images, and so they are here in the matrix. Aligned pair lists are
    gated by the running statistics: a pair's score depends on no other pair of the list.
    """

    scores_alone = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = _linear(self.score.in_features, 1)
        self.norm = nn.BatchNorm1d(1)
        self.moments = Moments()

    def summary(self, block: Block, mask: Bool[Tensor, "C nodes"] | None) -> Float[Tensor, "I C S"]:
        local, whole = self.local(block), l2_normalise(self.whole(block))
        scale = 1 / (safe_norm(local) + EPSILON)  # normalises the nodes without forming them
        logits = torch.cat([whole @ self.gate.weight.T, (local @ self.gate.weight.T * scale).squeeze(3)], dim=2)
        gates = self._normalised(logits + self.gate.bias, block).sigmoid()
        gates = l1_normalise(gates if mask is None else gates.masked_fill(~mask, 0))
        words = (gates[:, :, 1:].unsqueeze(2) * scale.transpose(2, 3)) @ local
        return l2_normalise(gates[:, :, :1] * whole + words.squeeze(2))

    def _normalised(self, logits: Float[Tensor, "I C nodes"], block: Block) -> Float[Tensor, "I C nodes"]:
        norm = self.norm
        if not self.training or block.is_aligned:
            mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        else:
            mean, variance, count = self.moments(logits)
            self._update(mean.detach(), variance.detach(), count)
            mean, variance = mean.unsqueeze(1), variance.unsqueeze(1)
        return (logits - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias

    @torch.no_grad()
    def _update(
        self, means: Float[Tensor, " C"], variances: Float[Tensor, " C"], count: int | Float[Tensor, ""]
    ) -> None:
        """Update the running statistics, one momentum step per caption."""
        norm, momentum = self.norm, float(self.norm.momentum or 0.0)
        decay = (1 - momentum) ** torch.arange(len(means) - 1, -1, -1, device=means.device)
        for name, values in {"running_mean": means, "running_var": variances * (count / (count - 1))}.items():
            norm.get_buffer(name).mul_((1 - momentum) ** len(means)).add_(momentum * (decay * values).sum())
        norm.get_buffer("num_batches_tracked").add_(len(means))


class Moments(nn.Module):
    """Mean and variance of each channel of (items, channels, ...), and the number of values in each.

    A module, so that processes that share a batch can replace it by the moments over all of them.
    """

    def forward(
        self, values: Float[Tensor, "items channels ..."]
    ) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"], int]:
        axes = [axis for axis in range(values.ndim) if axis != 1]
        variance, mean = torch.var_mean(values, dim=axes, correction=0)
        return mean, variance, values.numel() // values.shape[1]


class SummaryPooling(nn.Module):
    """One vector of all fragments, weighted by softmax(w (tanh(W x) * tanh(W' mean x))).

    For images (`slots` regions) both tanh follow a BatchNorm, one with a channel per region slot, by groups of images.
    """

    def __init__(self, size: int, slots: int | None, dropout: float) -> None:
        super().__init__()
        self.local, self.whole, self.common = _linear(size, size), _linear(size, size), _linear(size, 1)
        self.local_norm = nn.Identity() if slots is None else nn.BatchNorm1d(slots)
        self.whole_norm = nn.Identity() if slots is None else nn.BatchNorm1d(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, fragments: Fragments, mask: Mask, groups: int = 1) -> Float[Tensor, "items size"]:
        local = self.dropout(group_by_group(self.local_norm, groups, self.local(fragments)).tanh())
        whole = self.dropout(group_by_group(self.whole_norm, groups, self.whole(masked_mean(fragments, mask))).tanh())
        weights = masked_softmax(self.common(local * whole.unsqueeze(1)).squeeze(-1), mask, 1)
        return l2_normalise(torch.bmm(weights.unsqueeze(1), fragments).squeeze(1))


class Reasoning(nn.Module):
    """ReLU(W softmax(Q K^T) X): every node becomes what it attends to; no scaling, no residual."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.output = _linear(size, size), _linear(size, size), _linear(size, size)

    def forward(
        self,
        asking: Float[Tensor, "I C some S"],
        nodes: Float[Tensor, "I C nodes S"],
        mask: Bool[Tensor, "C nodes"] | None,
    ) -> Float[Tensor, "I C some S"]:
        # <Q x + p, K y + q> = <K^T (Q x + p), y> + a term equal for all y, which the softmax ignores.
        weight, bias = self.key.weight.T @ self.query.weight, self.query.bias @ self.key.weight
        edges = nn.functional.linear(asking, weight, bias) @ nodes.transpose(2, 3)
        edges = masked_softmax(edges, None if mask is None else mask.unsqueeze(1), 3)
        return self.output(edges @ nodes).relu_()


def _linear(size: int, out: int) -> nn.Linear:
    """Make a linear layer with Xavier-uniform weights and zero bias."""
    layer = nn.Linear(size, out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
