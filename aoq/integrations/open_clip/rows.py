"""Rows of the table that travel through open_clip's training, so that a loss knows which pairs match.

The training passes two tensors of a batch to the model, and the model's output to the loss. So rows follow the tokens
in COLUMNS further columns, and `carry_rows` lets the model return them beside its features.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

COLUMNS = 3
"""The row of a pair's image, the row of its caption, and its group."""
GROUPS = ("anchors", "offline negatives", "companions")
DRAWN: dict[str | None, int] = {None: 1, "offline": 2, "quintuplet": 3}
"""Number of groups in a batch."""


def with_rows(tokens: Int[Tensor, "pairs length"], rows: Int[Tensor, "pairs 3"]) -> Int[Tensor, "pairs longer"]:
    """Append rows to the tokens."""
    return torch.cat([tokens, rows.to(tokens.dtype)], dim=1)


def carry_rows(model: nn.Module) -> nn.Module:
    """Let an open_clip model remove rows from the tokens and return them as `rows`; its weights stay untouched.

    Tokens without rows still work. Call this before the model is wrapped by DistributedDataParallel or compiled.
    """
    if not isinstance(length := getattr(model, "context_length", None), int):
        raise ValueError(
            f"{type(model).__name__} has no context_length, which separates tokens from rows; give a model of "
            "open_clip, before anything wraps it."
        )
    removed: list[Tensor] = []

    def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        removed.clear()
        if "text" in named:
            return args, {**named, "text": _without_rows(named["text"], length, removed)}
        return (*args[:1], *(_without_rows(text, length, removed) for text in args[1:2]), *args[2:]), named

    def after(_: nn.Module, _args: tuple[Any, ...], _named: dict[str, Any], output: Any) -> Any:
        if not removed:
            return output
        if not isinstance(output, dict):
            raise ValueError("the model returns its features without names; make it with output_dict=True.")
        return {**output, "rows": removed.pop()}

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)
    return model


def _without_rows(text: Tensor | None, length: int, removed: list[Tensor]) -> Tensor | None:
    if text is None or text.shape[1] != length + COLUMNS:
        return text
    removed.append(text[:, length:])
    return text[:, :length]
