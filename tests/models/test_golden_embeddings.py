"""VSE++, VSRN with its captioner, and VSE∞ against numbers of the official codes, in eval mode and in training."""

import pytest
import torch

from aoq.models import build_model
from aoq.models.base import Captions, Images
from aoq.models.official import from_official, our_weights
from aoq.models.packing import run_over
from aoq.models.vsepp import VSEpp
from aoq.models.vsrn import Captioner, caption_labels

VSRNS = ["vsrn_coco", "vsrn_coco_abs_noimgnorm", "vsrn_f30k"]
KINDS = {"img_enc": "image", "txt_enc": "text", "caption_model": "captioner"}


def load(case, **options):
    """The model that the case's weights and official options are recognised as."""
    found = from_official([part for part in map(case.weights, KINDS) if part], case.meta["config"]["opt"])
    model = build_model(found.name, **found.options, **options)
    model.load_state_dict(found.weights)
    return model


def our_name(key):
    """Our name of the weight at the end of a case's key."""
    part, name = next(part for part in KINDS if f"{part}." in key), key.rpartition("/")[2]
    ours = our_weights({name.removeprefix(f"{part}."): torch.zeros(())}, KINDS[part])
    return next(one for one in ours if one.rpartition(".")[2] == name.rpartition(".")[2] or len(ours) == 1)


def check_updated(case, model):
    """The statistics after a training pass."""
    keys, buffers = case.keys("out/train/updated/"), dict(model.named_buffers())
    assert keys
    for key in keys:
        case.check(key, buffers[our_name(key)])


def labelled(labels):
    return Captions(labels[:, :-1], (labels != 0).sum(1))


@pytest.mark.parametrize("name", VSRNS)
def test_vsrn_in_eval_mode(golden, name):
    case = golden(name)
    model = load(case).eval()
    assert model.variant == case.meta["config"]["opt"]["data_name"].removesuffix("_precomp")
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


@pytest.mark.parametrize("name", VSRNS)
def test_vsrn_in_training_mode(golden, name):
    """Use float64: in float32, batch statistics of merged products differ between processors beyond the tolerance."""
    case = golden(name)
    model = load(case).double().train()
    model.captioner = torch.nn.Identity()
    images = model.encode_images(Images(case["in/images"].double()))
    case.check("out/train/GCN_img_emd", images.context)
    case.check("out/train/img_emb", images.vectors)
    check_updated(case, model)


def test_vsepp_reads_text_in_any_order(golden):
    case = golden("aoq_text_unsorted")
    weights = our_weights(case.weights("txt_enc"), "text")
    vocabulary_size, word_size = weights["text.embedding.weight"].shape
    size = weights["text.recurrence.weight_hh_l0"].shape[1]
    model = VSEpp(feature_size=1, vocabulary_size=vocabulary_size, embedding_size=size, word_size=word_size)
    model.load_state_dict(model.state_dict() | weights)
    case.check("out/cap_emb", model.encode_captions(Captions(case["in/captions"], case["in/lengths"])).vectors)


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
    options, weights = case.meta["config"]["opt"], our_weights(case.weights("caption_model"), "captioner")
    captioner = Captioner(
        feature_size=weights["captioner.project.weight"].shape[1],
        vocabulary_size=options["vocab_size"],
        hidden_size=options["dim_hidden"],
        word_size=options["dim_word"],
        max_length=options["max_len"],
        dropout=0.2,
        bidirectional=bool(options["bidirectional"]),
    ).eval()
    captioner.load_state_dict({key.removeprefix("captioner."): value for key, value in weights.items()})
    regions, labels = case["in/feats"].clone().requires_grad_(), case["in/labels"]
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
        case.check(key, captioner.get_parameter(our_name(key).removeprefix("captioner.")).grad)


def test_captioner_runs_no_further_than_its_longest_caption(golden):
    case = golden("vsrn_caption")
    labels = case["in/labels"]
    ours, counted = caption_labels(labelled(labels), case.meta["config"]["opt"]["max_len"])
    steps = counted.shape[1]
    assert torch.equal(ours, labels[:, : steps + 1])
    assert torch.equal(counted, case["in/masks"][:, 1 : steps + 1].bool())
    assert not case["in/masks"][:, steps + 1 : -1].any()


def test_vse_infinity_in_eval_mode(golden):
    """Without size augmentation; the weights of pooling, too, and images of fewer regions."""
    case, seen = golden("vse_infinity"), {}
    model = load(case, size_augmentation=0.0).eval()
    for name, pool in (("img", model.pool_regions), ("cap", model.pool_words)):
        weights = pool.weights
        pool.weights = lambda lengths, name=name, weights=weights: seen.setdefault(name, weights(lengths))
    images = model.encode_images(Images(case["in/images"]))
    captions = model.encode_captions(Captions(case["in/captions"], case["in/lengths"]))
    case.check("out/inter/pool_weights_img", seen["img"].expand(6, -1))
    case.check("out/inter/pool_weights_cap", seen["cap"][case["in/lengths"] - 1])
    case.check("out/img_emb", images.vectors)
    case.check("out/cap_emb", captions.vectors)
    case.check("out/scores", model.similarity(images, captions))
    model, lengths = load(case), case["in/varied/lengths"]
    mask = torch.arange(12) < lengths.unsqueeze(1)
    case.check("out/varied/img_emb", model.eval().encode_images(Images(case["in/varied/images"], mask)).vectors)
    case.check("out/varied/inter/pool_weights", model.pool_regions.weights(lengths))


def test_vse_infinity_in_training_mode(golden, triplet):
    case = golden("vse_infinity")
    model = load(case, size_augmentation=0.0).train()
    images = model.encode_images(Images(case["in/train/images"]))
    captions = model.encode_captions(Captions(case["in/captions"][:6], case["in/lengths"][:6]))
    case.check("out/train/img_emb", images.vectors)
    case.check("out/train/cap_emb", captions.vectors)
    loss = triplet(model.similarity(images, captions), hardest=True)
    case.check("out/train/loss", loss)
    loss.backward()
    parameters = dict(model.named_parameters())
    for key in case.keys("out/train/grad/"):
        case.check(key, parameters.pop(our_name(key)).grad)
    assert not parameters
    check_updated(case, model)
