"""SCAN's attention for every image against every caption at once: the hot loop of a cross-attention model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from models.attention import FLOOR, SLOPE, Direction
from models.normalise import EPSILON


@dataclass(frozen=True)
class Run:
    """Neighbouring captions of one length: their rows among the packed words, and among the captions."""

    words: slice
    captions: slice
    length: int

    def view(self, packed: Tensor) -> Tensor:
        """(all words, ...) -> (captions of this run, length, ...), without a copy."""
        return packed[self.words].view(-1, self.length, *packed.shape[1:])


def equal_length_runs(lengths: Sequence[int], most: int) -> list[Run]:
    """Cut captions, sorted by length, into runs of one length and at most `most` words (or one caption).

    >>> [(run.captions.start, run.captions.stop, run.length) for run in equal_length_runs([3, 3, 3, 5], 6)]
    [(0, 2, 3), (2, 3, 3), (3, 4, 5)]
    """
    runs: list[Run] = []
    word = caption = 0
    while caption < len(lengths):
        length, stop = lengths[caption], caption + 1
        while stop < len(lengths) and lengths[stop] == length and (stop + 1 - caption) * length <= most:
            stop += 1
        words = (stop - caption) * length
        runs.append(Run(slice(word, word + words), slice(caption, stop), length))
        word, caption = word + words, stop
    return runs


def all_cosines(
    regions: Float[Tensor, "I R D"],
    words: Float[Tensor, "N D"],
    runs: Sequence[Run],
    *,
    direction: Direction,
    temperature: float,
) -> Float[Tensor, "C Q I"] | Float[Tensor, "C I Q"]:
    """`paired_cosine` of every image and caption, for packed words: (C, words, I) for t2i, (C, I, R) for i2t.

    One product of all regions with all words; the cosines' |q| is left to the caller.
    """
    products = (words @ regions.flatten(0, 1).T).view(-1, *regions.shape[:2])
    if direction == "t2i":
        grams = [torch.bmm(regions, regions.transpose(1, 2))]
    else:
        grams = [torch.bmm(block, block.transpose(1, 2)) for block in (run.view(words) for run in runs)]
    cosines: Tensor = _Cosines.apply(products, temperature, direction, runs, *grams)  # type: ignore[no-untyped-call]
    return cosines


class _Cosines(torch.autograd.Function):
    """The cosines (times |q|) from products (N, I, R) and Gram matrices, run by run.

    A run is a block (captions, words, images, regions) small enough for the cache. The backward pass repeats the
    cheap steps instead of storing them: of the large arrays only the products are kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        products: Tensor,
        temperature: float,
        direction: Direction,
        runs: Sequence[Run],
        *grams: Tensor,
    ) -> Tensor:
        axes = _AXES[direction]
        cosines = products.new_zeros(axes.shape(products, runs))
        kept = []
        for run, gram in zip(runs, axes.per_run(grams, runs), strict=True):
            block = run.view(products)
            scratch = F.leaky_relu(block, SLOPE)
            norm = (scratch * scratch).sum(axes.query, keepdim=True).sqrt_()
            scale = temperature / (norm + EPSILON)
            weights = scratch.mul_(scale).exp_()
            product = weights * block
            numerator = product.sum(axes.context)
            square = torch.mul(axes.attend(weights, gram), weights, out=product).sum(axes.context)
            inverse = square.masked_fill_(square <= FLOOR, torch.inf).rsqrt_()
            torch.mul(numerator, inverse, out=axes.of_run(cosines, run))
            kept.append((norm, scale, inverse))
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(products, cosines, *grams)
            ctx.axes, ctx.runs, ctx.temperature, ctx.kept = axes, runs, temperature, kept
        return cosines

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        products, cosines, *grams = ctx.saved_tensors
        axes, runs = ctx.axes, ctx.runs
        d_products = torch.empty_like(products)
        d_grams = [torch.zeros_like(gram) for gram in grams]
        per_run = zip(axes.per_run(grams, runs), axes.per_run(d_grams, runs), runs, ctx.kept, strict=True)
        for gram, d_gram, run, (norm, scale, inverse) in per_run:
            block, d_block = run.view(products), run.view(d_products)
            clipped = F.leaky_relu(block, SLOPE)
            weights = (clipped * scale).exp_()
            d_numerator = axes.of_run(outer[0], run) * inverse
            # Twice the derivative by the squared norm a^T G a: both a's contribute alike.
            d_square = -d_numerator * axes.of_run(cosines, run) * inverse
            d_numerator, d_square = d_numerator.unsqueeze(axes.context), d_square.unsqueeze(axes.context)
            scratch = weights * d_square
            axes.add_outer(d_gram, scratch, weights)
            through_numerator = torch.mul(block, d_numerator, out=d_block)
            d_logit = torch.add(through_numerator, axes.attend(scratch, gram), out=scratch).mul_(weights)
            torch.mul(weights, d_numerator, out=d_block)
            # Through x = clipped / norm: the part along `clipped` cancels.
            along = torch.mul(clipped, d_logit, out=weights).sum(axes.query, keepdim=True)
            along.mul_(scale / ctx.temperature).div_(norm.clamp_min(FLOOR))
            d_logit.addcmul_(clipped, along, value=-1)
            torch.ops.aten.leaky_relu_backward.grad_input(d_logit, block, SLOPE, False, grad_input=weights)
            d_block.addcmul_(weights, scale)
        return d_products, None, None, None, *d_grams


