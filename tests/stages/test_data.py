"""Data that an experiment cannot be made of or that changed under it, wrong pairs, and few negatives."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.cli.artifacts import changed_data
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.noise import draw_noise
from aoq.pipeline.mining.sizes import fit_depths
from aoq.pipeline.search.positives import matching_pairs
from aoq.pipeline.stages.splits import open_named_pairs, open_pairs, open_train_split
from aoq.pipeline.tables.files import read_manifest, read_positives
from aoq.pipeline.tables.table import read_table
from tests.stages.conftest import OWN


def spoil_feature(folder: Path, value: float) -> None:
    features = np.load(folder / "train_ims.npy")
    features[5, 1, 2] = value
    np.save(folder / "train_ims.npy", features)


def rewrite(path: Path, change) -> None:
    """Write the lines that `change` makes of the file's."""
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))


def without_spaces(folder: Path) -> None:
    for path in folder.glob("*_caps.txt"):
        rewrite(path, lambda lines: [f"{text.replace(' ', '')}{number} ." for number, text in enumerate(lines)])


def all_rare(folder: Path) -> None:
    for path in folder.glob("*_caps.txt"):
        rewrite(path, lambda lines, split=path.name[:3]: [f"{split}{number}" for number in range(len(lines))])


REFUSED = r"cannot be used; `aoq data check .*` lists every problem:\n  err.*: .*"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: spoil_feature(folder, np.nan), REFUSED + r"train_ims\.npy\[5\]: holds NaN or infinite"),
        (lambda folder: (folder / "train_caps.txt").write_bytes(b"\xff\n" * 200), REFUSED + r"caps\.txt:1: byte 1"),
        (lambda folder: rewrite(folder / "train_caps.txt", lambda lines: lines[:-1]), REFUSED + r"array has \(200,\)"),
        (without_spaces, r"one/train_caps\.txt: 200 different texts become 2 token sequences: no"),
        (all_rare, r"spoilt/one, captions of train and dev: none of 260 words occurs 4 times"),
    ],
    ids=["nan", "bytes", "counts", "unspaced", "rare"],
)
def test_broken_folders_stop_at_the_dataset(make, own_root, tmp_path, spoil, message):
    spoil(own_root / "one")
    with pytest.raises(ValueError, match=message):
        make("broken", "dataset", root=own_root)
    assert not list((tmp_path / "artifacts").glob("dataset/*/MANIFEST.json"))


def test_a_broken_split_that_is_not_used_does_not_matter(make, own_root):
    (own_root / "one" / "test_caps.txt").write_text("no images\n")
    make("spare", "dataset", root=own_root)


def test_a_change_that_keys_do_not_see_is_found_by_hashing(make, own_root):
    chain = make("changed", "dataset", root=own_root)
    assert changed_data(chain) == []
    spoil_feature(own_root / "one", 7.0)
    (sentence,) = changed_data(chain)
    assert "train_ims.npy has changed since" in sentence


OTHERS = [{"folder": "two"}, {"more": "dataset.train_images = 30"}, {"more": "dataset.noise.ratio = 0.5"}]


@pytest.mark.parametrize("other", OTHERS, ids=["folder", "part", "noise"])
def test_a_table_of_other_data_is_refused_before_anything_is_made(make, taught_by, other):
    make("own")
    with pytest.raises(ValueError, match=r"'student' and 'own' have different training data .* in an override"):
        make("student", teacher=taught_by("own"), **other)
    make("student", teacher=taught_by("own"), loss="online", **other)  # which uses no table


def test_splits_of_other_features_are_refused(make, own_root):
    folder, change = own_root / "one", 'evaluation.split = "other"'
    for file in folder.glob("dev_*"):
        shutil.copy(file, file.with_name(file.name.replace("dev_", "other_")))
    np.save(folder / "other_ims.npy", np.load(folder / "dev_ims.npy")[:, :, :9])
    chain = make("own", "dataset", "second_round", root=own_root, loss="online", more=change)
    with pytest.raises(ValueError, match=r"regions of split 'other' have 9 features, and those of 'train' 64"):
        make("own", "evaluation", root=own_root, loss="online", more=change)
    assert not chain["evaluation"].exists()
    with pytest.raises(ValueError, match=r"other_ims.npy: has regions of 9 features, and train's have 64"):
        make("other", "dataset", root=own_root, more='dataset.dev = "other"')


