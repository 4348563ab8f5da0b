"""The GRU against torch's: outputs, last states and every gradient, on ragged batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from aoq.models.base import Captions
from aoq.models.recurrence import GRU, mirrored
from aoq.models.text import TextEncoder

LENGTHS = [(4, 1, 7, 2, 4), (1, 1, 1), (3,), (1,), (2, 9, 9, 5, 1, 6, 6), (3, 3)]


@pytest.fixture(params=[False, True], ids=["uni", "bi"])
def grus(request, generator):
    """Ours and torch's, of the same weights, in float64."""
    ours, torchs = (cls(3, 5, batch_first=True, bidirectional=request.param).double() for cls in (GRU, nn.GRU))
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.uniform_(-1, 1, generator=generator)
    torchs.load_state_dict(ours.state_dict())
    return ours, torchs


def words_of(lengths, generator):
    words = torch.randn(len(lengths), max(lengths), 3, generator=generator, dtype=torch.double)
    return words.requires_grad_()


def pack(words, lengths):
    return pack_padded_sequence(words, torch.tensor(lengths), batch_first=True, enforce_sorted=False)


def results(gru, words, lengths):
    """Padded outputs, last states, and the gradients of an uneven sum of both."""
    packed, last = gru(pack(words, lengths))
    states = pad_packed_sequence(packed, batch_first=True)[0]
    wave = [torch.arange(value.numel(), dtype=value.dtype).sin().view_as(value) for value in (states, last)]
    total = (states * wave[0]).sum() + (last * wave[1]).sum()
    return [states, last, *torch.autograd.grad(total, [words, *gru.parameters()])]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_equals_torch_on_ragged_batches(grus, generator, lengths):
    words = words_of(lengths, generator)
    ours, torchs = (results(gru, words, lengths) for gru in grus)
    for actual, expected in zip(ours, torchs, strict=True):
        assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_equals_torch_in_single_precision(grus, generator):
    words = words_of(LENGTHS[0], generator).detach().float().requires_grad_()
    ours, torchs = (results(gru.float(), words, LENGTHS[0]) for gru in grus)
    for actual, expected in zip(ours, torchs, strict=True):
        assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_takes_its_own_way(grus, generator, monkeypatch):
    """The tests above compare two implementations, not torch's with itself."""
    monkeypatch.setattr(nn.GRU, "forward", lambda *_: pytest.fail("torch's GRU ran"))
    grus[0](pack(words_of((2, 3), generator), (2, 3)))


def test_gradients_equal_finite_differences(grus, generator):
    ours, _ = grus
    lengths, words = (2, 4, 1), words_of((2, 4, 1), generator)
    names = [name for name, _ in ours.named_parameters()]

    def run(words, *parameters):
        named = dict(zip(names, parameters, strict=True))
        packed, last = torch.func.functional_call(ours, named, (pack(words, lengths),))
        return packed.data, last

    assert torch.autograd.gradcheck(run, (words, *ours.parameters()))


