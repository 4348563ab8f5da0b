"""Processes that train one model together, and their communication.

A batch is shared out: each process reads, encodes and scores its own part. What all need is gathered, and each computes
the loss on the whole, from the same numbers. A gradient goes back the way its number came: to what was gathered for all
to compute with goes the sum of what they found (`gather`), to what stands in the loss of each alike its own gradient
(`gather_alike`). Last, the gradients of the parameters, each process's part, are added up. So loss and gradients are
those of the whole batch, and every process takes the same step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from aoq.models.base import Code, concatenate


@dataclass(frozen=True)
class Processes:
    """The number of processes and this one's rank; rank 0 leads: it alone writes and logs."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Device that this process computes on and sends from."""

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        return self.count > 1

    def rows(self, items: int, rank: int | None = None) -> slice:
        """Return the part of one process, by default of this one; parts differ by one item at most."""
        place = self.rank if rank is None else rank
        return slice(items * place // self.count, items * (place + 1) // self.count)

    def gather(self, part: Tensor, items: int) -> Tensor:
        """Gather all parts in order, to compute with; the gradients of all processes are added up."""
        return _gathered(part, self, items, True) if self.are_several else part

    def gather_alike(self, part: Tensor, items: int) -> Tensor:
        """Gather all parts in order, for a loss that each process computes alike."""
        return _gathered(part, self, items, False) if self.are_several else part

    def gather_code(self, part: Code, items: int) -> Code:
        """Gather the code of all items, padded to the longest; the context is left out."""
        if not self.are_several:
            return part
        fields = {"vectors": part.vectors, "mask": part.mask, "pooled": part.pooled}
        if part.vectors.ndim == 3:
            longest = torch.tensor(part.vectors.shape[1], device=self.device)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            fields = vars(_lengthened(part, int(longest)))
        return Code(**{name: self.gather(found, items) for name, found in fields.items() if found is not None})

    def add_up(self, numbers: Tensor) -> Tensor:
        """Sum over all processes."""
        if not self.are_several:
            return numbers
        total = numbers.detach().to(self.device, copy=True).contiguous()
        dist.all_reduce(total)
        return total

    def total(self, own: Tensor) -> Tensor:
        """Sum over all processes; the gradient is that of this one's own part."""
        return self.add_up(own) + (own - own.detach()) if self.are_several else own

    def add_up_gradients(self, parameters: Iterable[nn.Parameter], *, counts: bool = True) -> None:
        """Sum each parameter's gradient over the processes whose gradients count; one that none has stays None.

        Gradients are sent in one message per dtype.
        """
        if not self.are_several:
            return
        trained = sorted((one for one in parameters if one.requires_grad), key=lambda one: str(one.dtype))
        for _, group in groupby(trained, key=lambda one: one.dtype):
            some = list(group)
            own = [one.grad if counts else None for one in some]
            gradients = [
                torch.zeros_like(one) if found is None else found for one, found in zip(some, own, strict=True)
            ]
            there = torch.tensor([found is not None for found in own]).to(gradients[0])
            *sums, there = self.add_up(torch.cat([*(one.flatten() for one in gradients), there])).split(
                [*(one.numel() for one in gradients), len(some)]
            )
            for parameter, total, owners in zip(some, sums, there.tolist(), strict=True):
                parameter.grad = total.view_as(parameter) if owners else None

    def from_leader(self, content: bytes = b"") -> bytes:
        """Return the leader's content in every process."""
        if not self.are_several:
            return content
        size = torch.tensor(len(content), device=self.device)
        dist.broadcast(size, 0)
        sent = torch.zeros(int(size), dtype=torch.uint8)
        if self.leads:
            sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        sent = sent.to(self.device)
        dist.broadcast(sent, 0)
        return sent.cpu().numpy().tobytes()

    def of_each(self, content: str) -> list[str]:
        """Return each process's content, in order."""
        if not self.are_several:
            return [content]
        own = torch.tensor(list(content.encode()), dtype=torch.uint8, device=self.device)
        sizes = [torch.tensor(0, device=self.device) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor(len(own), device=self.device))
        longest = max(int(size) for size in sizes)
        said = [own.new_empty(longest) for _ in sizes]
        dist.all_gather(said, F.pad(own, (0, longest - len(own))))
        return [one[: int(size)].cpu().numpy().tobytes().decode() for one, size in zip(said, sizes, strict=True)]

    def check_alike(self, about: Mapping[str, str]) -> None:
        """Refuse to train if any of this differs between a process and the leader."""
        said = [json.loads(one) for one in self.of_each(json.dumps(dict(about)))]
        for rank, other in enumerate(said):
            for what in sorted(said[0].keys() | other.keys()):
                if other.get(what) != said[0].get(what):
                    raise ValueError(
                        f"process {rank} of this training has another {what} than the first; give all the same code, "
                        "data and settings."
                    )

    def rows_to_leader(self, part: np.ndarray, items: int) -> np.ndarray:
        """Collect all parts in order in the leader; the others keep theirs."""
        if not self.are_several:
            return part
        if not self.leads:
            dist.send(torch.from_numpy(part).to(self.device), 0)
            return part
        whole = np.empty((items, *part.shape[1:]), part.dtype)
        for rank in range(self.count):
            rows = self.rows(items, rank)
            if rank:
                received = torch.from_numpy(whole[rows]).to(self.device)
                dist.recv(received, rank)
                part = received.cpu().numpy()
            whole[rows] = part
        return whole

    def seed(self, *numbers: int) -> None:
        """Seed torch's random numbers by these, so that no checkpoint need keep the state of each process."""
        if self.are_several:
            torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1)))


ALONE = Processes()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, processes: Processes, items: int, is_summed: bool) -> Tensor:
        ctx.processes, ctx.rows, ctx.is_summed = processes, processes.rows(items), is_summed
        sizes = [processes.rows(items, rank) for rank in range(processes.count)]
        lengths = [rows.stop - rows.start for rows in sizes]
        padding = (0, 0) * (part.ndim - 1) + (0, max(lengths) - len(part))
        sent = F.pad(part, padding).contiguous()
        received = [torch.empty_like(sent) for _ in lengths]
        dist.all_gather([_as_sent(one) for one in received], _as_sent(sent))
        if not part.is_floating_point():
            ctx.set_materialize_grads(False)
        return torch.cat([one[:length] for one, length in zip(received, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        if gradient is not None:
            gradient = (ctx.processes.add_up(gradient) if ctx.is_summed else gradient)[ctx.rows]
        return gradient, None, None, None


_gathered: Callable[[Tensor, Processes, int, bool], Tensor] = _Gather.apply


def _as_sent(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _lengthened(code: Code, longest: int) -> Code:
    """Pad the code to this many fragments; the added ones are masked."""
    filler = Code(
        code.vectors.new_zeros(1, longest, code.vectors.shape[2]),
        pooled=None if code.pooled is None else code.pooled[:1],
    )
    return concatenate([code, filler])[: len(code)]
