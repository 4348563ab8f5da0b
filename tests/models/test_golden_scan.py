"""SCAN and PFAN against numbers of the official codes: every normalisation, aggregation and direction; losses.

PFAN has regions of its own, from packed arrays of blocks and shares, and compares as SCAN does.
"""

from __future__ import annotations

import pytest
import torch

from aoq.models.base import Code
from aoq.models.pfan import PFAN
from aoq.models.scan import SCAN


@pytest.mark.parametrize(
    ("name", "kind"), [("scan_bigru", SCAN), ("scan_unigru", SCAN), ("scan_weightnorm_nonorm", SCAN), ("pfan", PFAN)]
)
def test_scores(golden, official, name, kind):
    case = golden(name)
    config, keys, double_keys = case.meta["config"], [], []
    for entry in config["scores"]:
        found = official(case, {**config["opt"], **entry})
        assert type(found.model) is kind
        key = f"{entry['cross_attn']}/{entry['raw_feature_norm']}/{entry['agg_func']}{entry.get('suffix', '')}"
        keys.append(f"out/scores/{key}")
        case.check(keys[-1], found.matrix())
        case.check(keys[-1], found.model.pair_similarity(*found.pairs()).view_as(case[keys[-1]]))
        if "eval64" in entry:
            double_keys.append(f"out/scores_eval/{key}")
            case.check(double_keys[-1], found.double().matrix())
    assert sorted(keys) == case.keys("out/scores/")
    assert sorted(double_keys) == case.keys("out/scores_eval/")


@pytest.mark.parametrize(("name", "kind"), [("scan_loss", SCAN), ("pfan_loss", PFAN)])
def test_losses_and_gradients(golden, triplet, name, kind):
    case = golden(name)
    words = case["in/cap_emb"]
    mask = torch.arange(words.shape[1]) < case["in/lengths"].unsqueeze(1)
    for variant in case.meta["config"]["variants"]:
        options, key = variant["opt"], variant["name"]
        model = kind(
            feature_size=1,
            vocabulary_size=1,
            embedding_size=words.shape[2],
            word_size=1,
            direction=options["cross_attn"],
            aggregation=options["agg_func"],
            temperature=options["lambda_softmax"],
            temperature_lse=options["lambda_lse"],
        )
        images, captions = (case[f"in/{side}_emb"].clone().requires_grad_() for side in ("img", "cap"))
        loss = triplet(model.similarity(Code(images), Code(captions, mask)), hardest=options["max_violation"])
        case.check(f"out/{key}/loss", loss)
        loss.backward()
        case.check(f"out/{key}/grad/img_emb", images.grad)
        case.check(f"out/{key}/grad/cap_emb", captions.grad)
    assert len(case.keys("out/")) == 3 * len(case.meta["config"]["variants"])
