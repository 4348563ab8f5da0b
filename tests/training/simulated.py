"""A device that is none: tensors on it hold their values on the CPU, and meet no tensor that lies there.

What the CPU allows and a GPU does not is refused: an operation on tensors of both devices, but for those that copy or
take a number. So is, within `unwaited`, all that a GPU's step would wait for: a copy but from pinned memory, a number
read, a shape that depends on values. Values are the CPU's, so that a step on it yields what a step on the CPU does.

Its tests are left out where a GPU is: torch pins memory for one kind of device alone.
"""

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

if torch.cuda.is_available():
    pytest.skip("tests/gpu has a real device", allow_module_level=True)


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
SHAPED_BY_VALUES = {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive}
READ = {aten._local_scalar_dense, aten.equal}


def pinned(tensor):
    found = tensor.clone()
    found.is_in_pinned_memory = True
    return found


class There(torch.Tensor):
    """A tensor of the device; `values` has its numbers."""

    @staticmethod
    def __new__(cls, values):
        like = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, values.size(), device=DEVICE, **like)

    def __init__(self, values):
        self.values = values

    def tolist(self):
        Simulated.refuse_to_wait("tolist")
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

    waits = True
    """False within `unwaited`."""

    @classmethod
    @contextmanager
    def set_waits(cls, waits):
        with patch.object(cls, "waits", waits):
            yield

    @classmethod
    def refuse_to_wait(cls, what):
        if not cls.waits:
            raise RuntimeError(f"{what} waits for {DEVICE}")

    def __enter__(self):
        self._besides = ExitStack()
        self._besides.enter_context(patch.object(torch.Tensor, "pin_memory", pinned))
        self._besides.enter_context(enable_python_dispatcher())  # a GRU becomes its sums and products
        # The backward pass of a device has a thread, and what is written in Python here may wait for it forever.
        self._besides.enter_context(torch.autograd.set_multithreading_enabled(False))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._besides.close()

    def __torch_dispatch__(self, function, kinds, given=(), named=None):
        named = named or {}
        if torch.is_inference_mode_enabled() and function._can_decompose():  # which autograd does otherwise
            super().__enter__()
            try:
                return function.decompose(*given, **named)
            finally:
                super().__exit__(None, None, None)
        tensors = [one for one in tree_leaves((given, named)) if isinstance(one, torch.Tensor)]
        there = [one for one in tensors if isinstance(one, There)]
        target = named.get("device")
        goes = bool(there) if target is None else torch.device(target).type == DEVICE.type
        apart = [one for one in tensors if one.ndim and not isinstance(one, There)]  # a number may lie on the CPU
        if there and apart and function not in {PACKS, *COPIES}:
            raise RuntimeError(f"{function} is given tensors of the CPU and of {DEVICE}")
        if (there or goes) and self._would_wait(function, given, goes, named):
            self.refuse_to_wait(function)
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

    def _would_wait(self, function, given, goes, named):
        if function in COPIES:
            source = given[1] if function is aten.copy_.default else given[0]
            target = isinstance(given[0], There) if function is aten.copy_.default else goes
            return isinstance(source, There) != target and not getattr(source, "is_in_pinned_memory", False)
        masks = [one for one in tree_leaves(given[1]) if one is not None] if function in INDEXES else []
        is_shaped = function.overloadpacket in SHAPED_BY_VALUES or any(one.dtype == torch.bool for one in masks)
        return is_shaped or function.overloadpacket in READ


def unwaited():
    """Refuse what would wait for the device."""
    return Simulated.set_waits(False)
