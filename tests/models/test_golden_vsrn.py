"""VSE++, VSRN and its captioner against numbers of the official code."""

from __future__ import annotations

import pytest
import torch

from aoq.models import build_model
from aoq.models.base import Captions, Images
from aoq.models.layers import TextEncoder
from aoq.models.official import from_official, our_weights
from aoq.models.packing import run_over
from aoq.models.vsepp import VSEpp
from aoq.models.vsrn import Captioner, caption_labels

CASES = ["vsrn_coco", "vsrn_coco_abs_noimgnorm", "vsrn_f30k"]


def load_vsrn(case):
    options = case.meta["config"]["opt"]
    parts = [part for part in map(case.weights, ["img_enc", "txt_enc", "caption_model"]) if part]
    official = from_official(parts, options)
    assert official.name == "vsrn"
    assert official.options["variant"] == options["data_name"].removesuffix("_precomp")
    model = build_model(official.name, **official.options)
    model.load_state_dict(official.weights)
    return model


def load_captioner(case):
    options, weights = case.meta["config"]["opt"], our_weights(case.weights("caption_model"), "captioner")
    captioner = Captioner(
        feature_size=weights["captioner.project.weight"].shape[1],
        vocabulary_size=options["vocab_size"],
        hidden_size=options["dim_hidden"],
        word_size=options["dim_word"],
        max_length=options["max_len"],
        dropout=0.2,
        bidirectional=bool(options["bidirectional"]),
    )
    captioner.load_state_dict({key.removeprefix("captioner."): value for key, value in weights.items()})
    return captioner.eval()


def labelled(labels):
    return Captions(labels[:, :-1], (labels != 0).sum(1))


@pytest.mark.parametrize("name", CASES)
def test_vsrn_in_eval_mode(golden, name):
    case = golden(name)
    model = load_vsrn(case).eval()
    seen = {}
    model.project.register_forward_hook(lambda _m, _i, out: seen.update(fc=out))
    model.recurrence.register_forward_hook(lambda _m, _i, out: seen.update(gru_last=out[1][0]))
    for index, layer in enumerate(model.reasoning, start=1):
        layer.register_forward_hook(lambda _m, _i, out, index=index: seen.update({f"gcn{index}": out.transpose(1, 2)}))
    model.captioner = torch.nn.Identity()  # with a captioner, the code carries the regions it would describe
    images = model.encode_images(Images(case["in/images"]))
    captions = model.encode_captions(Captions(case["in/captions"], case["in/lengths"]))
    for key in case.keys("out/inter/"):
        case.check(key, seen[key.removeprefix("out/inter/")])
    case.check("out/GCN_img_emd", images.context)
    case.check("out/img_emb", images.vectors)
    case.check("out/cap_emb", captions.vectors)
    case.check("out/scores", model.similarity(images, captions))


@pytest.mark.parametrize("name", CASES)
def test_vsrn_in_training_mode(golden, name):
    """Use float64: in float32, batch statistics of merged products differ between processors beyond the tolerance."""
    case = golden(name)
    model = load_vsrn(case).double().train()
    model.captioner = torch.nn.Identity()
    images = model.encode_images(Images(case["in/images"].double()))
    case.check("out/train/GCN_img_emd", images.context)
    case.check("out/train/img_emb", images.vectors)
    buffers = dict(model.named_buffers())
    updated = case.keys("out/train/updated/")
    assert updated
    for key in updated:
        ours = our_weights({key.removeprefix("out/train/updated/img_enc."): torch.zeros(())}, "image")
        name = next(name for name in ours if key.endswith(name.rsplit(".", 1)[1]))
        case.check(key, buffers[name])


def test_text_in_any_order(golden):
    case = golden("aoq_text_unsorted")
    weights = our_weights(case.weights("txt_enc"), "text")
    vocabulary_size, word_size = weights["text.embedding.weight"].shape
    size = weights["text.recurrence.weight_hh_l0"].shape[1]
    captions = Captions(case["in/captions"], case["in/lengths"])
    model = VSEpp(feature_size=1, vocabulary_size=vocabulary_size, embedding_size=size, word_size=word_size)
    model.load_state_dict(model.state_dict() | weights)
    case.check("out/cap_emb", model.encode_captions(captions).vectors)
    assert isinstance(model.text, TextEncoder)


def test_vsepp_sees_a_global_feature_as_one_region(golden):
    case = golden("vsepp_image_fc")
    weights = our_weights(case.weights("img_enc"), "image")
    size, feature_size = weights["project.weight"].shape
    model = VSEpp(feature_size=feature_size, vocabulary_size=4, embedding_size=size, word_size=3)
    model.load_state_dict(model.state_dict() | weights)
    case.check("out/img_emb", model.encode_images(Images(case["in/images"].unsqueeze(1))).vectors)


@pytest.mark.parametrize("name", ["vsrn_caption", "vsrn_caption_bi"])
def test_captioner(golden, name):
    case = golden(name)
    captioner, labels = load_captioner(case), case["in/labels"]
    regions = case["in/feats"].clone().requires_grad_()
    states, last = run_over(captioner.recurrence, captioner.project(regions), None)
    case.check("out/enc_outputs", states)
    case.check("out/enc_hidden", last)
    decoded = captioner.decode(regions, None, labels[:, : captioner.max_length - 1])
    case.check("out/seq_logprobs", captioner.predict(decoded).log_softmax(-1))

    loss = captioner(regions, None, labelled(labels))
    case.check("out/loss", loss)
    loss.backward()
    case.check("out/grad/feats", regions.grad)
    for key in case.keys("out/grad/weights/"):
        official = key.removeprefix("out/grad/weights/caption_model.")
        (ours,) = our_weights({official: torch.zeros(())}, "captioner")
        case.check(key, captioner.get_parameter(ours.removeprefix("captioner.")).grad)


def test_captioner_runs_no_further_than_its_longest_caption(golden):
    case = golden("vsrn_caption")
    labels = case["in/labels"]
    ours, counted = caption_labels(labelled(labels), case.meta["config"]["opt"]["max_len"])
    steps = counted.shape[1]
    assert torch.equal(ours, labels[:, : steps + 1])
    assert torch.equal(counted, case["in/masks"][:, 1 : steps + 1].bool())
    assert not case["in/masks"][:, steps + 1 : -1].any()


@pytest.mark.parametrize("name", ["aoq_train_step_coco", "aoq_train_step_f30k"])
def test_vsrn_with_its_captioner(golden, name):
    """The captioning loss of a whole training step, through `auxiliary_loss`."""
    case = golden(name)
    model = load_vsrn(case).train()
    images = model.encode_images(Images(case["in/images"]))
    loss = model.auxiliary_loss(images, Captions(case["in/captions"], case["in/lengths"]))
    case.check("out/caption_loss", loss)
    labels = model.auxiliary_loss(images, labelled(case["in/caption_labels"]))
    case.check("out/caption_loss", labels)
