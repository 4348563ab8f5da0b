"""A step in bfloat16 beside one in float32, for every model; devices that lack an arithmetic are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.models import MODELS, build_model, naaf
from aoq.pipeline.arithmetic import products_in
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.embedding_blocks import encode_block, sides_of
from aoq.pipeline.search.store import Memory
from aoq.pipeline.training.precision import in_precision
from aoq.pipeline.training.step import draw_batch, forward, make_objective, read_batch

CPU = torch.device("cpu")


@pytest.fixture
def step_of(pairs, sampler, monkeypatch):
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)

    def step(name, precision, loss):
        torch.manual_seed(0)
        sizes = {"feature_size": 6, "vocabulary_size": 24, "embedding_size": 32, "word_size": 5}
        model = build_model(name, **sizes, **({} if MODELS[name].takes_masks else {"regions": 4}))
        objective = make_objective(LossSection.kind(loss)(name=loss))
        captions = np.arange(0, 48, 5, dtype=np.int32)
        batch = read_batch(pairs, draw_batch(pairs, sampler, objective, captions, np.random.default_rng(0), 0))
        value, auxiliary = forward(in_precision(model, precision, CPU).train(), batch, objective)
        total = value.total if auxiliary is None else value.total + auxiliary
        total.backward()
        return total.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}

    return step


@pytest.mark.parametrize("name", MODELS)
def test_a_step_in_bfloat16_is_about_one_in_float32(step_of, name):
    """Compare the sum over negatives: where similarities are rounded, the hardest may be another one.

    Models that attend divide by norms of a few products, which in so small a world may be near zero: rounding codes
    alone turns their gradients.
    """
    (whole, gradients), (rounded, others) = (step_of(name, precision, "sum") for precision in ("float32", "bfloat16"))
    assert rounded.dtype == torch.float32
    assert rounded != whole
    torch.testing.assert_close(rounded, whole, rtol=2e-2, atol=0)
    assert gradients.keys() == others.keys()
    assert all(gradient.dtype == torch.float32 for gradient in others.values())
    assert all(gradient.isfinite().all() for gradient in others.values())
    if not MODELS[name].attends:
        flat = [torch.cat([gradient.flatten() for gradient in of.values()]) for of in (gradients, others)]
        assert torch.cosine_similarity(*flat, dim=0) > 0.99
        torch.testing.assert_close(flat[1].norm(), flat[0].norm(), rtol=0.1, atol=0)


def test_offline_negatives_are_compared_in_bfloat16_too(step_of):
    whole, rounded = (step_of("scan", precision, "adapoffquin")[0] for precision in ("float32", "bfloat16"))
    torch.testing.assert_close(rounded, whole, rtol=2e-2, atol=0)


def test_a_device_that_lacks_it_is_named(monkeypatch):
    model = build_model("vsepp", feature_size=6, vocabulary_size=24, embedding_size=8, word_size=5)
    with pytest.raises(ValueError, match=r'precision = "tf32" is of NVIDIA GPUs since Ampere, and .* runs on cpu; '):
        in_precision(model, "tf32", CPU)
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    for precision in ("tf32", "bfloat16"):
        with pytest.raises(ValueError, match=rf'precision = "{precision}" is of NVIDIA GPUs since Ampere.*cuda:0'):
            in_precision(model, precision, cuda)
    assert in_precision(model, "float32", cuda) is model
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert in_precision(model, "tf32", cuda) is model


def test_evaluation_and_embedding_leave_tf32_out(pairs, monkeypatch):
    """cuDNN's default is TF32."""
    seen = []
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)

    class Watched(MODELS["vsepp"]):
        def encode_images(self, images):
            seen.append(torch.backends.cudnn.allow_tf32)
            return super().encode_images(images)

    model = Watched(feature_size=6, vocabulary_size=24, embedding_size=8, word_size=5)
    similarity_matrix(model, pairs, CPU)
    encode_block("images", 0, 2, sides_of(model, pairs, CPU), Memory())
    assert seen == [False, False]
    assert torch.backends.cudnn.allow_tf32


def test_tf32_is_left_again():
    before = torch.get_float32_matmul_precision()
    for precision, during in (("float32", before), ("bfloat16", before), ("tf32", "high")):
        with products_in(precision):
            assert torch.get_float32_matmul_precision() == during
        assert torch.get_float32_matmul_precision() == before
