"""Retrieval metrics against the official evaluation and their definition, of any array."""

import tracemalloc

import jaxtyping
import numpy as np
import pytest
import torch

from aoq.pipeline.evaluation import retrieval
from aoq.pipeline.evaluation.evaluate import recalls
from aoq.pipeline.evaluation.retrieval import (
    cross_retrieval_ranks,
    ensemble,
    evaluate_similarity,
    open_similarity,
    retrieval_ranks,
    summarise,
)

METRICS = ["r1", "r5", "r10", "medr", "meanr"]


def pairing(similarity):
    images, captions = similarity.shape
    return np.repeat(np.arange(images), captions // images)


def check_direction(case, prefix, ranks, metrics):
    for direction in ("i2t", "t2i"):
        case.check(f"{prefix}{direction}/metrics", np.array([metrics[f"{direction}_{name}"] for name in METRICS]))
        key = f"{prefix}{direction}/ranks"
        case.check(key, getattr(ranks, direction).astype(case[key].numpy().dtype))


@pytest.mark.parametrize("name", ["small_1cap", "small_5cap", "mid_1cap", "mid_5cap"])
def test_equals_official_evaluation(golden, name):
    case = golden(f"eval_sims_{name}")
    similarity = case["in/sims"].numpy()
    ranks = retrieval_ranks(similarity, pairing(similarity))
    metrics = summarise(ranks)
    check_direction(case, "out/", ranks, metrics)
    case.check("out/rsum", np.float64(metrics["rsum"]).reshape(case["out/rsum"].shape))


def test_equals_official_evaluation_of_embeddings_and_ensembles(golden):
    case = golden("eval_emb")
    both = [(case[f"in/img_embs{suffix}"].numpy() @ case[f"in/cap_embs{suffix}"].numpy().T) for suffix in ("", "2")]
    images, captions = case["in/img_embs"].numpy(), case["in/cap_embs"].numpy()
    order = -np.sqrt((np.maximum(captions[None] - images[:, None], 0) ** 2).sum(axis=2))
    for prefix, similarity in [("cosine", both[0]), ("ensemble", ensemble(both)), ("order", order)]:
        ranks = retrieval_ranks(similarity, pairing(similarity))
        check_direction(case, f"out/{prefix}/", ranks, summarise(ranks))


def test_equals_official_five_folds(golden):
    case = golden("eval_fold5")
    folds = case["in/sims"].numpy()
    count, images, captions = folds.shape
    whole = np.full((count * images, count * captions), -9.0, dtype=np.float32)
    for fold, similarity in enumerate(folds):
        whole[fold * images : (fold + 1) * images, fold * captions : (fold + 1) * captions] = similarity
    metrics = evaluate_similarity(whole, pairing(whole), folds=count)
    mean = case["out/mean"].numpy()
    ours = [metrics[f"{direction}_{name}"] for direction in ("i2t", "t2i") for name in METRICS]
    np.testing.assert_allclose(ours, mean[:10], atol=1e-9)
    assert metrics["rsum"] == pytest.approx(mean[12], abs=1e-9)


def slow_ranks(similarity, is_right):
    """Wrong candidates at least as similar as the best right one, which stand before it; -1 without a right one."""
    ranks = []
    for scores, right in zip(similarity, is_right, strict=True):
        best = max(scores[right], default=np.inf)
        ranks.append(sum((scores >= best) & ~right) if right.any() else -1)
    return ranks


@pytest.mark.parametrize("has_copies", [False, True])
def test_any_pairing_with_ties_equals_the_definition(monkeypatch, has_copies):
    """With copies, images of one number are each a right answer to the others' captions."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr("aoq.pipeline.evaluation.retrieval._BLOCK_BYTES", 200)
    for _ in range(50):
        images = int(rng.integers(1, 8))
        image_of, copies = rng.integers(0, images, 9), rng.integers(0, 4, images)
        same = copies if has_copies else np.arange(images)
        is_right = same[:, None] == same[image_of]
        similarity = rng.integers(0, 4, is_right.shape).astype(np.float32)
        ranks = retrieval_ranks(similarity, image_of, copies if has_copies else None)
        i2t = slow_ranks(similarity, is_right)
        assert (ranks.i2t.tolist(), ranks.t2i.tolist()) == (i2t, slow_ranks(similarity.T, is_right.T))
        assert summarise(ranks)["i2t_r5"] == pytest.approx(100 * np.mean([rank < 5 for rank in i2t if rank >= 0]))


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_similarities_are_an_error(broken):
    similarity = np.zeros((3, 3))
    for image in (2, 1):
        similarity[image, 2] = broken
        with pytest.raises(ValueError, match=f"image {image} and caption 2"):
            retrieval_ranks(similarity, np.arange(3))


def test_folds_members_and_captions_must_fit(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is for users
    for folds in (2, 0, -3):
        with pytest.raises(ValueError, match=f"3 images do not divide into {folds} folds"):
            evaluate_similarity(np.zeros((3, 3)), np.arange(3), folds=folds)
    for captions in (2, 4):
        with pytest.raises(ValueError, match=f"the similarities have 3 columns, but {captions} captions have an image"):
            evaluate_similarity(np.eye(3), np.arange(captions) % 3)
    with pytest.raises(ValueError, match="same pairs"):
        ensemble([np.zeros((2, 2)), np.zeros((2, 3))])


def test_a_matrix_on_disk_is_not_read_whole_and_one_of_another_split_is_refused(tmp_path, monkeypatch):
    np.save(tmp_path / "similarity.npy", np.random.default_rng(0).random((500, 2000), dtype=np.float32))
    with pytest.raises(ValueError, match=r"has float32 of shape \(500, 2000\), but the split has 5 images"):
        open_similarity(tmp_path / "similarity.npy", 5, 2000)
    similarity = open_similarity(tmp_path / "similarity.npy", 500, 2000)
    monkeypatch.setattr(retrieval, "_BLOCK_BYTES", similarity.nbytes // 50)
    tracemalloc.start()
    evaluate_similarity(similarity, np.arange(2000) // 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < similarity.nbytes / 4


def slow_cross_ranks(similarity, image_of, identity=None):
    found = []
    images, captions = similarity.shape
    same = np.arange(images) if identity is None else identity
    for caption, image in enumerate(image_of):
        score = similarity[image, caption]
        other_images = [other for other in range(images) if same[other] != same[image]]
        other_captions = [other for other in range(captions) if same[image_of[other]] != same[image]]
        among_images = 1 + sum(similarity[other, caption] >= score for other in other_images)
        among_captions = 1 + sum(similarity[image, other] >= score for other in other_captions)
        weight = len(other_captions) / len(other_images)
        found.append(max(weight * (among_images - 1) + 1, among_captions))
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_any_pairing_and_ties(seed):
    rng = np.random.default_rng(seed)
    image_of = rng.permutation(np.concatenate([np.arange(7), rng.integers(0, 7, 12)]))
    similarity = rng.integers(0, 6, (7, len(image_of))) / 4
    np.testing.assert_allclose(cross_retrieval_ranks(similarity, image_of), slow_cross_ranks(similarity, image_of))
    copies = rng.integers(0, 3, 7)
    found = cross_retrieval_ranks(similarity, image_of, copies)
    np.testing.assert_allclose(found, slow_cross_ranks(similarity, image_of, copies))
    assert (found <= cross_retrieval_ranks(similarity, image_of)).any()


def test_tensors_keep_their_precision():
    given = 1 + np.random.default_rng(0).normal(size=(20, 60)) * 1e-9, np.arange(60) // 3
    assert recalls(*map(torch.from_numpy, given)) == recalls(*given) == evaluate_similarity(*given)


def test_a_caption_of_no_image_is_refused():
    with pytest.raises(ValueError, match="caption 0 belongs to image -1, but there are images 0 to 1"):
        recalls(np.eye(2), np.array([-1, 1]))
    with pytest.raises(ValueError, match="the images of fold 2 of 2 have no caption"):
        recalls(np.eye(4, 2), np.array([0, 1]), folds=2)
