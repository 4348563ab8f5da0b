"""The arithmetic of a step or a search, whatever the caller has set in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch

Setting = tuple[Callable[[], Any], Callable[[Any], object], Any]
"""How it is read and written, and the value to have."""


@contextmanager
def products_in(precision: Literal["float32", "tf32", "bfloat16"]) -> Iterator[None]:
    """Compute float32 products in float32, or in TF32 if that is the precision, and make tensors float32 by default.

    The caller's autocast, default dtype and precision of products have no effect inside; they are put back afterwards.
    """
    with ExitStack() as put_back:
        for read, write, wanted in _settings(is_tf32=precision == "tf32"):
            put_back.callback(write, read())
            write(wanted)
        yield


def _settings(*, is_tf32: bool) -> Iterator[Setting]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    yield torch.get_default_dtype, torch.set_default_dtype, torch.float32
    for device in ("cpu", "cuda"):
        # Not `torch.autocast`: an autocast inside it would keep the weights that it rounds from step to step.
        yield partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device), False
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        yield partial(getattr, matmul, name), partial(setattr, matmul, name), False
    # torch has two ways to set the precision of products, and raises if one is read that the other contradicts. So the
    # newer is cleared first, the outer switches before those that follow them, and then the older is read and written.
    places = [(library, "all") for library in ("generic", "cuda", "mkldnn")]
    places += [(library, what) for library in ("cuda", "mkldnn") for what in ("matmul", "conv", "rnn")]
    places = places if hasattr(torch._C, "_get_fp32_precision_getter") else []  # torch before 2.9 has the older alone
    yield from (_switch(*place, "none") for place in places)
    yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high" if is_tf32 else "highest"
    yield partial(_is_allowed, cudnn), partial(setattr, cudnn, "allow_tf32"), is_tf32
    yield from (_switch(*place, "tf32" if is_tf32 else "ieee") for place in places[:1])


def _switch(library: str, what: str, wanted: str) -> Setting:
    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    return partial(read, library, what), partial(write, library, what), wanted


def _is_allowed(cudnn: Any) -> bool:
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:  # it is, which contradicts the cleared switches
        return True
