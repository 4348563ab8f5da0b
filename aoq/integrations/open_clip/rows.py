"""Rows of the table that travel through open_clip's training, by which a loss knows what matches.

That training hands two tensors of a batch to the model, and what this returns to the loss. So rows stand behind the
tokens, in COLUMNS further columns, and `carry_rows` has the model return them beside its features.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

COLUMNS = 3
"""Numbers of each pair: the row of its image, the row of its caption, and its group."""
GROUPS = ("anchors", "offline negatives", "companions")
DRAWN: dict[str | None, int] = {None: 1, "offline": 2, "quintuplet": 3}
"""Number of these groups that a batch has."""


def with_rows(tokens: Int[Tensor, "pairs length"], rows: Int[Tensor, "pairs 3"]) -> Int[Tensor, "pairs longer"]:
    """Put rows behind the tokens."""
    return torch.cat([tokens, rows.to(tokens.dtype)], dim=1)


def carry_rows(model: nn.Module) -> nn.Module:
    """Have an open_clip model take rows off the tokens, and return them as `rows`; the same model, weights untouched.

    Tokens without rows are taken as ever. Call it before the model is wrapped by DistributedDataParallel or compiled.
    """
    if not isinstance(length := getattr(model, "context_length", None), int):
        raise ValueError(
            f"{type(model).__name__} has no context_length, by which rows are told from tokens; give a model of "
            "open_clip, before anything wraps it."
        )
    taken: list[Tensor] = []

    def take(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        taken.clear()
        if "text" in named:
            return given, {**named, "text": _taken_off(named["text"], length, taken)}
        return (*given[:1], *(_taken_off(text, length, taken) for text in given[1:2]), *given[2:]), named

    def give(_: nn.Module, _given: tuple[Any, ...], _named: dict[str, Any], found: Any) -> Any:
        if not taken:
            return found
        if not isinstance(found, dict):
            raise ValueError("the model returns no names for its features; make it with output_dict=True.")
        return {**found, "rows": taken.pop()}

    model.register_forward_pre_hook(take, with_kwargs=True)
    model.register_forward_hook(give, with_kwargs=True)
    return model


def _taken_off(text: Tensor | None, length: int, taken: list[Tensor]) -> Tensor | None:
    if text is None or text.shape[1] != length + COLUMNS:
        return text
    taken.append(text[:, length:])
    return text[:, :length]
