"""Official checkpoints: the right model and weights, or one clear error; and nothing they say is run."""

from __future__ import annotations

import argparse
import os
import pickle

import pytest
import torch

from models import build_model
from models.official import from_official
from pipeline.official import read_official_checkpoint

SCAN_OPTIONS = {
    "cross_attn": "i2t",
    "raw_feature_norm": "clipped_l2norm",
    "agg_func": "Mean",
    "lambda_softmax": 4.0,
    "lambda_lse": 5.0,
}


def parts(bidirectional=False):
    """State dicts with the official names of VSE++ and SCAN."""
    rnn = torch.nn.GRU(3, 4, bidirectional=bidirectional)
    text = {"embed.weight": torch.rand(9, 3)} | {f"rnn.{key}": value for key, value in rnn.state_dict().items()}
    return [{"fc.weight": torch.rand(4, 2), "fc.bias": torch.rand(4)}, text]


def save(path, *, legacy=False, **content):
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize("name", ["ckpt_vsrn_f30k", "ckpt_aoq_vsrn_f30k"])
def test_legacy_checkpoints(golden, golden_file, name):
    """Old serialisation, Python 2 strings, GPU tags, GRU parameters as views, perhaps no batch counters."""
    case = golden({"ckpt_vsrn_f30k": "vsrn_f30k", "ckpt_aoq_vsrn_f30k": "aoq_train_step_f30k"}[name])
    read = read_official_checkpoint(golden_file(f"{name}.pth.tar"))
    expected = [part for part in map(case.weights, ["img_enc", "txt_enc", "caption_model"]) if part]
    assert read.name == "vsrn"
    official = from_official(expected, case.meta["config"]["opt"])
    assert read.options == official.options
    assert read.weights.keys() == official.weights.keys()
    for key, value in read.weights.items():
        if "num_batches_tracked" not in key:
            assert torch.equal(value, official.weights[key]), key
        assert value.untyped_storage().nbytes() == value.nbytes, key
    build_model(read.name, **read.options).load_state_dict(read.weights)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_scan_and_vsepp_are_told_apart_by_options(tmp_path, legacy, bidirectional):
    model = parts(bidirectional)
    path = save(tmp_path / "scan", legacy=legacy, model=model, opt=argparse.Namespace(**SCAN_OPTIONS))
    scan = read_official_checkpoint(path)
    assert (scan.name, scan.options) == (
        "scan",
        {
            "feature_size": 2,
            "vocabulary_size": 9,
            "embedding_size": 4,
            "word_size": 3,
            "bidirectional": bidirectional,
            "direction": "i2t",
            "aggregation": "Mean",
            "temperature": 4.0,
            "temperature_lse": 5.0,
        },
    )
    path = save(tmp_path / "vsepp", legacy=legacy, model=model, opt=argparse.Namespace(measure="cosine"))
    vsepp = read_official_checkpoint(path)
    assert vsepp.name == "vsepp"
    for read in (scan, vsepp):
        build_model(read.name, **read.options).load_state_dict(read.weights)


def test_byte_string_keys(tmp_path):
    """What Python 2 wrote, read by Python 3."""
    as_bytes = [{key.encode(): value for key, value in part.items()} for part in parts()]
    options = {key.encode(): value.encode() if isinstance(value, str) else value for key, value in SCAN_OPTIONS.items()}
    read = read_official_checkpoint(save(tmp_path / "bytes", model=as_bytes, opt=options))
    assert (read.name, read.options["direction"]) == ("scan", "i2t")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "do not say which"),
        ({"focal_type": "equal", "measure": "cosine"}, "found \\['focal_type', 'measure'\\]. BFAN and NAAF"),
        (SCAN_OPTIONS | {"raw_feature_norm": "softmax"}, "raw_feature_norm='softmax'; ours supports"),
        (SCAN_OPTIONS | {"agg_func": "Max"}, "agg_func='Max'"),
        ({"measure": "order"}, "measure='order'"),
    ],
)
def test_options_that_we_cannot_follow(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        from_official(parts(), options)


def test_unknown_parts():
    image, text = parts()
    with pytest.raises(ValueError, match="not the weights of VSE"):
        from_official([{"cnn.conv1.weight": torch.rand(1)}, text], SCAN_OPTIONS)
    with pytest.raises(ValueError, match=r"text weight 'embed\.glove\.weight' has no place"):
        from_official([image, text | {"embed.glove.weight": torch.rand(9, 3)}], SCAN_OPTIONS)
    with pytest.raises(ValueError, match="2 or 3 parts"):
        from_official([image], SCAN_OPTIONS)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_a_hostile_checkpoint_is_refused_and_runs_nothing(tmp_path, form):
    path, trace = tmp_path / "model_best.pth.tar", tmp_path / "trace"
    content = {"model": parts(), "opt": Hostile(trace)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        save(path, legacy=form == "legacy", **content)
    with pytest.raises(ValueError, match=r"was refused.*Get it from its authors"):
        read_official_checkpoint(path)
    assert not trace.exists()


def test_files_that_are_no_checkpoints(tmp_path, golden_file):
    path = tmp_path / "model_best.pth.tar"
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint .*give the path"):
        read_official_checkpoint(path)
    with pytest.raises(ValueError, match="is a directory; give the path"):
        read_official_checkpoint(tmp_path)
    path.write_text("\n<!DOCTYPE html><html>quota exceeded</html>")
    with pytest.raises(ValueError, match=r"is a web page.*download"):
        read_official_checkpoint(path)
    whole = save(tmp_path / "zip", model=parts(), opt=SCAN_OPTIONS).read_bytes()
    legacy = golden_file("ckpt_vsrn_f30k.pth.tar").read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], legacy[: len(legacy) // 2], legacy[:100]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"may be cut short.*download"):
            read_official_checkpoint(path)


@pytest.mark.parametrize("content", [[1, 2], {"model_A": [], "epoch": 3}, {"model": {"fc.weight": 1}}, {"model": [3]}])
def test_containers_without_a_model(tmp_path, content):
    torch.save(content, tmp_path / "other")
    with pytest.raises(ValueError, match="needs a list of state dicts under 'model'"):
        read_official_checkpoint(tmp_path / "other")
