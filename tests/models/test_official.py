"""Official checkpoints: the right model and weights, or one clear error; and nothing they say is run."""

import argparse
import json

import pytest
import torch

from aoq.models import build_model
from aoq.models.official import from_official
from aoq.models.official_programs import TELLING
from aoq.pipeline.official import FROM_DATA, model_section, read_official_checkpoint

MODELS = {
    "ckpt_vsrn_f30k": "vsrn",
    "ckpt_aoq_vsrn_f30k": "vsrn",
    "ckpt_scan_bigru": "scan",
    "ckpt_scan_bigru_zip": "scan",
    "ckpt_bfan": "bfan",
    "ckpt_pfan": "pfan",
    "ckpt_sgraf_sgr": "sgr",
    "ckpt_sgraf_saf": "saf",
    "ckpt_naaf_glove": "naaf",
    "ckpt_ncr": "sgr",
    "ckpt_ncr_zip": "sgr",
    "ckpt_vse_infinity": "vse_infinity",
}
NORMS = {"no_imgnorm": False, "no_txtnorm": False}
ATTENTION = {"cross_attn": "i2t", "raw_feature_norm": "clipped_l2norm", "agg_func": "Mean"}
STATISTICS = {"mean_pos": 0.6, "stnd_pos": 0.1, "mean_neg": 0.3, "stnd_neg": 0.05}
OWN_OPTIONS = {  # as far as they matter, what each official program saves
    "vsepp": {"measure": "cosine", "use_abs": False, "no_imgnorm": False},
    "scan": {**ATTENTION, "lambda_softmax": 4.0, "lambda_lse": 5.0, **NORMS, "no_txtnorm": True},
    "bfan": {"focal_type": "prob", "lambda_softmax": 20.0, **NORMS},
    "naaf": {"lambda_softmax": 20.0, "alpha": 2.5, "thres": 0.3, "thres_safe": 0.0, **STATISTICS, **NORMS},
}


def parts(bidirectional=False):
    """State dicts with the names of VSE++, SCAN, BFAN and NAAF."""
    rnn = torch.nn.GRU(3, 4, bidirectional=bidirectional)
    text = {"embed.weight": torch.rand(9, 3)} | {f"rnn.{key}": value for key, value in rnn.state_dict().items()}
    return [{"fc.weight": torch.rand(4, 2), "fc.bias": torch.rand(4)}, text]


def official_parts(case):
    kinds = ["img_enc", "txt_enc", "sim_enc", "caption_model"]
    return [part for part in map(case.weights, kinds) if part]


@pytest.fixture(params=MODELS)
def checkpoint(request, golden, golden_file):
    """(its model's name, its networks, its `opt`, the case that has its weights)"""
    path = golden_file(f"{request.param}.pth.tar")
    described = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
    case = golden(described["weights_equal_case"])
    return MODELS[request.param], read_official_checkpoint(path), described["opt"], case


def test_all_golden_checkpoints_are_tested(golden_file):
    assert {path.name.removesuffix(".pth.tar") for path in golden_file("").glob("ckpt_*.pth.tar")} == set(MODELS)


def test_checkpoints_become_models_with_their_weights(checkpoint):
    """Old and new serialisation, Python 2 strings, GPU tags, views of one storage, perhaps no batch counters."""
    name, networks, opt, case = checkpoint
    expected = from_official(official_parts(case), opt, name).weights
    for index, read in enumerate(networks):
        assert read.name == name
        assert read.assumed == {}
        build_model(read.name, **read.options).load_state_dict(read.weights)
        assert read.weights.keys() == expected.keys()
        for key, value in read.weights.items():
            assert value.untyped_storage().nbytes() == value.nbytes, key
            if "num_batches_tracked" not in key:
                assert torch.equal(value, expected[key] + 0.01 * index), key


def test_checkpoints_restore_their_options(checkpoint):
    """As an experiment's `[model]` has them; what NAAF has learnt besides are weights of ours."""
    name, networks, opt, _ = checkpoint
    for read in networks:
        section = model_section(read).model_dump(exclude={"name"})
        assert {key: value for key, value in read.options.items() if key not in FROM_DATA} == section
        if name == "naaf":
            learnt = {"threshold": "thres", "safe_threshold": "thres_safe", "alpha": "alpha"}
            assert {key: float(read.weights[key]) for key in learnt} == pytest.approx(
                {key: opt[theirs] for key, theirs in learnt.items()}
            )
            statistics = [opt[key] for key in ("mean_pos", "stnd_pos", "mean_neg", "stnd_neg")]
            assert read.weights["statistics"].tolist() == pytest.approx(statistics)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", OWN_OPTIONS)
