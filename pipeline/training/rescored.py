"""Scores without stored activations: the backward pass scores again, and only the pairs with a gradient.

A hinge on the hardest negatives has a gradient at a few entries of the matrix: each pair's own, and its hardest
negatives'. Those are scored again as a list of pairs, which a model scores as it scores the matrix. Where many have
one, as in a softmax, the matrix is scored again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from aoq.models.base import Code, MatchingModel

FEW = 1 / 16
"""Largest fraction of entries with a gradient to score as a list of pairs, which takes longer per entry."""
MOST = 4
"""Pairs in a list per image of the matrix: far fewer than the matrix has."""

Call = Callable[..., Tensor]
"""Calls a function so that a later call has the same state as the first."""


def rescored(model: MatchingModel, images: Code, captions: Code, call: Call) -> Tensor:
    """Compute `model.similarity(images, captions)`, (I, C), with gradients of codes and of the model's parameters."""
    codes = [replace(code, context=None, context_mask=None) for code in (images, captions)]
    tensors = [part for code in codes for part in (code.vectors, code.pooled) if part is not None]
    trained = next((one for one in model.parameters() if one.requires_grad), None)  # else frozen codes have no gradient
    return _rescored(model, call, [_detached(code) for code in codes], trained, *tensors)


class _Rescored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, model: MatchingModel, call: Call, codes: Sequence[Code], _: Any, *tensors: Tensor) -> Tensor:
        device = tensors[0].device
        ctx.model, ctx.call, ctx.codes, ctx.random = model, call, codes, _random_state(device)
        scores = call(model.similarity, *codes)
        ctx.draws = any(not torch.equal(*both) for both in zip(ctx.random, _random_state(device), strict=True))
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        model, codes = ctx.model, [_detached(code, requires_grad=True) for code in ctx.codes]
        rows, columns = gradient.nonzero(as_tuple=True)
        if not len(rows):  # gradients are 0 then, which an optimiser takes for something else than none
            rows = columns = rows.new_zeros(1)
        with torch.enable_grad():
            if ctx.draws or len(rows) > FEW * gradient.numel():
                _with_random_state(
                    ctx.random, gradient.device, lambda: ctx.call(model.similarity, *codes).backward(gradient)
                )
            else:
                size = MOST * len(gradient)
                for images, captions in zip(rows.split(size), columns.split(size), strict=True):
                    scores = ctx.call(model.pair_similarity, codes[0][images], codes[1][captions])
                    scores.backward(gradient[images, captions])
        parts = [part for code in codes for part in (code.vectors, code.pooled) if part is not None]
        return None, None, None, None, *(part.grad for part in parts)


_rescored: Callable[..., Tensor] = _Rescored.apply


def _detached(code: Code, *, requires_grad: bool = False) -> Code:
    vectors, pooled = (
        None if part is None else part.detach().requires_grad_(requires_grad) for part in (code.vectors, code.pooled)
    )
    assert vectors is not None
    return replace(code, vectors=vectors, pooled=pooled)


def _random_state(device: torch.device) -> list[Tensor]:
    state = [torch.get_rng_state()]
    return [*state, torch.cuda.get_rng_state(device)] if device.type == "cuda" else state


def _with_random_state(state: Sequence[Tensor], device: torch.device, work: Callable[[], None]) -> None:
    with torch.random.fork_rng(devices=[device] if len(state) > 1 else []):
        torch.set_rng_state(state[0])
        for of_device in state[1:]:
            torch.cuda.set_rng_state(of_device, device)
        work()
