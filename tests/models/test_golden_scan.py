"""SCAN against numbers of the official code."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from models import SCAN, build_model
from models.base import Captions, Code, Images
from models.official import from_official


def supported(entries):
    return [
        entry
        for entry in entries
        if entry["raw_feature_norm"] == "clipped_l2norm" and entry["agg_func"] in ("Mean", "LogSumExp")
    ]


@pytest.mark.parametrize("name", ["scan_bigru"])
def test_scan(golden, name):
    case = golden(name)
    entries = supported(case.meta["config"]["scores"])
    assert len({(entry["cross_attn"], entry["agg_func"]) for entry in entries}) == 4
    for entry in entries:
        official = from_official([case.weights("img_enc"), case.weights("txt_enc")], entry)
        assert official.name == "scan"
        model = build_model(official.name, **official.options).eval()
        model.load_state_dict(official.weights)
        images = model.encode_images(Images(case["in/images"]))
        captions = model.encode_captions(Captions(case["in/captions"], case["in/lengths"]))
        case.check("out/img_emb", images.vectors)
        words = captions.vectors.shape[1]
        assert_close(captions.vectors, case["out/cap_emb"][:, :words], atol=1e-6, rtol=1e-5)
        assert not case["out/cap_emb"][:, words:].any()
        assert torch.equal(captions.mask.sum(1), case["out/cap_len"])

        key = f"{entry['cross_attn']}/clipped_l2norm/{entry['agg_func']}{entry.get('suffix', '')}"
        similarity = model.similarity(images, captions)
        case.check(f"out/scores/{key}", similarity)
        if "eval64" in entry:
            double = model.double().similarity(as_double(images), as_double(captions))
            case.check(f"out/scores_eval/{key}", double)


def as_double(code):
    return Code(code.vectors.double(), code.mask)


def triplet(similarity, *, margin, hardest):
    """VSE++'s hinge, summed over the batch and both directions."""
    positive = similarity.diagonal()
    off = ~torch.eye(len(similarity), dtype=torch.bool)
    captions = (margin + similarity - positive.unsqueeze(1)).clamp_min(0) * off
    images = (margin + similarity - positive.unsqueeze(0)).clamp_min(0) * off
    return captions.amax(1).sum() + images.amax(0).sum() if hardest else captions.sum() + images.sum()


def test_scan_loss_and_gradients(golden):
    case = golden("scan_loss")
    words = case["in/cap_emb"]
    mask = torch.arange(words.shape[1]) < case["in/lengths"].unsqueeze(1)
    for variant in case.meta["config"]["variants"]:
        options, name = variant["opt"], variant["name"]
        model = SCAN(
            feature_size=1,
            vocabulary_size=1,
            embedding_size=words.shape[2],
            word_size=1,
            direction=options["cross_attn"],
            aggregation=options["agg_func"],
            temperature=options["lambda_softmax"],
            temperature_lse=options["lambda_lse"],
        )
        images = case["in/img_emb"].clone().requires_grad_()
        captions = words.clone().requires_grad_()
        similarity = model.similarity(Code(images), Code(captions, mask))
        loss = triplet(similarity, margin=0.2, hardest=options["max_violation"])
        case.check(f"out/{name}/loss", loss)
        loss.backward()
        case.check(f"out/{name}/grad/img_emb", images.grad)
        case.check(f"out/{name}/grad/cap_emb", captions.grad)
