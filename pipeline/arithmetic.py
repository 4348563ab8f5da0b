"""The precision of products, whatever the caller has set in torch, and the device that computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor

Setting = tuple[Callable[[], Any], Callable[[Any], object], Any]
"""A getter, a setter, and the value to set."""


@contextmanager
def products_in(precision: Literal["float32", "tf32", "bfloat16"]) -> Iterator[None]:
    """Compute float32 products in float32, or in TF32 if that is the precision, and make tensors float32 by default.

    The caller's autocast, default dtype and precision of products have no effect inside and are restored afterwards.
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
        # Not `torch.autocast`: an autocast nested in it would cache rounded weights across steps.
        yield partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device), False
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        yield partial(getattr, matmul, name), partial(setattr, matmul, name), False
    # torch has two interfaces for the precision of products, and raises if one is read while the other contradicts it.
    # So the newer one is cleared first, general switches before specific ones; then the older one is read and written.
    places = [(library, "all") for library in ("generic", "cuda", "mkldnn")]
    places += [(library, what) for library in ("cuda", "mkldnn") for what in ("matmul", "conv", "rnn")]
    places = places if hasattr(torch._C, "_get_fp32_precision_getter") else []  # torch before 2.9 has only the older
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
    except RuntimeError:  # allowed, which contradicts the cleared switches
        return True


class Arithmetic(NamedTuple):
    """How vectors are multiplied: rounded to `dtype` first, if `rounds`, and the product rounded by `result`."""

    name: str
    dtype: torch.dtype
    cost: float
    """Time of a product relative to float32 on a CPU."""
    adding: float
    """Relative error of an addition. Tensor cores truncate below 24 bits (https://doi.org/10.7717/peerj-cs.330)."""
    rounds: bool = False
    result: float = 0.0
    smallest: float = 2.0**-126
    """Smaller numbers may count as 0."""

    def prepare(self, vectors: Float32[Tensor, "items D"]) -> Float[Tensor, "items D"]:
        """Round the vectors before multiplication; TF32 keeps 10 bits after the leading one."""
        if self.name == "tf32":
            return ((vectors.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return vectors.to(self.dtype)


BFLOAT16 = Arithmetic("bfloat16", torch.bfloat16, 0.45, 2.0**-22, rounds=True, result=2.0**-8)
TF32 = Arithmetic("tf32", torch.float32, 0.02, 2.0**-22, rounds=True)
FLOAT32 = Arithmetic("float32", torch.float32, 1.0, 2.0**-24)
FLOAT64 = Arithmetic("float64", torch.float64, 2.2, 2.0**-53, smallest=0.0)


def find_device(name: str) -> torch.device:
    """Find the device of this name; `auto` is the current GPU if torch sees one, else the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"[engine] device is {name!r}; use auto, cpu, cuda, or cuda:0 and so on.") from None
    if device.type != "cuda":
        return device
    if (device.index or 0) >= count:
        raise ValueError(f"[engine] device is {name}, but torch sees {count} GPUs; use another, cpu or auto.")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
