"""Checkpoint files of the official programs: read whole or refused with one clear error, and nothing in them is run."""

import os
import pickle
import zipfile

import pytest
import torch

from aoq.pipeline.official import read_official_checkpoint
from tests.models.test_official import parts
from tests.pickles import ENDLESS

SCAN_OPTIONS = {"cross_attn": "i2t", "agg_func": "Mean", "lambda_softmax": 4.0}


def save(path, *, legacy=False, **content):
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


def test_a_name_decides_and_what_is_not_told_is_said(tmp_path):
    path = save(tmp_path / "bare", model=parts())
    with pytest.raises(
        ValueError, match=r"fit vsepp, scan, bfan, naaf, and .*cross_attn and agg_func \(scan\).*they have none"
    ):
        read_official_checkpoint(path)
    (read,) = read_official_checkpoint(path, "scan")
    assert (read.name, read.evidence) == ("scan", "you named it")
    assert read.assumed["cross_attn"] == "t2i"
    assert read.assumed["lambda_softmax"] == 9.0
    with pytest.raises(ValueError, match="lack thres_safe, the threshold that NAAF has learnt"):
        read_official_checkpoint(path, "naaf")


def test_byte_string_keys(tmp_path):
    """Python 3 reads what Python 2 wrote."""
    as_bytes = [{key.encode(): value for key, value in part.items()} for part in parts()]
    options = {key.encode(): value.encode() if isinstance(value, str) else value for key, value in SCAN_OPTIONS.items()}
    torch.save({b"model": as_bytes, b"opt": options}, tmp_path / "bytes")
    (read,) = read_official_checkpoint(tmp_path / "bytes")
    assert (read.name, read.options["direction"]) == ("scan", "i2t")


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_key_that_takes_for_ever_to_hash_is_refused(tmp_path, legacy):
    path = save(tmp_path / "keys", legacy=legacy)
    if legacy:
        head = (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {})
        path.write_bytes(b"".join(pickle.dumps(part, 2) for part in head) + ENDLESS)
    else:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, ENDLESS if name.endswith("data.pkl") else content)
    with pytest.raises(ValueError, match=r"keys is damaged or not a checkpoint \(its tuples are nested too deeply\)"):
        read_official_checkpoint(path)


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
    with pytest.raises(FileNotFoundError, match=r"model_best.pth.tar does not exist; give the path"):
        read_official_checkpoint(path)
    with pytest.raises(ValueError, match=r"it is a folder\); give the path"):
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


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        ([1, 2], "holds list"),
        ({"model_A": parts(), "epoch": 3}, r"holds \['epoch', 'model_A'\]"),
        ({"model": parts()[0]}, r"holds \['model'\]"),
        ({"model": [{"fc.weight": 3}, {}]}, r"holds \['model'\]"),
        ({f"layer{n}": torch.rand(1) for n in range(9)}, "and more"),
    ],
)
def test_containers_without_a_model(tmp_path, content, holds):
    torch.save(content, tmp_path / "other")
    with pytest.raises(ValueError, match=rf"needs a list of state dicts under 'model' \(NCR.*{holds}"):
        read_official_checkpoint(tmp_path / "other")


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_larger_than_the_file_are_refused_before_they_are_copied(tmp_path, legacy):
    """A view that repeats one number is a few bytes in a file, and was 160 GB when it was copied."""
    content = parts()
    content[0]["fc.weight"] = torch.zeros(1).expand(200_000, 200_000)
    with pytest.raises(ValueError, match=r"claim 160,0.* bytes or more, but the file has"):
        read_official_checkpoint(save(tmp_path / "huge", legacy=legacy, model=content, opt=SCAN_OPTIONS))


@pytest.mark.parametrize("tensor", [torch.zeros(4, 6, device="meta"), torch.eye(4).to_sparse(), torch.ones(4) * 1j])
def test_tensors_that_are_no_plain_numbers_are_refused(tmp_path, tensor):
    content = parts()
    content[0]["fc.weight"] = tensor
    with pytest.raises(ValueError, match="not plain real numbers"):
        read_official_checkpoint(save(tmp_path / "odd", model=content, opt=SCAN_OPTIONS))


def test_parts_that_claim_more_than_the_file_are_refused(tmp_path):
    path = save(tmp_path / "whole", model=parts(), opt=SCAN_OPTIONS)
    with zipfile.ZipFile(path) as stored, zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as bomb:
        for member in stored.infolist():
            bomb.writestr(member.filename, stored.read(member))
        bomb.writestr("archive/data/99", bytes(10**6))
    with pytest.raises(ValueError, match=r"its parts claim 1,.* bytes, but the file has"):
        read_official_checkpoint(tmp_path / "bomb")


@pytest.mark.parametrize("value", [float("nan"), "hot", torch.ones(2), 10**400])
def test_options_that_are_no_numbers_are_named(tmp_path, value):
    options = SCAN_OPTIONS | {"lambda_softmax": value}
    with pytest.raises(ValueError, match=r"The option lambda_softmax is .*, but should be a finite number"):
        read_official_checkpoint(save(tmp_path / "odd", model=parts(), opt=options))
    with pytest.raises(ValueError, match=r"options \('opt'\) are of type list"):
        read_official_checkpoint(save(tmp_path / "odd", model=parts(), opt=["--agg_func", "Mean"]))
