"""A GRU for training on a CPU: each weight's gradient is one product over all words, not one per time step."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
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
            states, last = self._run(words.data, words.batch_sizes)
            return PackedSequence(states, *words[1:]), self.permute_hidden(last, words.unsorted_indices)
        return super().forward(words, start)

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
        self, words: Float[Tensor, "N E"], sizes: Int[Tensor, " W"]
    ) -> tuple[Float[Tensor, "N states"], Float[Tensor, "directions C D"]]:
        """Compute the states of packed words, `sizes` of them per step, and every caption's last state."""
        mirror, captions = mirrored(sizes), int(sizes[0])
        states = self._direction("l0", words, sizes, None)
        last = states.index_select(0, mirror[:captions])
        if not self.bidirectional:
            return states, last.unsqueeze(0)
        backward = self._direction("l0_reverse", words, sizes, mirror)
        return torch.cat([states, backward], 1), torch.stack([last, backward[:captions]])

    def _direction(self, suffix: str, words: Tensor, sizes: Tensor, order: Tensor | None) -> Tensor:
        parameters = [getattr(self, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        return _Recurrence.apply(words, sizes.tolist(), order, *parameters)  # type: ignore[no-untyped-call]


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
    """States h of all packed words, read in their order or in `order`, which is its own inverse.

        r = sigmoid(W_ir x + W_hr h + b_r)    n = tanh(W_in x + b_in + r * s)
        z = sigmoid(W_iz x + W_hz h + b_z)    s = W_hn h + b_hn                  h <- n + z * (h - n)

    A row of `gates` is n, r, z, s, where torch's weights have r, z, n: so both the three that words enter and the
    three that states enter are neighbours, and each is one product.
    """

    @staticmethod
    def forward(ctx: Any, words: Tensor, sizes: list[int], order: Tensor | None, *parameters: Tensor) -> Tensor:
        weight_in, weight, bias_in, bias = parameters
        size = weight.shape[1]
        words = words if order is None else words[order]
        weight_in = weight_in.roll(size, 0)
        both = (bias_in + bias)[: 2 * size]
        gates = torch.cat([bias_in[2 * size :], both, bias[2 * size :]]).repeat(len(words), 1)
        gates[:, : 3 * size].addmm_(words, weight_in.T)
        states = words.new_empty(len(words), size)
        h = words.new_zeros(sizes[0], size)
        blocks = [gates[:, size:], gates[:, size : 3 * size], *gates.chunk(4, 1), states]
        for rzs, rz, n, r, z, s, state in zip(*(block.split(sizes) for block in blocks), strict=True):
            h = h[: len(state)]  # sorted by length: who has no word left is at the end
            rzs.addmm_(h, weight.T)
            rz.sigmoid_()
            n.addcmul_(r, s).tanh_()
            h = torch.lerp(n, h, z, out=state)
        ctx.save_for_backward(words, weight_in, weight, gates, states, order)
        ctx.sizes = sizes
        return states if order is None else states[order]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        words, weight_in, weight, gates, states, order = ctx.saved_tensors
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
        d_words, d_bias = d_nrz @ weight_in, d_gates.sum(0)
        return (
            d_words if order is None else d_words[order],
            None,
            None,
            (words.T @ d_nrz).T.roll(-size, 0),
            (before.T @ d_rzs[sizes[0] :]).T,
            d_bias[: 3 * size].roll(-size),
            d_bias[size:],
        )
