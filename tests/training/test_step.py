"""One training step against the official AOQ step, and against its parts done one by one."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.models import MODELS, build_model
from aoq.models.base import Captions, Images
from aoq.pipeline.config.losses import AdaptiveLoss, OfflineLoss
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities, positive_pairs
from aoq.pipeline.training.batches import Batch, read_batch
from aoq.pipeline.training.drawable import Drawable
from aoq.pipeline.training.sampler import Draw, Sampler
from aoq.pipeline.training.step import forward, make_objective, take_step
from tests.models.test_golden_embeddings import load, our_name
from tests.training.conftest import CPU, SMALL
from tests.training.steps import fresh

OFFQUIN = OfflineLoss(name="offquin")


def official_batch(case):
    def captions(suffix):
        return case[f"in/captions{suffix}"], case[f"in/lengths{suffix}"]

    suffixes = ("", "hn", "hn2")
    longest = max(int(captions(suffix)[1].max()) for suffix in suffixes)
    words = [torch.nn.functional.pad(captions(s)[0], (0, longest - captions(s)[0].shape[1])) for s in suffixes]
    lengths = torch.cat([captions(suffix)[1] for suffix in suffixes])
    images = torch.cat([case[f"in/images{suffix}"] for suffix in suffixes])
    rows = torch.arange(len(case["in/images"]))
    return Batch(Images(images, groups=3), Captions(torch.cat(words), lengths), rows)


@pytest.mark.parametrize("variant", ["coco", "coco_dedup", "f30k", "f30k_dedup"])
def test_equals_the_official_step(golden, variant):
    """Losses, gradients, clipping, Adam and BatchNorm buffers of one whole step.

    The official optimizer holds the captioner's parameters twice, so they are clipped and stepped twice; the
    deduplicated case is what `train` does.
    """
    case = golden(f"aoq_train_step_{variant}")
    config = case.meta["config"]
    model = load(case).train()
    parameters = list(model.parameters())
    if not config["dedupe"]:
        parameters += list(model.captioner.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of the official duplicates
        optimizer = torch.optim.Adam(parameters, lr=config["opt"]["learning_rate"], foreach=False)
    objective = make_objective(AdaptiveLoss(name="adapoffquin", mask_positives=False))
    batch = official_batch(case)

    before = {name: value.clone() for name, value in model.state_dict().items()}
    value, auxiliary, _ = forward(model, batch, objective)
    case.check("out/retrieval_loss", value.total)
    case.check("out/caption_loss", auxiliary)
    (value.total + auxiliary).backward()
    gradients = dict(model.named_parameters())
    for key in case.keys("out/grad/"):
        case.check(key, gradients[our_name(key)].grad.reshape(case[key].shape))
    model.load_state_dict(before)  # forward moved the buffers; the step below moves them again

    figures = take_step(model, optimizer, batch, objective, 2.0)
    assert float(figures["loss"]) == pytest.approx(case["out/total_loss"].item(), abs=1e-3)
    assert float(figures["gradient_norm"]) == pytest.approx(case["out/total_norm"].item(), rel=1e-4)
    clipped = {our_name(key): key for key in case.keys("out/clipped_grad/")}
    after = model.state_dict()
    for key in case.keys("out/after/"):
        name = our_name(key)
        expected = case[key].reshape(after[name].shape)
        if name not in clipped:
            torch.testing.assert_close(after[name], expected, rtol=1e-5, atol=1e-5)
            continue
        case.check(clipped[name], gradients[name].grad.reshape(case[clipped[name]].shape))
        certain = case[clipped[name]].reshape(expected.shape).abs() > 1e-4  # Adam's first step is +-lr elsewhere
        torch.testing.assert_close(after[name][certain], expected[certain], rtol=0, atol=2e-6)


def slow_forward(model, pairs, draw, objective):
    """Each image and caption encoded once, and the scores of the drawn pairs picked."""
    scores = torch.from_numpy(similarity_matrix(model, pairs, CPU))
    anchors, negatives, own = draw.groups
    lists = [
        scores[images[:, 0], captions[:, 1]]
        for images, captions in ((anchors, negatives), (negatives, anchors), (negatives, negatives), (own, own))
    ]
    matrix, positive = scores[anchors[:, 0]][:, anchors[:, 1]], positive_pairs(anchors[:, 0], mask_positives=True)
    return objective.loss(Similarities(matrix, positive, OfflineSimilarities(*lists))).total


@pytest.mark.parametrize("name", MODELS)
def test_one_concatenated_pass_equals_pair_by_pair(pairs, sampler, name):
    model = fresh(name).float().eval()  # eval: no batch statistics
    objective = make_objective(AdaptiveLoss(name="adapoffquin"))
    draw = sampler.draw(np.array([0, 1, 20, 40], dtype=np.int32), np.random.default_rng(3))
    with torch.no_grad():
        value, _, _ = forward(model, read_batch(pairs, Draw(draw.groups)).to(CPU), objective)
        torch.testing.assert_close(value.total, slow_forward(model, pairs, draw, objective), rtol=1e-4, atol=1e-4)


def test_a_batch_of_triples_is_of_true_pairs_and_holds_its_negatives(pairs, sampler):
    captions = np.arange(0, 48, 5, dtype=np.int32)  # ten
    images, texts = sampler.draw_for("triples", captions, np.random.default_rng(3), 0).groups[0].T
    assert len(images) == 9
    np.testing.assert_array_equal(pairs.split.image_of[texts], images)
    np.testing.assert_array_equal(texts[:3], captions[:3])
    _, negatives, _ = sampler.draw(captions[:3], np.random.default_rng(3)).groups
    np.testing.assert_array_equal(texts[3:6], negatives[:, 1])
    np.testing.assert_array_equal(images[6:], negatives[:, 0])
    for few in (1, 2):
        drawn = sampler.draw_for("triples", captions[:few], np.random.default_rng(3), 0)
        assert drawn.groups.shape == (1, 3, 2)


def test_derived_pairs_that_are_true_pairs_are_no_negatives(pairs):
    """Lists of one: nothing else can be drawn for a pair whose offline negatives correspond."""
    split = pairs.split
    i2t, t2i = np.full((len(split.ids), 1), 3), np.zeros((len(split.image_of), 1))  # image 1's first caption; image 0
    i2t[1], t2i[split.image_of == 0] = 0, 1
    t2i[4] = 5  # of one of image 1's captions
    lists = Drawable(i2t.astype(np.int32)), Drawable(t2i.astype(np.int32))
    sampler = Sampler(*lists, split.image_of)
    captions = np.array([0, 3, 4, 9], dtype=np.int32)
    objective = make_objective(AdaptiveLoss(name="adapoffquin"))
    drawn = sampler.draw_for("quintuplet", captions, np.random.default_rng(0), 0)
    assert drawn.corresponding.tolist() == [True, True, False, False]
    kept = Sampler(*lists, split.image_of, resample=False)
    assert not kept.draw_for("quintuplet", captions, np.random.default_rng(0), 0).corresponding.any()

    torch.manual_seed(0)
    model = build_model("vsepp", **SMALL).eval()
    seen = []
    objective = replace(objective, loss=lambda given: seen.append(given) or make_objective(OFFQUIN).loss(given))
    with torch.no_grad():
        forward(model, read_batch(pairs, drawn).to(CPU), objective)
    offline, without = seen[0].offline, [True, True, False, False]
    assert (offline.offline_pair == NO_NEGATIVE).tolist() == (offline.companion_pair == NO_NEGATIVE).tolist() == without
    assert (offline.image_to_caption.abs() <= 1).all()
    assert (offline.caption_to_image.abs() <= 1).all()