class _WordsAttend:
    """t2i: queries are words (axis 1 of a block), the context is the regions (axis 3), one Gram an image."""

    query, context = 1, 3

    @staticmethod
    def shape(products: Tensor, runs: Sequence[Run]) -> tuple[int, int, int]:
        return runs[-1].captions.stop, max(run.length for run in runs), products.shape[1]

    @staticmethod
    def of_run(cosines: Tensor, run: Run) -> Tensor:
        return cosines[run.captions, : run.length]

    @staticmethod
    def per_run(grams: Sequence[Tensor], runs: Sequence[Run]) -> list[Tensor]:
        return [grams[0]] * len(runs)

    @staticmethod
    def attend(weights: Tensor, gram: Tensor) -> Tensor:
        return torch.bmm(weights.flatten(0, 1).transpose(0, 1), gram).transpose(0, 1).view(weights.shape)

    @staticmethod
    def add_outer(gram: Tensor, left: Tensor, right: Tensor) -> None:
        gram.baddbmm_(left.flatten(0, 1).permute(1, 2, 0), right.flatten(0, 1).transpose(0, 1), alpha=0.5)


class _RegionsAttend:
    """i2t: queries are regions (axis 3 of a block), the context is the words (axis 1), Grams run by run."""

    query, context = 3, 1

    @staticmethod
    def shape(products: Tensor, runs: Sequence[Run]) -> tuple[int, int, int]:
        return runs[-1].captions.stop, products.shape[1], products.shape[2]

    @staticmethod
    def of_run(cosines: Tensor, run: Run) -> Tensor:
        return cosines[run.captions]

    @staticmethod
    def per_run(grams: Sequence[Tensor], runs: Sequence[Run]) -> list[Tensor]:
        return list(grams)

    @staticmethod
    def attend(weights: Tensor, gram: Tensor) -> Tensor:
        return torch.bmm(gram, weights.flatten(2)).view(weights.shape)

    @staticmethod
    def add_outer(gram: Tensor, left: Tensor, right: Tensor) -> None:
        gram.baddbmm_(left.flatten(2), right.flatten(2).transpose(1, 2), alpha=0.5)


_AXES: dict[Direction, type[_WordsAttend] | type[_RegionsAttend]] = {"t2i": _WordsAttend, "i2t": _RegionsAttend}