def test_what_a_model_needs_of_the_data_is_checked_first(make, taught_by, own_root):
    make("own")
    for path in (own_root / "one").glob("*_boxes.npy"):
        path.unlink()
    regions = np.load(own_root / "one" / "dev_ims.npy").shape[1]
    mask = np.ones((12, regions), dtype=bool)
    mask[3, -1] = False
    np.save(own_root / "one" / "dev_mask.npy", mask)
    for name, message in (
        ("pfan", r"PFAN needs the boxes of regions, but split 'train' has no train_boxes.npy; write"),
        ("sgr", r"SGR normalises each region slot .* dev_mask.npy masks some; set \[dataset\] max_regions"),
    ):
        with pytest.raises(ValueError, match=message):
            make(name, "dataset", "second_round", model=name, loss="online", teacher=taught_by("own"), root=own_root)


def test_each_kind_of_warning_is_logged_once(make, own_root, caplog):
    features = np.load(own_root / "one" / "train_ims.npy")
    features[1:30] = features[0]
    np.save(own_root / "one" / "train_ims.npy", features)
    rewrite(own_root / "one" / "dev_caps.txt", lambda lines: [*lines[:-9], *(f"unheard{n}" for n in range(9))])
    make("copies", "dataset", root=own_root)
    copies, every, _, alike = caplog.messages
    assert copies.startswith("warning: train_ims.npy[1]: has the features of row 0")
    assert copies.endswith("(and 28 more like this)")
    assert every == f"`aoq data check {own_root / 'one'}` lists all warnings"
    assert "dev_caps.txt: 9 of 60 captions have the token ids of another text (the first in line 52: " in alike


def test_training_sees_wrong_pairs_and_dev_does_not(make, data_root):
    chain = make("noisy", "mining", more="[dataset.noise]\nratio = 0.5\nseed = 2")
    clean, noisy = open_split(chain.folder, "train").image_of, open_train_split(chain).image_of
    np.testing.assert_array_equal(noisy, draw_noise(clean, chain.experiment.dataset.noise))
    np.testing.assert_array_equal(open_pairs(chain, "train").split.image_of, noisy)
    np.testing.assert_array_equal(open_pairs(chain, "dev").split.image_of, open_split(chain.folder, "dev").image_of)
    np.testing.assert_array_equal(open_named_pairs(chain, "train").split.image_of, clean)
    table = chain["hard_negatives"].path / "table"
    np.testing.assert_array_equal(read_positives(table, read_manifest(table)), matching_pairs(noisy))
    manifest, plain = chain["dataset"].manifest(), make("own", "dataset")["dataset"].manifest()
    assert manifest["wrong_pairs"] == (noisy != clean).sum() > 80
    assert manifest["fingerprint"]["train"] != plain["fingerprint"]["train"]
    shutil.copy(chain["dataset"].path / "noise.npy", data_root / "again.npy")
    again = make("again", "dataset", more='[dataset.noise]\nfile = "again.npy"')
    assert again["dataset"].manifest()["fingerprint"] == manifest["fingerprint"]


def test_an_anchor_of_all_candidates_is_refused():
    """Caption 1 is true of both images."""
    positives = np.array([[0, 0], [0, 1], [1, 1]])
    with pytest.raises(ValueError, match="caption 1 matches all 2 images, so it has no negative"):
        fit_depths(positives, 2, 3, h_captions=1, h_images=1)


def test_lists_are_as_long_as_the_data_allows_and_so_are_tables_made_of_them(make, tmp_path, caplog):
    """Each of 40 images has 5 of 200 captions, so 195 are negatives; of a caption's images 39."""
    deep = "h_captions = 300, h_images = 60"
    teacher = OWN.replace("h_captions = 9, h_images = 4", deep).replace("16", "24")
    beyond = "sampling = {h_captions = 250, h_images = 50}"
    chain = make("deep", "dataset", "mining", "second_round", teacher=teacher, more=beyond)
    shorter = "lists hold 195 captions instead of 300 and 39 images instead of 60: the data has no more negatives"
    assert [record.message for record in caplog.records if "lists hold" in record.message] == [shorter] * 2
    first, reordered = (str(tmp_path / f"{name}.toml") for name in ("deep", "reordered"))
    made_of_it = {
        "reordered": f'rerank = {{{{shortlist = "{first}", teacher = "{first}", {deep}}}}}',
        "fused": f'fusion = {{{{members = ["{first}", "{reordered}"], method = "rank", {deep}}}}}',
    }
    for each in [chain, *(make(name, "hard_negatives", text=text) for name, text in made_of_it.items())]:
        table = read_table(each["hard_negatives"].path / "table")
        assert (table.i2t.h, table.t2i.h) == (195, 39)
        for row, ids in enumerate(table.i2t.negative_ids):
            assert sorted(ids) == [caption for caption in range(200) if caption // 5 != row]