def test_two_runs_give_the_same_bits(grus, generator):
    gru = grus[0].float()
    words = words_of(LENGTHS[4], generator).detach().float().requires_grad_()
    first, second = (results(gru, words, LENGTHS[4]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_gradients_do_not_change_values(grus, generator):
    packed = pack(words_of(LENGTHS[0], generator), LENGTHS[0])
    states, last = grus[0](packed)
    with torch.no_grad():
        states_without, last_without = grus[0](packed)
    assert torch.equal(states.data, states_without.data)
    assert torch.equal(last, last_without)


def test_a_second_backward_pass_adds_the_same_gradient(grus, generator):
    words = words_of((2, 3), generator)
    total = grus[0](pack(words, (2, 3)))[1].sum()
    first, second = (torch.autograd.grad(total, words, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_weights_are_those_of_torch(grus):
    ours, torchs = (gru.state_dict() for gru in grus)
    assert [(name, value.shape) for name, value in ours.items()] == [(n, v.shape) for n, v in torchs.items()]


@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bias": False}, {"num_layers": 2, "bidirectional": True}])
def test_other_options_are_left_to_torch(options, generator):
    ours, torchs = (cls(3, 5, batch_first=True, **options).double() for cls in (GRU, nn.GRU))
    torchs.load_state_dict(ours.state_dict())
    packed = pack(words_of((3, 2), generator), (3, 2))
    assert torch.equal(ours(packed)[0].data, torchs(packed)[0].data)


def test_a_start_or_a_padded_batch_is_left_to_torch(grus, generator):
    words = words_of((2, 2), generator)
    start = torch.randn(2 if grus[0].bidirectional else 1, 2, 5, generator=generator, dtype=torch.double)
    for arguments in [(words,), (words, start), (pack(words, (2, 2)), start)]:
        ours, torchs = (gru(*arguments)[1] for gru in grus)
        assert torch.equal(ours, torchs)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_words_of_few_vectors_equal_words_of_their_own(grus, generator, lengths):
    """Torch's GRU reads each word; ours the vectors, of which the last two may be nobody's."""
    vectors = torch.randn(6, 3, generator=generator, dtype=torch.double).requires_grad_()
    which = pack(torch.randint(0, 4, (len(lengths), max(lengths)), generator=generator), lengths)
    found = []
    for gru, read in zip(grus, (grus[0].of_distinct, None), strict=True):
        if read is None:
            packed, last = gru(PackedSequence(vectors[which.data], *which[1:]))
        else:
            packed, last = read(vectors, which)
        wave = [torch.arange(value.numel(), dtype=value.dtype).sin().view_as(value) for value in (packed.data, last)]
        total = (packed.data * wave[0]).sum() + (last * wave[1]).sum()
        found.append([packed.data, last, *torch.autograd.grad(total, [vectors, *gru.parameters()])])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_the_encoder_reads_each_word_of_the_language_once(generator, monkeypatch):
    """But with dropout, where each place has a vector of its own."""
    encoder, seen = TextEncoder(20, word_size=3, embedding_size=5, bidirectional=True, dropout=0.5), []
    encoder.embedding.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    captions = Captions(torch.tensor([[1, 2, 1, 3], [2, 2, 0, 0]]), torch.tensor([4, 2]))
    encoder.last(captions)
    encoder.eval().last(captions)
    assert seen == [6, 3]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_mirroring_turns_each_caption_around(lengths):
    rows = [list(range(10 * caption, 10 * caption + length)) for caption, length in enumerate(lengths)]
    forward, turned = (
        pack(nn.utils.rnn.pad_sequence([torch.tensor(row) for row in some], batch_first=True), lengths)
        for some in (rows, [row[::-1] for row in rows])
    )
    assert torch.equal(forward.data[mirrored(forward.batch_sizes)], turned.data)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_text_encoder_equals_one_caption_at_a_time(lengths, bidirectional, generator):
    """Unsorted and with more padding than needed, against torch's GRU on each caption alone."""
    encoder = TextEncoder(20, word_size=3, embedding_size=5, bidirectional=bidirectional)
    torchs = nn.GRU(3, 5, batch_first=True, bidirectional=bidirectional)
    torchs.load_state_dict(encoder.recurrence.state_dict())
    words = torch.randint(1, 20, (len(lengths), max(lengths) + 2), generator=generator)
    captions = Captions(words, torch.tensor(lengths))
    states, mask = encoder.states(captions)
    last = encoder.last(captions)
    assert mask.sum(1).tolist() == list(lengths)
    assert states.shape[1] == max(lengths)
    assert not states[~mask].any()
    for row, length in enumerate(lengths):
        alone, final = torchs(encoder.embedding(words[row : row + 1, :length]))
        assert_close(states[row, :length], alone[0].unflatten(1, (-1, 5)).mean(1), rtol=1e-5, atol=1e-6)
        assert_close(last[row], final[:, 0].mean(0), rtol=1e-5, atol=1e-6)


def test_packing_is_kept(grus, generator):
    given = pack(words_of(LENGTHS[0], generator), LENGTHS[0])
    packed, _ = grus[0](given)
    assert isinstance(packed, PackedSequence)
    assert all(torch.equal(a, b) for a, b in zip(packed[1:], given[1:], strict=True))
