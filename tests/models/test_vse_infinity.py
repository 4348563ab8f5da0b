"""VSE∞'s pooling against its definition as loops, and what size augmentation leaves of regions and words."""

import math

import pytest
import torch
from torch.testing import assert_close

from aoq.models.base import Captions, Images
from aoq.models.vse_infinity import GPO
from tests.models.conftest import VOCABULARY, Build, random_code


def model_with(**options):
    return Build("vse_infinity", options)()


@pytest.fixture
def model():
    return model_with()


def defined_caption(model, words):
    """l2(GPO(mean of both directions' states)), without padding."""
    states = torch.nn.GRU.forward(model.text.recurrence, model.text.embedding(words).unsqueeze(0))[0][0]
    pooled = model.pool_words((states.chunk(2, dim=1)[0] + states.chunk(2, dim=1)[1]).unsqueeze(0) / 2, None)[0]
    return pooled / pooled.norm()


def test_in_training_a_share_of_the_regions_is_left_out(model, world):
    """Regions are left out as if they were masked; BatchNorm's statistics do not see them either."""
    images, _ = world(images=40)
    torch.manual_seed(7)
    kept = torch.rand(40, 6) >= 0.2
    assert 0.1 < float((~kept).float().mean()) < 0.3
    plain = model_with(size_augmentation=0.0).train()
    expected = plain.encode_images(Images(images.features, kept))
    torch.manual_seed(7)
    assert_close(model.train().encode_images(images).vectors, expected.vectors)
    assert_close(list(model.buffers()), list(plain.buffers()))


def test_in_training_a_share_of_the_words_is_left_out(model, world):
    _, captions = world(lengths=(4, 1, 7, 2, 4) * 8)
    torch.manual_seed(7)
    kept = torch.rand(40, 7) >= 0.2
    vectors = []
    for words, length, stays in zip(captions.words, captions.lengths.tolist(), kept, strict=True):
        left = [word for word, stay in zip(words[:length], stays[:length], strict=True) if stay] or list(words[:length])
        vectors.append(defined_caption(model, torch.stack(left)))
    torch.manual_seed(7)
    assert_close(model.train().encode_captions(captions).vectors, torch.stack(vectors), atol=1e-5, rtol=1e-5)


def test_as_in_the_released_code_words_are_masked_replaced_or_left_out(monkeypatch):
    model, seen = model_with(augment_words="mask"), []
    assert model.text.embedding.num_embeddings == VOCABULARY + 1
    monkeypatch.setattr(model.text, "states", lambda captions: seen.append(captions) or (torch.zeros(1, 1, 8), None))
    torch.manual_seed(0)
    before = Captions(torch.full((3000, 20), 5), torch.full((3000,), 20))
    model.train().encode_captions(before)
    (after,) = seen
    real = torch.arange(20) < after.lengths.unsqueeze(1)
    words, count = after.words[real], 3000 * 20
    shares = {
        "left out": 1 - len(words) / count,
        "masked": float((words == VOCABULARY).sum()) / count,
        "replaced": float(((words != 5) & (words != VOCABULARY)).sum()) / count,
    }
    assert shares == pytest.approx({"left out": 0.08, "masked": 0.1, "replaced": 0.02 * 29 / 30}, abs=0.005)
    assert len(words.unique()) == VOCABULARY + 1
    assert (before.words == 5).all()
    model.eval().encode_captions(before)
    assert seen[1] is before


def code_of(position, size):
    """(sin(w_0 k), cos(w_0 k), sin(w_1 k), ...) with w_j = 1 / 10000^(2j / size)."""
    waves = (position / 10000 ** (2 * j / size) for j in range(size // 2))
    return [wave(angle) for angle in waves for wave in (math.sin, math.cos)]


def defined_weights(gpo, length):
    """theta_1, ..., theta_N: a softmax over positions of the mean of both directions, through one layer."""
    codes = torch.tensor([code_of(k, gpo.position_size) for k in range(length)], dtype=torch.float64)
    states = gpo.recurrence(codes.unsqueeze(0))[0][0].unflatten(1, (2, -1)).mean(1)
    scores = [gpo.score.weight[0] @ state / 0.1 for state in states]
    exponentials = [score.exp() for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def defined(gpo, fragments, mask):
    """Item by item and dimension by dimension: the k-th largest value times theta_k, summed."""
    rows = []
    for item, real in zip(fragments, mask, strict=True):
        columns = [sorted(column, reverse=True) for column in item[real].T]
        weights = defined_weights(gpo, len(item[real]))
        rows.append(torch.stack([sum(w * v for w, v in zip(weights, c, strict=True)) for c in columns]))
    return torch.stack(rows)


def test_pooling_and_its_gradients_are_those_of_the_definition():
    torch.manual_seed(0)
    gpo, code = GPO(6, 4).double(), random_code(1, 6, 7)
    mask = code.mask
    assert len(mask.sum(1).unique()) > 2
    gradients = []
    for function in (lambda x: gpo(x, mask), lambda x: defined(gpo, x, mask)):
        leaf = code.vectors.clone().requires_grad_()
        result = function(leaf)
        weighed = result * torch.arange(1.0, result.numel() + 1).view_as(result)
        gradients.append((result, *torch.autograd.grad(weighed.sum(), [leaf, *gpo.parameters()])))
    assert_close(gradients[0], gradients[1], atol=1e-9, rtol=1e-7)
