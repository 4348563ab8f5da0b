"""Sequences of different lengths as a GRU reads them. Lengths are on the CPU, so that no step waits for a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

TOGETHER = 128
"""Sequences that a CPU runs together: at each time step torch's backward pass fills a tensor of the whole input's size,
which should stay in the cache."""


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for it: from pinned memory, in the order of its work."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Packing:
    """The places of N real fragments in their padded sequences, in the order in which a GRU reads them."""

    places: Int[Tensor, " N"]
    sizes: Sequence[Int[Tensor, " _longest"]]
    """By group of sequences: the number of those that have a first, a second, ... fragment; on the CPU."""
    unsorted: Int[Tensor, " items"]
    """The place of each sequence among those sorted by length."""

    @classmethod
    def build(cls, lengths: Int[Tensor, " items"], longest: int, device: torch.device) -> Packing:
        order = lengths.argsort(descending=True, stable=True)
        grid = torch.arange(len(lengths) * longest).view(-1, longest)
        groups = order.split(TOGETHER if device.type == "cpu" else len(order))
        packed = [pack_padded_sequence(grid[rows], lengths[rows], batch_first=True) for rows in groups]
        places = torch.cat([one.data for one in packed])
        return cls(sent(places, device), [one.batch_sizes for one in packed], sent(order.argsort(), device))

    def run(self, recurrence: nn.GRU, read: Float[Tensor, "N size"]) -> tuple[Tensor, Tensor]:
        """Run a GRU over these fragments; return their states, and each sequence's last (directions, items, state)."""
        parts = read.split([int(sizes.sum()) for sizes in self.sizes])
        ran = [recurrence(PackedSequence(part, sizes)) for part, sizes in zip(parts, self.sizes, strict=True)]
        last = torch.cat([last for _, last in ran], dim=1)
        return torch.cat([states.data for states, _ in ran]), last[:, self.unsorted]

    def padded(self, states: Float[Tensor, "N size"], longest: int) -> Float[Tensor, "items longest size"]:
        """Put states in their places, zero elsewhere. Unlike torch's, its gradient takes one pass."""
        rows = len(self.unsorted) * longest
        return states.new_zeros(rows, states.shape[1]).index_copy(0, self.places, states).unflatten(0, (-1, longest))


def run_over(
    recurrence: nn.GRU, fragments: Float[Tensor, "items longest size"], lengths: Int[Tensor, " items"] | None
) -> tuple[Tensor, Tensor]:
    """Run a GRU over sequences whose real fragments come first; all are real without `lengths`.

    Returns the states, zero beyond a length, and the last ones (directions, items, state).
    """
    if lengths is None:
        return recurrence(fragments)
    longest = fragments.shape[1]
    packing = Packing.build(lengths, longest, fragments.device)
    states, last = packing.run(recurrence, fragments.flatten(0, 1)[packing.places])
    return packing.padded(states, longest), last


def ranks(longest: int, lengths: Int[Tensor, " items"]) -> Tensor:
    """Mark the first `lengths` of `longest` places.

    >>> ranks(3, torch.tensor([1, 3]))
    tensor([[ True, False, False],
            [ True,  True,  True]])
    """
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)


def true_places(mask: Tensor) -> Int[Tensor, " N"]:
    """Return the places where a mask on the CPU is True, in flattened order."""
    return mask.flatten().nonzero().squeeze(1)