def test_equal_weights_are_told_apart_by_the_programs_own_options(tmp_path, name, bidirectional):
    torch.save({"model": parts(bidirectional), "opt": argparse.Namespace(**OWN_OPTIONS[name])}, tmp_path / name)
    (read,) = read_official_checkpoint(tmp_path / name)
    assert (read.name, read.options["bidirectional"], read.assumed) == (name, bidirectional, {})
    assert TELLING[name][0] in read.evidence
    assert read.options.get("normalise_captions", True) is not OWN_OPTIONS[name].get("no_txtnorm", False)
    build_model(read.name, **read.options).load_state_dict(read.weights)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lambda_softmax": 9.0, "thres_safe": 0}, "scan"),
        ({"lambda_softmax": 20.0, "thres_safe": 0}, "bfan"),
        ({"lambda_softmax": 20.0, "thres_safe": 0.2}, "naaf"),
    ],
)
def test_values_tell_where_a_program_has_the_options_of_all(changes, expected):
    everything = OWN_OPTIONS["scan"] | OWN_OPTIONS["bfan"] | OWN_OPTIONS["naaf"] | changes
    found = from_official(parts(), everything)
    assert found.name == expected
    assert "--model" in found.evidence
    for name in ("scan", "bfan", "naaf"):
        assert from_official(parts(), everything, name).name == name


IMAGE, TEXT = parts()
SCAN, VSEPP = OWN_OPTIONS["scan"], OWN_OPTIONS["vsepp"]
KEYS = {f"more.SGR_module.{step}.graph_key_w.weight": torch.rand(4, 4) for step in range(9)}


@pytest.mark.parametrize(
    ("given", "options", "complaint"),
    [
        ([], {"focal_type": "equal", "measure": "cosine"}, "do not say which.*they have measure and focal_type"),
        ([], SCAN | {"agg_func": "Median"}, "agg_func = 'Median'; ours supports LogSumExp, Mean, Max, Sum"),
        ([], SCAN | {"lambda_softmax": "9"}, "lambda_softmax is '9', but should be a finite number"),
        ([], VSEPP | {"measure": "order"}, "measure = 'order'; ours supports 'cosine' only"),
        ([IMAGE | {"cnn.module.conv1.weight": torch.rand(1)}, TEXT], VSEPP, "a CNN on photographs.*precomputed"),
        ([IMAGE, {"bert.embeddings.weight": torch.rand(2, 2)}], {}, "text encoder is BERT"),
        ([IMAGE, TEXT | {"rnn.weight_ih_l1": torch.rand(12, 4)}], SCAN, "several GRU layers"),
        ([{"linear.weight": torch.rand(4, 2)}, TEXT], SCAN, "not the weights of VSE"),
        ([IMAGE], SCAN, "2 or 3 parts"),
        ([IMAGE, TEXT, {"AVE": torch.rand(1)}], {}, "neither an SGR_module nor a SAF_module.*AVE"),
        ([IMAGE | {"bn.weight": torch.rand(4)}, TEXT], SCAN, r"scan; without a place: bn\.weight \(image\)\.$"),
        ([IMAGE | KEYS, TEXT], SCAN, "official image weights have no place .* and 1 more"),
        (
            [IMAGE, TEXT | {"embed.weight": torch.rand(9, 5)}],
            SCAN,
            r"weight_ih_l0 \(text\) is \(12, 3\), not \(12, 5\)",
        ),
        ([IMAGE, TEXT | {"embed.weight": torch.rand(9)}], SCAN, r"has shape \(9,\), but should have 2"),
    ],
)
def test_what_is_no_model_of_ours_is_refused(given, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        from_official(given or [IMAGE, TEXT], options)


@pytest.mark.parametrize("name", ["vsrn", "clip"])
def test_a_name_that_the_weights_cannot_be(name):
    with pytest.raises(ValueError, match=rf"cannot be '{name}'.*they fit vsepp, scan, bfan, naaf"):
        from_official([IMAGE, TEXT], SCAN, name)


def test_options_that_our_model_does_not_take(tmp_path):
    path = tmp_path / "model_best.pth.tar"
    torch.save({"model": parts(), "opt": SCAN | {"lambda_softmax": 0.0}}, path)
    with pytest.raises(ValueError, match=r"model_best\.pth\.tar: It was trained with.*temperature: .*\(got 0.0\)"):
        read_official_checkpoint(path)


def test_weight_normalised_projections_are_not_vsepp(golden):
    weighted = official_parts(golden("scan_weightnorm_nonorm"))
    options = SCAN | {"no_imgnorm": True}
    found = from_official(weighted, options)
    assert (found.options["weight_norm"], found.options["normalise_images"]) == (True, False)
    with pytest.raises(ValueError, match="they fit scan, bfan, naaf"):
        from_official(weighted, options, "vsepp")


def without(part, name):
    return {key: value for key, value in part.items() if name not in key}


@pytest.mark.parametrize("name", ["vsrn_f30k", "sgraf_sgr"])
def test_missing_weights_are_named(golden, name):
    image, text, *third = official_parts(golden(name))
    from_official([image, text, *third], {})
    with pytest.raises(ValueError, match=r"missing \(our names\): text\.recurrence\.weight_hh_l0"):
        from_official([image, without(text, "weight_hh_l0"), *third], {})
    with pytest.raises(ValueError, match=r"project\.weight \(our name\) is missing"):
        from_official([without(image, "fc.weight"), text, *third], {})


def test_no_weight_may_be_missing_or_of_another_shape(golden):
    complete, options = official_parts(golden("pfan")), {"cross_attn": "t2i", "agg_func": "Mean"}
    for index, part in enumerate(complete):
        for key, value in part.items():
            for other in (without(part, key), part | {key: value.flatten()[:-1]}):
                with pytest.raises(ValueError, match=r"\."):
                    from_official([*complete[:index], other, *complete[index + 1 :]], options)
