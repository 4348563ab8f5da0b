"""Co-divide and co-teaching: against the official code, against their definitions, and killed and resumed."""

import itertools
import math
import sys
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.models import build_model, naaf
from aoq.pipeline.config.training import CoTeaching
from aoq.pipeline.data.noise import read_clean_pairs
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.evaluation.retrieval import ensemble, evaluate_similarity
from aoq.pipeline.losses.soft_margin import SOFT_MARGINS
from aoq.pipeline.training import metrics, ncr
from aoq.pipeline.training.checkpoint import load_model
from aoq.pipeline.training.co_teaching import NETWORK_FILES, CoTrainer
from aoq.pipeline.training.ncr import Network, PairBatches, clean_probabilities, read_matched, selected_clean
from tests.training.conftest import CPU, OPTIONS, kill_and_resume, lines

SECTION = CoTeaching(warmup_epochs=1, epochs=2, batch_size=10, learning_rate=1e-2, decay_epochs=(1,))


def test_division_equals_the_official_one(golden):
    case = golden("ncr_split")
    for name in "AB":
        found = clean_probabilities(case[f"in/loss_{name}"].numpy(), seed=0)
        case.check(f"out/prob_{name}", found)
        case.check(f"out/pred_{name}", selected_clean(found, threshold=case.meta["config"]["p_threshold"]))
        other = clean_probabilities(case[f"in/loss_{name}"].numpy(), seed=1)
        np.testing.assert_allclose(other, found, atol=5e-3)
    for name in ("mixed", "allclean"):
        found = selected_clean(case[f"in/given_prob_{name}"].numpy(), threshold=case.meta["config"]["p_threshold"])
        case.check(f"out/split_given_{name}", found)


def test_losses_that_are_all_equal_divide_nothing():
    found = clean_probabilities(np.full(250, 0.4, dtype=np.float32), seed=0)
    assert found.tolist() == [1.0] * 250
    assert np.flatnonzero(~selected_clean(found, threshold=0.5)).tolist() == [0, 1, 2]


