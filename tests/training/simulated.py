"""A device that is none: tensors on it hold their values on the CPU, and meet no tensor that lies there.

What the CPU allows and a GPU does not is refused: an operation on tensors of both devices, but for those that copy,
index, or take a number. Values are the CPU's, so that a step on it yields what a step on the CPU does.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend


class Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend("simulated", Backend())
DEVICE = torch.device("simulated:0")
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}
PACKS = aten._pack_padded_sequence.default
"""Its lengths, and the sizes that it finds, are the CPU's."""
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class There(torch.Tensor):
    """A tensor of the device; `values` has its numbers."""

    @staticmethod
    def __new__(cls, values):
        like = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, values.size(), device=DEVICE, **like)

    def __init__(self, values):
        self.values = values

    def tolist(self):
        return self.values.tolist()

    def new_tensor(self, value):
        return torch.tensor(value, dtype=self.dtype).to(DEVICE)

    def __repr__(self):
        return f"{self.values!r} on {DEVICE}"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, kinds, given=(), named=None):
        raise AssertionError(f"{function} outside of the simulation")


class Simulated(TorchDispatchMode):
    """Run the operations on either device."""

    def __enter__(self):
        self._besides = ExitStack()
        self._besides.enter_context(enable_python_dispatcher())  # a GRU becomes its sums and products
        # The backward pass of a device has a thread, and what is written in Python here may wait for it forever.
        self._besides.enter_context(torch.autograd.set_multithreading_enabled(False))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._besides.close()

    def __torch_dispatch__(self, function, kinds, given=(), named=None):
        named = named or {}
        tensors = [one for one in tree_leaves((given, named)) if isinstance(one, torch.Tensor)]
        there = [one for one in tensors if isinstance(one, There)]
        target = named.get("device")
        goes = bool(there) if target is None else torch.device(target).type == DEVICE.type
        met = [given[0], *given[2:3]] if function in INDEXES else tensors  # indices may lie on the CPU, as may numbers
        if there and function not in {PACKS, *COPIES} and any(one.ndim and not isinstance(one, There) for one in met):
            raise RuntimeError(f"{function} is given tensors of the CPU and of {DEVICE}")
        given_values, named_values = tree_map_only(There, lambda one: one.values, (given, {**named}))
        if target is not None:
            named_values["device"] = torch.device("cpu")
        found = function(*given_values, **named_values)
        if function is aten.copy_.default:
            return given[0]
        if function is PACKS:
            return (There(found[0]) if goes else found[0]), found[1]
        if goes:
            found = tree_map_only(torch.Tensor, There, found)
        return return_and_correct_aliasing(function, given, named, found) if goes else found
