"""One side's vectors for a device: all there, or moved block by block out of host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from aoq.pipeline.search.brute_force import tensor_of
from aoq.pipeline.search.device.arithmetic import Norms, Precision, rounded
from aoq.pipeline.search.problem import BLOCK, blocks

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Vectors:
    """Vectors in host memory, their norms on the device, and where there is room the vectors themselves."""

    given: Float32[np.ndarray, "items D"]
    precision: Precision
    norms: Float64[Tensor, " items"]
    largest: Norms
    resident: Float32[Tensor, "items D"] | None = None
    near: Float[Tensor, "items D"] | None = None

    @classmethod
    def load(
        cls, given: Float32[np.ndarray, "items D"], precision: Precision, device: torch.device, *, resident: bool
    ) -> Vectors:
        """Move all blocks to the device once, for the norms; `resident` ones stay."""
        count, left = len(given), torch.zeros((), dtype=torch.float64, device=device)
        norms = torch.empty(count, dtype=torch.float64, device=device)
        kept = near = torch.empty(given.shape, device=device) if resident else None
        if kept is not None and precision != "float32":
            near = torch.empty_like(kept, dtype=torch.bfloat16 if precision == "bfloat16" else torch.float32)
        ranges = blocks(count, BLOCK)
        for (start, stop), part in zip(ranges, read_ahead(given, ranges, device), strict=True):
            rough = rounded(part, precision)
            norms[start:stop] = part.double().square().sum(1).sqrt()
            left = torch.maximum(left, (part.double() - rough.double()).square().sum(1).max())
            if kept is not None and near is not None:
                kept[start:stop], near[start:stop] = part, rough
        largest = Norms(float(norms.max()), float(left.sqrt()))
        return cls(given, precision, norms, largest, kept, near)

    @property
    def device(self) -> torch.device:
        return self.norms.device

    def rows(self, ids: Int64[Tensor, " some"]) -> Float32[Tensor, "some D"]:
        """Gather some vectors."""
        if self.resident is not None:
            return self.resident[ids]
        return torch.from_numpy(self.given[ids.cpu().numpy()]).to(self.device)

    def rounded(self, ranges: Ranges) -> Iterator[Float[Tensor, "block D"]]:
        """Rounded blocks, one after the other."""
        if self.near is not None:
            return (self.near[start:stop] for start, stop in ranges)
        return (rounded(part, self.precision) for part in read_ahead(self.given, ranges, self.device))


def bytes_on_device(count: int, dimensions: int, precision: Precision) -> int:
    """Bytes of resident vectors: as given and, unless they are multiplied so, rounded."""
    return count * dimensions * {"bfloat16": 6, "tf32": 8, "float32": 4}[precision]


def read_ahead(
    given: Float32[np.ndarray, "items D"], ranges: Ranges, device: torch.device
) -> Iterator[Float32[Tensor, "block D"]]:
    """Move blocks to the device: the next is read, and copied by a stream of its own, while one is worked on."""
    copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def move(start: int, stop: int) -> tuple[Tensor, torch.cuda.Event | None]:
        part = tensor_of(np.ascontiguousarray(given[start:stop]))
        if copies is None:
            return part, None
        with torch.cuda.stream(copies):
            return part.pin_memory().to(device, non_blocking=True), copies.record_event()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(move, *ranges[0])
        for number in range(len(ranges)):
            part, copied = waiting.result()
            if number + 1 < len(ranges):
                waiting = pool.submit(move, *ranges[number + 1])
            if copied is not None:
                computing = torch.cuda.current_stream(device)
                computing.wait_event(copied)
                part.record_stream(computing)  # its memory is not used again before the computation is done
            yield part
