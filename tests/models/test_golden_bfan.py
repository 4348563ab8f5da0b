"""BFAN against numbers of the official code, and AOQ's loss on BFAN's similarities against AOQ's own."""

from __future__ import annotations

import pytest
import torch

from aoq.models.base import Code
from aoq.models.bfan import BFAN
from aoq.pipeline.losses.aoq import adap_off_quin
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities, positive_pairs

IMAGES = ("im", "imhnoff", "imhnoff2")
CAPTIONS = {"s": "s_l", "shnoff": "s_lhnoff", "shnoff2": "s_lhnoff2"}
LOSSES = [f"{focal}_{kind}" for focal in ("equal", "prob") for kind in ("inactive", "mixed", "random")]


def scorer(options, size):
    """The model of the official options, for codes of this size."""
    sizes = {"feature_size": 1, "vocabulary_size": 1, "embedding_size": size, "word_size": 1}
    return BFAN(**sizes, focal=options["focal_type"], temperature=options["lambda_softmax"])


def words_of(vectors, lengths):
    return Code(vectors, torch.arange(vectors.shape[1]) < lengths.unsqueeze(1))


def test_scores(golden, official):
    case = golden("bfan")
    kinds = [key.removeprefix("out/scores/") for key in case.keys("out/scores/")]
    assert len(kinds) == 2
    for kind in kinds:
        bfan = official(case, {**case.meta["config"]["opt"], "focal_type": kind})
        assert type(bfan.model) is BFAN
        case.check(f"out/scores/{kind}", bfan.matrix())
        pairs = bfan.model.pair_block(*bfan.pairs())
        for direction in ("t2i", "i2t"):
            expected = case[f"out/scores_{direction}/{kind}"]
            case.check(f"out/scores_{direction}/{kind}", bfan.model.compare_in(pairs, direction).view_as(expected))
        case.check(f"out/scores_eval/{kind}", bfan.double().matrix())


def test_losses_and_gradients(golden, triplet):
    case = golden("bfan_loss")
    for variant in case.meta["config"]["variants"]:
        options, name = variant["opt"], variant["name"]
        images, captions = (case[f"in/{side}_emb"].clone().requires_grad_() for side in ("img", "cap"))
        model = scorer(options, images.shape[2])
        similarity = model.similarity(Code(images), words_of(captions, case["in/lengths"]))
        loss = triplet(similarity, hardest=options["max_violation"])
        case.check(f"out/{name}/loss", loss)
        loss.backward()
        case.check(f"out/{name}/grad/img_emb", images.grad)
        case.check(f"out/{name}/grad/cap_emb", captions.grad)
    assert len(case.keys("out/")) == 3 * len(case.meta["config"]["variants"])


@pytest.mark.parametrize("name", LOSSES)
def test_the_aoq_loss_on_bfan(golden, name):
    """The matrix of anchors, four lists of pairs, and gradients of all six inputs."""
    case = golden(f"aoq_bfan_loss_{name}")
    inputs = {key: case[f"in/{key}"].clone().requires_grad_() for key in (*IMAGES, *CAPTIONS)}
    codes = {key: Code(inputs[key]) for key in IMAGES}
    codes |= {key: words_of(inputs[key], case[f"in/{lengths}"]) for key, lengths in CAPTIONS.items()}
    model = scorer(case.meta["config"]["opt"], inputs["im"].shape[2])
    matrix = model.similarity(codes["im"], codes["s"])
    lists = {
        "i2t_off": ("im", "shnoff"),
        "t2i_off": ("imhnoff", "s"),
        "off_off": ("imhnoff", "shnoff"),
        "off2_off2": ("imhnoff2", "shnoff2"),
    }
    offline = {key: model.pair_similarity(codes[i], codes[c]) for key, (i, c) in lists.items()}
    case.check("out/inter/scores", matrix)
    for key, similarity in offline.items():
        case.check(f"out/inter/{key}", similarity)
    diagonal = positive_pairs(torch.arange(len(matrix)), mask_positives=False)
    numbers = case.meta["config"]["loss"]
    loss = adap_off_quin(
        Similarities(matrix, diagonal, OfflineSimilarities(*offline.values())),
        margin_online=numbers["marginonline"],
        margin_offline=numbers["marginoffline"],
        alpha=numbers["alpha"],
        beta=numbers["beta"],
    ).total
    case.check("out/loss", loss)
    loss.backward()
    for key, leaf in inputs.items():
        case.check(f"out/grad/{key}", leaf.grad)
