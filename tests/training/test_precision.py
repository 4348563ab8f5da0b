"""A step in bfloat16 beside one in float32, for every model; devices that lack an arithmetic are named."""

from functools import partial

import numpy as np
import pytest
import torch

from aoq.models import MODELS, build_model, naaf
from aoq.pipeline.config.losses import OnlineLoss
from aoq.pipeline.config.training import Training
from aoq.pipeline.embedding import encode_block, model_sides, similarity_matrix
from aoq.pipeline.engine import products_in
from aoq.pipeline.evaluation.retrieval import retrieval_ranks
from aoq.pipeline.search.units import MemoryStore
from aoq.pipeline.training.batches import matched, read_batch
from aoq.pipeline.training.chunks import BatchScores, Cut, check_precision
from aoq.pipeline.training.loop import Run
from aoq.pipeline.training.step import forward, make_objective
from aoq.pipeline.training.trainer import Trainer
from tests.training.conftest import CPU, SMALL

SIZES = {"feature_size": 6, "vocabulary_size": 24, "embedding_size": 32, "word_size": 5}


def step_of(pairs, name, precision):
    torch.manual_seed(0)
    model = build_model(name, **SIZES, **({} if MODELS[name].takes_masks else {"regions": 4}))
    batch = read_batch(pairs, matched(pairs, np.arange(0, 48, 5, dtype=np.int32))).to(CPU)
    objective = make_objective(OnlineLoss(name="sum"))
    value, auxiliary, _ = forward(model.train(), batch, objective, Cut(in_bfloat16=precision == "bfloat16"))
    total = value.total if auxiliary is None else value.total + auxiliary
    total.backward()
    return total.detach(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_in_bfloat16_is_about_one_in_float32(pairs, monkeypatch, name):
    """Compare the sum over negatives: where similarities are rounded, the hardest may be another one.

    Models that attend divide by norms of a few products, which in so small a world may be near zero: rounding codes
    alone turns their gradients.
    """
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)
    (whole, gradients), (rounded, others) = (step_of(pairs, name, precision) for precision in ("float32", "bfloat16"))
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


@pytest.mark.parametrize("name", [name for name in MODELS if not MODELS[name].attends])
def test_vectors_are_encoded_in_bfloat16_by_the_weights_of_their_step_and_compared_in_float32(pairs, name):
    """Within a caller's autocast torch would compare in bfloat16, and keep the rounded weights of the step before."""
    model = build_model(name, **SIZES).eval()
    images, captions, cut = pairs.images(np.arange(8)).to(CPU), pairs.captions(np.arange(8)), Cut(in_bfloat16=True)

    def codes_and_scores():
        scores = BatchScores(model, images, captions, 8, cut)
        codes = scores._images[0][0].vectors, scores._captions[0][0].vectors
        return *codes, scores.matrix(lambda: False), scores.pair_lists([(0, 0)])[0]

    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        one, other, matrix, of_pairs = codes_and_scores()
        model.project.weight.neg_() if hasattr(model, "project") else model.image.project.weight.neg_()
        assert not torch.equal(codes_and_scores()[0], one)
    assert one.dtype == torch.float32
    assert torch.equal(matrix, one @ other.T)
    assert torch.equal(of_pairs, (one * other).sum(1))


def test_a_device_that_lacks_it_is_named(monkeypatch):
    with pytest.raises(ValueError, match=r'precision = "tf32" requires an NVIDIA Ampere or newer GPU, .* on cpu; '):
        check_precision("tf32", CPU)
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    for precision in ("tf32", "bfloat16"):
        with pytest.raises(ValueError, match=rf'precision = "{precision}" requires an NVIDIA Ampere .*cuda:0'):
            check_precision(precision, cuda)
    check_precision("float32", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    check_precision("tf32", cuda)


def arithmetic():
    """All that a caller may have set, but for torch's older settings where the newer contradict them."""
    backends = torch.backends
    places = [backends, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul]
    places += [backends.mkldnn, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    older = []
    for read in (torch.get_float32_matmul_precision, lambda: backends.cudnn.allow_tf32):
        try:
            older.append(read())
        except RuntimeError:
            older.append(None)
    autocasts = [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]
    return *older, torch.get_default_dtype(), autocasts, [place.fp32_precision for place in places]


STATES = {
    "medium": partial(torch.set_float32_matmul_precision, "medium"),
    "float64": partial(torch.set_default_dtype, torch.float64),
    "autocast": partial(torch.set_autocast_enabled, "cpu", True),
    "all in bfloat16": partial(setattr, torch.backends, "fp32_precision", "bf16"),
    "TF32 on GPUs": partial(setattr, torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


def test_what_the_caller_has_set_reaches_no_step(pairs, sampler, tmp_path):
    """The same bits, and each encoder at work in float32: not every CPU has units for what is set here."""

    def train(folder, change):
        folder.mkdir()
        torch.manual_seed(0)
        model, seen = build_model("vsepp", **SMALL), []
        model.project.register_forward_hook(lambda *_: seen.append(arithmetic()))
        schedule = Training(loss=OnlineLoss(name="online"), epochs=1, batch_size=10, learning_rate=1e-2)
        where = {"description": {"name": "vsepp"}, "pairs": pairs, "seed": 5, "run": Run(folder, CPU)}
        trainer, scores = Trainer(models=[model], schedule=schedule, sampler=sampler, **where), []
        change()
        state = arithmetic()

        def validate(models):
            assert arithmetic() == state
            scores.append(similarity_matrix(models[0], pairs, CPU))
            return retrieval_ranks(scores[0], pairs.split.image_of)

        weights = trainer.train(validate)["final_weights_sha256"]
        (table,) = encode_block("captions", 0, 20, model_sides(model, pairs, CPU), MemoryStore())
        assert arithmetic() == state
        return weights, scores[0].tobytes(), table["vector"].to_pylist(), seen

    expected = train(tmp_path / "plain", lambda: None)
    for name, change in STATES.items():
        with products_in("float32"):  # which puts back what is changed
            assert train(tmp_path / name, change) == expected
    assert all(one[0] == "highest" and not one[1] for one in expected[3])
    assert all(one[2:] == (torch.float32, [False, False], ["ieee"] * 9) for one in expected[3])


def test_tf32_is_left_again(monkeypatch):
    for precision, during in (("float32", "highest"), ("bfloat16", "highest"), ("tf32", "high")):
        before = arithmetic()
        with products_in(precision):
            assert arithmetic()[:2] == (during, precision == "tf32")
        assert arithmetic() == before
