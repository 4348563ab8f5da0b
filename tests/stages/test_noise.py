"""Training on wrong pairs: where they are seen, and where not."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.noise import draw_noise
from aoq.pipeline.stages.splits import open_named_pairs, open_pairs, open_train_split
from aoq.pipeline.tables.files import read_manifest, read_positives
from aoq.pipeline.tables.pairs import paired


def test_training_sees_wrong_pairs_and_dev_does_not(make, data_root):
    chain = make("noisy", "mining", more="[dataset.noise]\nratio = 0.5\nseed = 2")
    clean, noisy = open_split(chain.folder, "train").image_of, open_train_split(chain).image_of
    np.testing.assert_array_equal(noisy, draw_noise(clean, chain.experiment.dataset.noise))
    np.testing.assert_array_equal(open_pairs(chain, "train").split.image_of, noisy)
    np.testing.assert_array_equal(open_pairs(chain, "dev").split.image_of, open_split(chain.folder, "dev").image_of)
    np.testing.assert_array_equal(open_named_pairs(chain, "train").split.image_of, clean)
    table = chain["hard_negatives"].path / "table"
    np.testing.assert_array_equal(read_positives(table, read_manifest(table)), paired(noisy))
    manifest, plain = chain["dataset"].manifest(), make("own", "dataset")["dataset"].manifest()
    assert manifest["wrong_pairs"] == (noisy != clean).sum() > 80
    assert manifest["fingerprint"]["train"] != plain["fingerprint"]["train"]
    shutil.copy(chain["dataset"].path / "noise.npy", data_root / "again.npy")
    again = make("again", "dataset", more='[dataset.noise]\nfile = "again.npy"')
    assert again["dataset"].manifest()["fingerprint"] == manifest["fingerprint"]


def test_a_wrong_noise_file_stops_at_the_dataset(make, data_root, tmp_path):
    np.save(data_root / "short.npy", np.arange(7))
    with pytest.raises(ValueError, match=r"short.npy: a noise file has .* this array has \(7,\)"):
        make("short", "dataset", more='[dataset.noise]\nfile = "short.npy"')
    assert not list((tmp_path / "artifacts").glob("dataset/*/MANIFEST.json"))


def test_tables_of_other_wrong_pairs_are_not_joined(make, tmp_path):
    make("one")
    make("other", more="[dataset.noise]\nratio = 0.5")
    members = [str(tmp_path / f"{name}.toml") for name in ("one", "other")]
    with pytest.raises(ValueError, match="are of different training data"):
        make("both", text=f'[fusion]\nmembers = {members}\nmethod = "rank"')
