"""Stages read what the manifests upstream say, and write down what they read."""

import json
import shutil

import numpy as np
import pytest
import torch

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import content_digest, seal
from aoq.pipeline.files import file_sha256
from aoq.pipeline.stages import splits
from aoq.pipeline.stages.splits import open_checked
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.checkpoint import read_weights, save_model
from tests.stages.conftest import MINING, make_stage


def flip(file, place=-1):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("made", "file", "by"),
    [
        ("dataset", "vocabulary.json", "evaluation"),
        ("dataset", "train_tokens.npz", "second_round"),
        ("first_round", "model.safetensors", "embeddings"),
        ("embeddings", "images.npy", "hard_negatives"),
        ("hard_negatives", "table/t2i.parquet", "second_round"),
        ("second_round", "model.safetensors", "evaluation"),
    ],
)
def test_a_damaged_file_is_refused_by_the_stage_that_reads_it(make, made, file, by):
    order = [*MINING, "second_round", "evaluation"]
    chain = make("own", *order[: order.index(by)])
    flip(chain[made].path / file)
    with pytest.raises(ValueError, match=rf"{file} was changed after .*; delete .*{chain[made].key} and run again"):
        make_stage(chain, by)
    assert not chain[by].exists()


def test_a_result_names_all_it_was_computed_from(make):
    chain = make("own", "mining", "second_round", "evaluation")
    inputs = chain["second_round"].manifest()["inputs"]
    for stage in ("dataset", "hard_negatives"):
        assert inputs[f"{stage}/{chain[stage].key}"] == content_digest(chain[stage].manifest())
    recorded = chain["dataset"].manifest()["folder_sha256"]
    assert {name: inputs[f"data/one/{name}"] for name in recorded} == recorded
    assert not [sentence for stage in chain.stages if chain[stage].exists() for sentence in chain[stage].problems()]


def test_verify_finds_what_was_computed_from_files_that_were_put_right_since(make):
    chain = make("own", "mining", "second_round")
    said = chain["second_round"].manifest()
    said["inputs"][f"hard_negatives/{chain['hard_negatives'].key}"] = "of damaged lists"
    said["inputs"] |= {"data/one/train_caps.txt": "0" * 64, "data/vectors/train_ids.txt": "0" * 64}  # not the folder's
    chain["second_round"].manifest_path.write_text(json.dumps({**said, "seal": seal(said)}))
    table, captions = chain["second_round"].problems()
    assert table.startswith("made from another version of hard_negatives/")
    assert captions == "made from another train_caps.txt than the dataset's"


def test_a_table_names_the_weights_that_were_loaded(make):
    chain = make("own", "dataset", "first_round", "embeddings")
    weights = file_sha256(chain["first_round"].path / "model.safetensors")
    assert chain["embeddings"].manifest()["weights_sha256"] == weights
    shutil.rmtree(chain["first_round"].path)  # and others take their place, under the same key
    with chain["first_round"].building() as build:
        description = {"name": "vsepp", "options": {"feature_size": 2, "vocabulary_size": 2}}
        save_model(build.directory / "model.safetensors", {"other": torch.zeros(1)}, description)
    assert read_weights(chain["first_round"].path / "model.safetensors")[1].keys() == {"other"}
    make("own", "hard_negatives")
    table = read_table(chain["hard_negatives"].path / "table")
    assert table.manifest["teacher"]["weights_sha256"] == weights


@pytest.mark.parametrize("file", ["train_caps.txt", "train_ims.npy", "dev_ims.npy"])
def test_a_data_folder_that_changed_since_is_refused(make, own_root, file):
    chain = make("own", "dataset", root=own_root)
    flip(own_root / "one" / file, -2)
    with pytest.raises(ValueError, match=rf"{file} has changed since .*; restore it, or"):
        make_stage(chain, "first_round")


def test_large_arrays_are_sampled_or_read_wholly(make, own_root, monkeypatch):
    features = own_root / "one" / "train_ims.npy"
    for split in ("train", "dev"):
        file = own_root / "one" / f"{split}_ims.npy"
        np.save(file, np.tile(np.load(file), 36))
    chain = make("own", "dataset", root=own_root)
    monkeypatch.setattr(splits, "HASHED_WHOLE", 0)
    first_gap = 4096 + 1  # between the first block of the fingerprint and the second
    assert features.stat().st_size > 2 * 256 * 4096
    flip(features, first_gap)
    open_checked(chain, "train")
    with pytest.raises(ValueError, match=r"train_ims\.npy has changed since"):
        open_checked(chain, "train", "full")
    flip(features, 328)  # within the first block
    with pytest.raises(ValueError, match="split 'train' was changed after the run was planned"):
        open_checked(chain, "train")


def test_a_sampled_array_is_named_as_such(make, own_root, monkeypatch):
    monkeypatch.setattr(splits, "HASHED_WHOLE", 0)
    chain = make("own", "dataset", root=own_root)
    make_stage(chain, "first_round")
    recorded, inputs = chain["dataset"].manifest()["folder_sha256"], chain["first_round"].manifest()["inputs"]
    assert inputs["data/one/train_ims.npy"] == f"sampled:{recorded['train_ims.npy']}"
    assert inputs["data/one/train_caps.txt"] == recorded["train_caps.txt"]
    assert list(chain["first_round"].problems()) == []


def test_another_split_is_the_one_that_was_planned(make, own_root):
    for file in (own_root / "one").glob("dev_*"):
        shutil.copy(file, file.with_name(file.name.replace("dev_", "other_")))
    stages, more = ("mining", "second_round"), 'evaluation.split = "other"'
    chain = make("own", *stages, more=more, root=own_root)
    original = np.load(own_root / "one" / "other_ims.npy")
    np.save(own_root / "one" / "other_ims.npy", original[::-1].copy())

    with pytest.raises(ValueError, match="split 'other' was changed after"):
        make_stage(chain, "evaluation")
    np.save(own_root / "one" / "other_ims.npy", original)
    make("own", "evaluation", more=more, root=own_root)
    recorded = chain["evaluation"].manifest()["folder_sha256"]
    assert recorded["other_ims.npy"] == file_sha256(own_root / "one" / "other_ims.npy")


def test_noise_that_went_missing_is_not_training_without_noise(make):
    more = "dataset.noise = {ratio = 0.5}"
    chain = make("noisy", "dataset", more=more)
    (chain["dataset"].path / "noise.npy").unlink()
    with pytest.raises(ValueError, match=r"noise\.npy is missing"):
        make("noisy", "first_round", more=more)


def test_a_study_reads_files_of_one_name_from_two_folders(make, tmp_path):
    one, two = (make(name, "dataset", folder=name) for name in ("one", "two"))
    with Artifact(tmp_path, "study", 1, {}).building() as build:
        for chain in (one, two):
            open_checked(chain, "dev")
    assert {name for name in build.inputs if "ims" in name} == {f"data/{n}/dev_ims.npy" for n in ("one", "two")}