def test_an_epoch_sees_each_clean_pair_once_and_the_others_in_turns():
    is_clean = np.random.default_rng(0).random(60) < 0.8
    batches = PairBatches(np.flatnonzero(is_clean), 7, (1, 2, 0, 0))
    clean = [batches[step] for step in range(batches.steps)]
    assert sorted(np.concatenate(clean)) == np.flatnonzero(is_clean).tolist()
    assert {len(rows) for rows in clean[:-1]} == {7}
    assert 2 <= len(clean[-1]) <= 7
    others = PairBatches(np.flatnonzero(~is_clean), 7, (1, 2, 0, 1))
    noisy, turn = [others[step] for step in range(6)], others.steps
    assert turn == -(-int((~is_clean).sum()) // 7)
    assert 1 < turn <= 3
    for first in range(0, 6 - turn + 1, turn):
        assert sorted(np.concatenate(noisy[first : first + turn])) == np.flatnonzero(~is_clean).tolist()
    assert noisy[0].tolist() != noisy[turn].tolist()
    assert clean[0].tolist() != PairBatches(np.flatnonzero(is_clean), 7, (1, 2, 1, 0))[0].tolist()
    assert PairBatches(np.arange(8), 7, (0, 0, 0, 0)).steps == 1  # a single pair is no batch


@pytest.fixture
def network():
    def build(name="vsepp", **settings):
        torch.manual_seed(2)
        model = build_model(name, **OPTIONS[name])
        section = SECTION.model_copy(update=settings)
        return Network(model, torch.optim.Adam(model.parameters(), lr=1e-2), section)

    return build


def losses_by_loops(matrix, rows, margin):
    """Mean violations of every pair's image and caption, and the largest; `margin(i, j, anchor)` of each entry."""
    means, largest = [], 0.0
    for pair in range(len(matrix)):
        others = [other for other in range(len(matrix)) if rows[other] != rows[pair]]
        over = [max(0.0, margin(pair, o, pair) - matrix[pair, pair] + matrix[pair, o]) for o in others]
        under = [max(0.0, margin(o, pair, pair) - matrix[pair, pair] + matrix[o, pair]) for o in others]
        means.append((sum(over) + sum(under)) / len(matrix))
        largest += max(over) + max(under)
    return means, largest


SHARES = {
    "exponential": lambda y: (10**y - 1) / 9,
    "linear": lambda y: y,
    "sin": lambda y: math.sin(math.pi * y - math.pi / 2) / 2 + 0.5,
}


@pytest.mark.parametrize("soft_labels", ["pair", "broadcast"])
@pytest.mark.parametrize("kind", SOFT_MARGINS)
def test_a_step_does_what_the_paper_or_the_released_code_says(network, pairs, soft_labels, kind):
    learner = network(soft_labels=soft_labels, soft_margin=kind)
    rows = np.array([0, 3, 7, 11, 12, 20, 30, 31, 40, 45, 46])
    batch, images = read_matched(pairs, rows).to(CPU), pairs.split.image_of[rows]
    matrix = similarity_matrix(learner.model, pairs, CPU)[images][:, rows].astype(np.float64)
    means, _ = losses_by_loops(matrix, images, lambda i, j, anchor: 0.2)
    assert learner.losses(batch).tolist() == pytest.approx(means, rel=1e-4)
    left = [min(0.2, max(0.0, 0.2 - mean / 2)) for mean in means]
    best = sum(sorted(left)[-2:]) / 2
    predicted = [min(1.0, one / best) for one in left]
    assert learner.labels(batch).tolist() == pytest.approx(predicted, rel=1e-4)
    trust = np.linspace(0.5, 1.0, 11, dtype=np.float32)
    if soft_labels == "pair":
        label = lambda i, j, anchor: trust[anchor] + (1 - trust[anchor]) * predicted[anchor]  # noqa: E731
        noisy_label = lambda i, j, anchor: predicted[anchor]  # noqa: E731
    else:
        label = lambda i, j, anchor: trust[i] + (1 - trust[i]) * predicted[j]  # noqa: E731
        noisy_label = lambda i, j, anchor: predicted[i]  # noqa: E731
    labels, state = learner.labels(batch), deepcopy(learner.model.state_dict())
    _, expected = losses_by_loops(matrix, images, lambda *place: 0.2 * SHARES[kind](label(*place)))
    assert learner.learn_clean(batch, torch.from_numpy(trust))["loss"] == pytest.approx(expected, rel=1e-4)
    learner.model.load_state_dict(state)
    _, expected = losses_by_loops(matrix, images, lambda *place: 0.2 * SHARES[kind](noisy_label(*place)))
    assert learner.learn_noisy(batch, labels) == pytest.approx(expected, rel=1e-4)
    learner.model.load_state_dict(state)
    assert learner.warm_up(batch)["loss"] == pytest.approx(sum(means), rel=1e-4)
    assert any(not torch.equal(state[key], value) for key, value in learner.model.state_dict().items())


def test_doubtful_pairs_teach_neither_captions_nor_thresholds(network, pairs, monkeypatch):
    batch, observed = read_matched(pairs, np.arange(0, 40, 4)).to(CPU), []
    monkeypatch.setattr(naaf.NAAF, "observe", lambda self, images, captions, matrix: observed.append(len(matrix)))
    vsrn, learner = network("vsrn"), network("naaf")
    before = {key: value.clone() for key, value in vsrn.model.captioner.state_dict().items()}
    for one in (vsrn, learner):
        one.learn_noisy(batch, torch.full((10,), 0.5))
    assert all(torch.equal(before[key], value) for key, value in vsrn.model.captioner.state_dict().items())
    assert observed == []
    for one in (vsrn, learner):
        one.learn_clean(batch, torch.ones(10))
    assert not all(torch.equal(before[key], value) for key, value in vsrn.model.captioner.state_dict().items())
    assert observed == [10]


@pytest.fixture
def run_co_teaching(run_loop, pairs):
    wrong = pairs.split.image_of.copy()
    wrong[[1, 9, 22, 31, 40]] = wrong[[9, 22, 31, 40, 1]]
    noisy = replace(pairs, split=replace(pairs.split, image_of=wrong))

    def run(work, name="vsepp", section=SECTION, **given):
        return run_loop(CoTrainer, work, name, networks=2, section=section, pairs=noisy, **given)

    return run


@pytest.mark.parametrize("package", ["sklearn.mixture", "threadpoolctl"])
def test_a_missing_extra_is_named_before_the_warm_up(run_co_teaching, monkeypatch, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'co-teaching needs {package.partition(".")[0]} .*pip install "aoq\[ncr\]"'):
        run_co_teaching(tmp_path / "work")
    assert list((tmp_path / "work").iterdir()) == []


AVERAGED = {"ema": 0.8, "schedule": "cosine", "decay_epochs": (), "warmup_steps": 3, "precision": "bfloat16"}
VARIANTS = {"plain": SECTION, "averages": SECTION.model_copy(update={**AVERAGED, "start_up": "auto"})}


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_and_resumed_ends_at_the_same_weights(run_co_teaching, tmp_path, variant):
    section = VARIANTS[variant]
    whole, reports = run_co_teaching(tmp_path / "whole", section=section)
    # In the second network's warm-up, and in its co-teaching; threads change nothing.
    kill_at = 5 if variant == "plain" else len(reports) - 1
    published = (*NETWORK_FILES, "clean_pairs.parquet")
    kill_and_resume(run_co_teaching, tmp_path, kill_at, whole, published, section=section, workers=2)


def test_both_networks_have_a_pace_after_the_warm_up(run_co_teaching, tmp_path, caplog):
    caplog.set_level("INFO")
    paced = {"start_up": "auto", "warmup_epochs": 4, "epochs": 2, "decay_epochs": ()}
    whole, _ = run_co_teaching(tmp_path, section=SECTION.model_copy(update=paced))
    assert whole["hardness_by_epoch"][:4] == [[0.0, 0.0]] * 4  # the warm-up
    assert len(whole["hardness_by_epoch"]) == 6
    one, other = (f"of hardness {share:.2f} (network" for share in whole["hardness_by_epoch"][-1])
    assert f"epoch 6: online negatives are {one} 1) and {other} 2)" in caplog.text
    assert "epoch 4: online negatives" not in caplog.text
    trained = [line for line in lines(tmp_path) if "loss" in line]
    assert all(("hardness" in line) == (line["loss_name"] == "co_teaching") for line in trained)
    assert all(max(line.get("hardness", 0) for line in trained if line["network"] == number) > 0 for number in (0, 1))


def test_the_best_of_both_is_kept_and_the_log_says_how_pairs_were_divided(run_co_teaching, pairs, tmp_path, caplog):
    result, _ = run_co_teaching(tmp_path)
    models = [load_model(tmp_path / name) for name in NETWORK_FILES]
    scores = [similarity_matrix(model, pairs, CPU) for model in models]
    assert not np.allclose(*scores)
    assert "has collapsed" not in caplog.text
    assert evaluate_similarity(ensemble(scores), pairs.split.image_of) == result["metrics"]
    assert result["best_epoch"] >= SECTION.warmup_epochs
    assert len(result["dev_rsum_by_epoch"]) == 3
    divided = [line for line in lines(tmp_path) if "selected_clean" in line]
    assert [line["epoch"] for line in divided] == [1, 2]
    assert all(0 < share < 1 for line in divided for share in line["selected_clean"])
    trained = [line for line in lines(tmp_path) if "loss" in line]
    parts = {(line["loss_name"], line["network"]) for line in trained}
    assert parts == {*itertools.product(("warmup", "co_teaching"), (0, 1))}
    assert {line["epoch"] for line in trained if "noisy_loss" in line} == {2}
    assert ((found := read_clean_pairs(tmp_path / "clean_pairs.parquet", 48)) >= 0).all()
    assert (found <= 1).all()


def test_each_network_learns_from_what_the_other_holds_clean(run_co_teaching, pairs, monkeypatch, tmp_path):
    """The warm-up uses all pairs; the last epoch also uses pairs that the other network did not select as clean."""
    trusts = [np.where(np.arange(48) % 3 == rest, 0.1, 0.8 + rest / 10).astype(np.float32) for rest in (0, 1)]
    turns = itertools.cycle(trusts)
    monkeypatch.setattr(ncr, "clean_probabilities", lambda losses, seed: next(turns))
    heard = []

    for how in ("warm_up", "learn_clean", "learn_noisy"):
        kept = getattr(Network, how)

        def listen(self, batch, *given, how=how, kept=kept):
            heard.append((how, self, batch.captions.words.tolist(), given))
            return kept(self, batch, *given)

        monkeypatch.setattr(Network, how, listen)
    run_co_teaching(tmp_path)
    one = heard[0][1]
    texts = [pairs.captions(np.array([row])).words[0].tolist() for row in range(48)]
    for how, network, words, given in heard[10:]:  # after the warm-up
        rest = 1 if network is one else 0  # what the other one does not hold clean
        rows = {texts.index([word for word in caption if word]) % 3 for caption in words}
        if how == "learn_noisy":
            assert rows == {rest}
        else:
            assert rest not in rows
            assert given[0].tolist() == pytest.approx([0.8 + rest / 10] * len(words))


def test_collapsed_networks_are_named(run_co_teaching, network, pairs, tmp_path, monkeypatch, caplog):
    flat = network()
    for parameter in flat.model.parameters():
        parameter.data.zero_()
    figures = flat.learn_clean(read_matched(pairs, np.array([0, 3, 6, 9])).to(CPU), torch.tensor([1.0, 0.8, 0.5, 0.1]))
    assert figures["plateau"] == pytest.approx(figures["retrieval_loss"])
    monkeypatch.setattr(metrics, "NEAR", 1e9)  # now everything is near the plateau
    monkeypatch.setattr(metrics, "GAP", 1e9)
    for start_up, advice in ((None, 2), ("auto", 0)):
        caplog.clear()
        section = SECTION.model_copy(update={"start_up": start_up, "epochs": 1})
        run_co_teaching(tmp_path / str(start_up), section=section)
        warnings = [text for text in caplog.messages if "has collapsed" in text]
        assert [text[: text.index(" has")] for text in warnings] == ["epoch 2: network 1", "epoch 2: network 2"]
        assert sum("Try start_up" in text for text in warnings) == advice
