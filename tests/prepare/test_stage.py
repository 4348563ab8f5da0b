"""A source as an experiment's dataset: a stage of its own, made of what the source holds."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.data.folder import changed_files, open_split
from aoq.pipeline.stages.chain import pretrained
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.splits import open_checked, open_pairs
from tests.prepare.conftest import encoded, picture
from tests.stages.conftest import TINY, chain_of, make_stage

SOURCE = 'dataset.source.path="photos/photos.csv", dataset.source.extractor="means:any"'


@pytest.fixture
def planned(photos, tmp_path):
    """Plan the tiny experiment on the photographs, with changes."""

    def run(override="", root=tmp_path):
        given = ", ".join(filter(None, (SOURCE, override)))
        return plan(TINY, data_root=root, artifact_root=tmp_path / "artifacts", override=given)

    return run


def make(chain, stage):
    make_stage(chain, stage)
    return chain[stage].opened()


def test_stages_of_a_source(planned):
    chain = planned()
    assert list(chain.stages)[:2] == ["prepared", "dataset"]
    folder = make(chain, "prepared")
    assert open_split(folder, "train").image_count == 16
    assert chain["prepared"].manifest()["counts"]["dev"] == {"images": 4, "captions": 8, "copies": 0}
    assert not (folder / "unfinished").exists()
    make(chain, "dataset")
    pairs = open_pairs(chain, "train")
    assert pairs.images(np.arange(2)).features.shape == (2, 4, 3)


def test_weights_in_a_folder_count_in_the_key(photos, tmp_path):
    keys = set()
    (tmp_path / "model").mkdir()
    for content in ("one", "two"):
        (tmp_path / "model" / "model.safetensors").write_text(content)
        source = SOURCE.replace("any", str(tmp_path / "model"))
        keys.add(chain_of(source, root=tmp_path)["prepared"].key)
    assert len(keys) == 2
    assert pretrained("efficientnet-lite0") == {"encoder": "efficientnet-lite0"}  # not this folder


def test_a_prepared_folder_that_was_damaged_is_not_trained_on(prepared, photos, tmp_path):
    """Neither a number, nor a caption, nor an id of train or dev, nor of the split that is evaluated."""
    folder = prepared(photos, "folder", split_sizes={"dev": 2, "test": 2})

    def planned():
        return chain_of(f'dataset.folder="{folder}"', root=tmp_path / "artifacts")

    make(planned(), "dataset")
    for file in ("train_ims.npy", "train_caps.txt", "dev_ids.txt", "test_ims.npy"):
        path = folder / file
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        assert [name for name, _ in changed_files(folder)] == [file]
        with pytest.raises(ValueError, match=rf"{file}:? has changed since `aoq prepare` wrote it"):
            open_checked(planned(), "test") if file == "test_ims.npy" else make(planned(), "dataset")
        path.write_bytes(whole)
    assert [*changed_files(folder)] == []


def test_keys_are_of_what_the_source_holds(planned, photos, tmp_path):
    """Wherever it lies, and whether or not broken images are left out."""
    key = planned()["prepared"].key
    shutil.copytree(photos.parent, tmp_path / "moved" / "photos")
    assert planned(root=tmp_path / "moved")["prepared"].key == key
    assert planned("dataset.source.skip_broken=true")["prepared"].key == key
    changed = {planned(f"dataset.source.{change}")["prepared"].key for change in ("seed=1", 'tokens="pooled"')}
    photos.write_text(photos.read_text().replace("afar", "near"))
    changed.add(planned()["prepared"].key)
    (photos.parent / "03.png").write_bytes(encoded(picture(3, 40, 40)))
    changed.add(planned()["prepared"].key)
    assert len(changed | {key}) == 5


def test_packed_photographs_have_another_key(planned):
    plain, packed = planned(), planned("dataset.source.pack=true")
    assert "pack" not in plain["prepared"].ingredients
    assert packed["prepared"].key != plain["prepared"].key
    assert "bytes" in pq.read_schema(make(packed, "prepared") / "train_images.parquet").names


def test_a_source_that_changed_since_it_was_planned_is_refused(planned, photos):
    chain = planned()
    photos.write_text(photos.read_text().replace("afar", "near"))
    with pytest.raises(ValueError, match="was changed after the run was planned; run again"):
        make(chain, "prepared")
