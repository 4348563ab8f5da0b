"""NAAF against numbers of the official code: at test time, and in training, where every caption has a threshold."""

from __future__ import annotations

import pytest
import torch

from aoq.models.base import Code
from aoq.models.naaf import FEWEST_WORDS, NAAF, Mismatch


@pytest.mark.parametrize("name", ["naaf_basic", "naaf_glove", "naaf_nonorm"])
def test_scores_at_test_time(golden, official, name):
    case = golden(name)
    config, keys = case.meta["config"], []
    for threshold in config["thres_safe"]:
        naaf = official(case, {**config["opt"], "thres_safe": threshold})
        assert type(naaf.model) is NAAF
        keys.append(f"out/scores_test/thres{threshold:g}")
        key = f"out/scores_test_f32/thres{threshold:g}"
        case.check(key, naaf.matrix())
        case.check(key, naaf.model.pair_similarity(*naaf.pairs()).view_as(case[key]))
        case.check(keys[-1], naaf.double().matrix())
    assert sorted(keys) == case.keys("out/scores_test/")


def training_call(case, call):
    """Image and caption embeddings of one batch, and the model in training mode."""
    images, words = (case[f"in/{side}_emb{call}"].clone().requires_grad_() for side in ("img", "cap"))
    mask = torch.arange(words.shape[1]) < case[f"in/lengths{call}"].unsqueeze(1)
    options = case.meta["config"]["opt"]
    sizes = {"feature_size": 1, "vocabulary_size": 1, "embedding_size": words.shape[2], "word_size": 1}
    model = NAAF(**sizes, temperature=options["lambda_softmax"], alpha=options["alpha"]).train()
    return model, Code(images), Code(words, mask)


def test_training_scores_losses_and_gradients(golden, triplet):
    """Each caption scored with the threshold in force when the official code came to it."""
    case = golden("naaf_train")
    for call in range(case.meta["config"]["calls"]):
        model, images, captions = training_call(case, call)
        columns = []
        for i, threshold in enumerate(case[f"out/call{call}/thres_at_caption"]):
            model.threshold = threshold.float()
            columns.append(model.similarity(images, captions[i : i + 1]))
        scores = torch.cat(columns, dim=1)
        case.check(f"out/call{call}/scores", scores)
        loss = triplet(scores, hardest=True)
        case.check(f"out/call{call}/loss", loss)
        loss.backward()
        case.check(f"out/call{call}/grad/img_emb", images.vectors.grad)
        case.check(f"out/call{call}/grad/cap_emb", captions.vectors.grad)


def test_estimates_replayed_by_the_official_rule(golden):
    """Estimate after every caption whose own image ranks first, from all words so far; below 200 words no threshold."""
    case = golden("naaf_train")
    for call in range(case.meta["config"]["calls"]):
        model, images, captions = training_call(case, call)
        prefix, scores = f"out/call{call}", case[f"out/call{call}/scores"]
        in_force = [{key: float(case[f"{prefix}/{key}_at_caption"][0]) for key in ("thres", "thres_safe")}]
        own, other, estimate = [], [], None
        for i in range(len(captions)):
            state = in_force[-1]
            if scores[:, i].argmax() == i:
                words = captions.vectors[i, captions.mask[i]]
                for image, found in ((i, own), (scores[:, i].argmin(), other)):
                    found.extend((words @ images.vectors[image].T).amax(1).tolist())
                if len(own) > FEWEST_WORDS:
                    estimate = Mismatch.estimate(torch.tensor(own), torch.tensor(other))
                    new = {"thres": estimate.boundary(float(model.alpha)), "thres_safe": estimate.safe}
                    state = {key: 0.7 * new[key] + 0.3 * state[key] for key in state}
            in_force.append(dict.fromkeys(state, 0.0) if len(own) < FEWEST_WORDS else state)
        for key in in_force[0]:
            case.check(f"{prefix}/{key}_at_caption", torch.tensor([state[key] for state in in_force[:-1]]))
        names = {"mean_pos": "mu", "stnd_pos": "sigma", "mean_neg": "mu_other", "stnd_neg": "sigma_other"}
        final = in_force[-1] | {theirs: getattr(estimate, ours) for theirs, ours in names.items()}
        assert sorted(f"{prefix}/final/{key}" for key in final) == case.keys(f"{prefix}/final/")
        for key, value in final.items():
            case.check(f"{prefix}/final/{key}", torch.tensor(value).view_as(case[f"{prefix}/final/{key}"]))


def test_observing_a_batch_sees_the_official_samples(golden):
    """Once a step: the statistics of the whole batch are those that the official code ends the batch with."""
    case = golden("naaf_train")
    for call in range(case.meta["config"]["calls"]):
        model, images, captions = training_call(case, call)
        model.observe(images, captions, case[f"out/call{call}/scores"])
        final = [case[f"out/call{call}/final/{key}"] for key in ("mean_pos", "stnd_pos", "mean_neg", "stnd_neg")]
        torch.testing.assert_close(model.statistics, torch.stack(final).float().flatten(), atol=1e-5, rtol=1e-5)
