"""The best match of every query in every context, in parts, so that products are never all kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

CONTEXT_FRAGMENTS = 2**14
PRODUCTS = 2**22
"""The most products at a time, over the fragments of several contexts: 16 MB."""


def best_match(
    queries: Float[Tensor, "Q D"], contexts: Float[Tensor, "G K D"], mask: Bool[Tensor, "G K"] | None
) -> Float[Tensor, "Q G"]:
    """max_k <query, context_k> over a context's real fragments; its gradient goes to the first that reaches it.

    A context without real fragments is a zero vector.

    >>> best_match(torch.tensor([[1.0, 0.0]]), torch.tensor([[[3.0, 0.0], [5.0, 1.0]]]), None)
    tensor([[5.]])
    """
    if mask is not None:
        contexts = contexts.masked_fill(~mask.unsqueeze(2), 0)
        mask = mask | ~mask.any(1, keepdim=True)
    kind = torch.promote_types(queries.dtype, contexts.dtype)  # they differ under autocast
    queries, contexts = queries.to(kind), contexts.to(kind)
    return _BestMatch.apply(queries, contexts, mask)  # type: ignore[no-untyped-call]


class _BestMatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, contexts: Tensor, mask: Tensor | None) -> Tensor:
        best = queries.new_empty(len(queries), len(contexts))
        place = torch.empty(best.shape, dtype=torch.int32, device=best.device)
        for rows, group in _parts(queries, contexts):
            products = (queries[rows] @ contexts[group].flatten(0, 1).T).unflatten(1, (-1, contexts.shape[1]))
            if mask is not None:
                products.masked_fill_(~mask[group], -torch.inf)
            best[rows, group], place[rows, group] = products.max(2)
        ctx.save_for_backward(queries, contexts, place)
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, contexts, place = ctx.saved_tensors
        of_queries, of_contexts = torch.zeros_like(queries), torch.zeros_like(contexts)
        for rows, group in _parts(queries, contexts):
            chosen, fragments = place[rows, group].long().unsqueeze(2), contexts[group].flatten(0, 1)
            weights = gradient.new_zeros(*chosen.shape[:2], contexts.shape[1])
            weights = weights.scatter_(2, chosen, gradient[rows, group].unsqueeze(2)).flatten(1)
            of_queries[rows] += weights @ fragments
            of_contexts[group] += (weights.T @ queries[rows]).view_as(contexts[group])
        return of_queries, of_contexts, None


def _parts(queries: Tensor, contexts: Tensor) -> Iterator[tuple[slice, slice]]:
    """Some queries and some contexts at a time."""
    fragments = contexts.shape[1]
    groups = min(len(contexts), max(1, CONTEXT_FRAGMENTS // fragments))
    rows = max(1, PRODUCTS // (groups * fragments))
    for first in range(0, len(contexts), groups):
        for start in range(0, len(queries), rows):
            yield slice(start, start + rows), slice(first, first + groups)
