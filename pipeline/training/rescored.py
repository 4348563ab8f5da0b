"""Scores without stored activations: the backward pass scores again, and only the pairs with a gradient.

A hinge on the hardest negatives has a gradient at a few entries of the matrix: each pair's own, and its hardest
negatives'. Those are scored again as a list of pairs, which a model scores as it scores the matrix. Where many have
one, as in a softmax, the matrix is scored again.

So it is for memory's sake, in chunks, and for speed: a matrix without a graph and a list of its few entries take less
than half of what a matrix takes with its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from aoq.models.base import Code, MatchingModel, real_fragments

FEW = 1 / 4
"""Largest fraction of entries with a gradient to score as a list of pairs, which takes longer per entry."""
MOST = 4
"""Pairs in a list per image of the matrix: far fewer than the matrix has."""

Call = Callable[..., Any]
"""Calls a function so that a later call has the same state as the first."""
Entries = Callable[[], int | None]
"""The most entries of the matrix per anchor that have a gradient; None: any number."""


def any_number() -> None:
    return None


def pays(model: MatchingModel, images: Code, batch: int, entries: Entries) -> bool:
    """Return whether it is faster to score the matrix without a graph, and entries with a gradient again.

    Not on a GPU, where finding these entries would wait for the device.
    """
    is_wanted = torch.is_grad_enabled() and model.attends and model.scores_alone
    if not is_wanted or images.vectors.device.type != "cpu":
        return False
    most = entries()
    return most is not None and most <= FEW * batch


class AsBefore:
    """Call functions with a model's present buffers, even after a model that observes the batch has changed them."""

    def __init__(self, model: MatchingModel) -> None:
        self._model = model
        self._before = {name: buffer.clone() for name, buffer in model.named_buffers() if model.observes}

    def __call__(self, function: Callable[..., Any], *given: Any) -> Any:
        moved = {name: self._model.get_buffer(name) for name in self._before}
        self._set(self._before)
        try:
            return function(*given)
        finally:
            self._set(moved)

    def _set(self, buffers: Mapping[str, Tensor]) -> None:
        for name, buffer in buffers.items():
            place, _, own = name.rpartition(".")
            setattr(self._model.get_submodule(place), own, buffer)


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
                lengths = _fragment_counts(codes[1])
                order, size = lengths[columns].argsort(stable=True), MOST * len(gradient)
                for images, captions in zip(rows[order].split(size), columns[order].split(size), strict=True):
                    some = _shortened(codes[1][captions], int(lengths[captions[-1]]))
                    scores = ctx.call(model.pair_similarity, codes[0][images], some)
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


def _fragment_counts(code: Code) -> Int[Tensor, " items"]:
    """Count the real fragments of each item; one each for vectors."""
    if code.vectors.ndim == 2:
        return torch.ones(len(code), dtype=torch.int64, device=code.vectors.device)
    return real_fragments(code).sum(1)


def _shortened(code: Code, longest: int) -> Code:
    """Cut the padding of longer items off."""
    if code.vectors.ndim == 2 or code.mask is None:
        return code
    return replace(code, vectors=code.vectors[:, :longest], mask=code.mask[:, :longest])


def _random_state(device: torch.device) -> list[Tensor]:
    state = [torch.get_rng_state()]
    return [*state, torch.cuda.get_rng_state(device)] if device.type == "cuda" else state


def _with_random_state(state: Sequence[Tensor], device: torch.device, work: Callable[[], None]) -> None:
    with torch.random.fork_rng(devices=[device] if len(state) > 1 else []):
        torch.set_rng_state(state[0])
        for of_device in state[1:]:
            torch.cuda.set_rng_state(of_device, device)
        work()
