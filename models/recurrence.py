"""A GRU for training on a CPU: each weight's gradient is one product over all words, not one per time step."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence


class GRU(nn.GRU):
    """torch's GRU, with the same parameters and results.

    A packed batch on the CPU, one layer, starting from zero, is computed by this file; all else by torch. The
    backward direction is a GRU that reads each caption from its last word to its first.
    """

    def forward(  # type: ignore[override]
        self, words: Tensor | PackedSequence, start: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        if start is None and isinstance(words, PackedSequence) and self._takes(words.data):
            return self._run(words.data, None, words)
        return super().forward(words, start)

    def of_distinct(
        self, vectors: Float[Tensor, "U E"], which: PackedSequence
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Compute `forward` of the packed words `vectors[which]`; what a vector adds to the gates is computed once."""
        if self._takes(vectors):
            return self._run(vectors, which.data, which)
        return self(PackedSequence(vectors[which.data], *which[1:]))

    def _takes(self, words: Tensor) -> bool:
        return (
            words.device.type == "cpu"
            and words.dtype == self.weight_ih_l0.dtype
            and words.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled("cpu")
            and self.num_layers == 1
            and self.bias
        )

    def _run(
        self, vectors: Float[Tensor, "U E"], which: Int[Tensor, " N"] | None, packed: PackedSequence
    ) -> tuple[PackedSequence, Float[Tensor, "directions C D"]]:
        """Compute the states of the words vectors[which], which are packed so, and every caption's last state."""
        sizes = packed.batch_sizes
        mirror, captions = mirrored(sizes), int(sizes[0])
        states = self._direction("l0", vectors, which, sizes, None)
        last = states.index_select(0, mirror[:captions]).unsqueeze(0)
        if self.bidirectional:
            which = mirror if which is None else which[mirror]
            backward = self._direction("l0_reverse", vectors, which, sizes, mirror)
            states, last = torch.cat([states, backward], 1), torch.cat([last, backward[:captions].unsqueeze(0)])
        return PackedSequence(states, *packed[1:]), self.permute_hidden(last, packed.unsorted_indices)

    def _direction(
        self, suffix: str, vectors: Tensor, which: Tensor | None, sizes: Tensor, order: Tensor | None
    ) -> Tensor:
        parameters = [getattr(self, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        return _Recurrence.apply(vectors, which, sizes.tolist(), order, *parameters)  # type: ignore[no-untyped-call]


def mirrored(sizes: Int[Tensor, " W"]) -> Int[Tensor, " N"]:
    """Return the packed word at each place when captions are read from their end.

    >>> mirrored(torch.tensor([3, 2, 1]))  # captions of 3, 2 and 1 words
    tensor([5, 4, 2, 3, 1, 0])
    """
    starts = sizes.cumsum(0) - sizes
    step = torch.arange(len(sizes)).repeat_interleave(sizes)
    caption = torch.arange(len(step)) - starts[step]
    lengths = (sizes.unsqueeze(1) > torch.arange(int(sizes[0]))).sum(0)
    return starts[lengths[caption] - 1 - step] + caption


class _Recurrence(torch.autograd.Function):
    """States h of all packed words, of which the n-th read is vectors[which[n]] (or all in turn).

    States are returned in the order in which words are read, or in `order`, which is its own inverse.

        r = sigmoid(W_ir x + W_hr h + b_r)    n = tanh(W_in x + b_in + r * s)
        z = sigmoid(W_iz x + W_hz h + b_z)    s = W_hn h + b_hn                  h <- n + z * (h - n)

    A row of `gates` is n, r, z, s, where torch's weights have r, z, n: so both the three that words enter and the
    three that states enter are neighbours, and each is one product.
    """

    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, which: Tensor | None, sizes: list[int], order: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        weight_in, weight, bias_in, bias = parameters
        size = weight.shape[1]
        weight_in = weight_in.roll(size, 0)
        both = (bias_in + bias)[: 2 * size]
        gates = torch.cat([bias_in[2 * size :], both, bias[2 * size :]]).repeat(len(vectors), 1)
        gates[:, : 3 * size].addmm_(vectors, weight_in.T)
        gates = gates if which is None else gates.index_select(0, which)
        states = vectors.new_empty(len(gates), size)
        h = vectors.new_zeros(sizes[0], size)
        blocks = [gates[:, size:], gates[:, size : 3 * size], *gates.chunk(4, 1), states]
        for rzs, rz, n, r, z, s, state in zip(*(block.split(sizes) for block in blocks), strict=True):
            h = h[: len(state)]  # sorted by length: who has no word left is at the end
            rzs.addmm_(h, weight.T)
            rz.sigmoid_()
            n.addcmul_(r, s).tanh_()
            h = torch.lerp(n, h, z, out=state)
        ctx.save_for_backward(vectors, which, weight_in, weight, gates, states, order)
        ctx.sizes = sizes
        return states if order is None else states[order]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        vectors, which, weight_in, weight, gates, states, order = ctx.saved_tensors
        sizes, size = ctx.sizes, weight.shape[1]
        d_states = outer[0].clone(memory_format=torch.contiguous_format) if order is None else outer[0][order]
        d_gates = torch.empty_like(gates)
        blocks = [*gates.chunk(4, 1), states, *d_gates.chunk(4, 1), d_gates[:, size:], d_states]
        d_before: list[Tensor | None] = [None, *d_states.split(sizes)[:-1]]
        steps = list(zip(*(block.split(sizes) for block in blocks), d_before, strict=True))
        for n, r, z, s, state, d_n, d_r, d_z, d_s, d_rzs, d_state, d_h in reversed(steps):
            d_tanh = torch.addcmul(d_state, d_state, z, value=-1)
            torch.mul(d_tanh, state - n, out=d_z)  # (1 - z) (state - n) = z (1 - z) (h - n)
            torch.ops.aten.tanh_backward.grad_input(d_tanh, n, grad_input=d_n)
            torch.mul(d_n, r, out=d_s)
            torch.ops.aten.sigmoid_backward.grad_input(d_n * s, r, grad_input=d_r)
            if d_h is not None:
                d_h[: len(state)].addcmul_(d_state, z).addmm_(d_rzs, weight)
        d_nrz, d_rzs = d_gates[:, : 3 * size], d_gates[:, size:]
        before = torch.cat([states[:0], *(h[:rows] for h, rows in zip(states.split(sizes), sizes[1:], strict=False))])
        d_entering, d_bias = d_nrz if which is None else _sums(d_nrz, which, len(vectors)), d_gates.sum(0)
        return (
            d_entering @ weight_in,
            None,
            None,
            None,
            (vectors.T @ d_entering).T.roll(-size, 0),
            (before.T @ d_rzs[sizes[0] :]).T,
            d_bias[: 3 * size].roll(-size),
            d_bias[size:],
        )


def _sums(rows: Float[Tensor, "N D"], which: Int[Tensor, " N"], count: int) -> Float[Tensor, "count D"]:
    """Add up the rows of each number from 0 to `count`; `index_add` takes five times as long."""
    ends = torch.bincount(which, minlength=count).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    return F.embedding_bag(which.argsort(stable=True), rows.contiguous(), starts, mode="sum")
