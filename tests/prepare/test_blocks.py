"""Blocks of images as units: whoever does them, in whatever order, the folder is that of one process."""

import os
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.engine import Engine
from aoq.pipeline.prepare import extraction, prepare
from aoq.pipeline.prepare.blocks import ship_extraction
from aoq.pipeline.prepare.extraction import Extracting, ImageReader
from aoq.pipeline.prepare.extractors import open_extractor
from aoq.pipeline.prepare.listing import list_source
from aoq.pipeline.search.units import Folder, run_in_process
from tests.prepare.conftest import CPU, contents, encoded, picture
from tests.prepare.test_sources import shard

TEXT = "txt", b"text"
UNITS = Engine("cpu", threads=1, backend="ray")


def last_first(steps, job, store, progress):
    run_in_process([list(reversed(step)) for step in steps], job, store, progress)


@pytest.fixture
def in_units(prepared, monkeypatch):
    """Prepare in units of six images, done here, the last one first."""
    monkeypatch.setattr(extraction, "BLOCK_IMAGES", 5)  # rounded up to batches of three
    monkeypatch.setattr(prepare, "load_ray", lambda: None)

    def run(source, run=last_first, **options):
        monkeypatch.setattr(prepare, "choose_runner", lambda engine, ship: run)
        return prepared(source, "units", engine=UNITS, **options)

    return run


@pytest.mark.parametrize("run", [run_in_process, last_first])
def test_units_make_the_folder_of_one_process(photos, prepared, in_units, tmp_path, run):
    assert contents(in_units(photos, run)) == contents(prepared(photos))
    assert list((tmp_path / "units.work" / "blocks").iterdir()) == []


def test_broken_images_are_those_of_one_process(photos, prepared, in_units, means):
    for n, content in {0: b"", 7: b"", 8: b"no image", 9: b"x", 11: b"x"}.items():
        (photos.parent / f"{n:02}.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"5 of 20 images cannot be read") as here:
        prepared(photos)
    with pytest.raises(ValueError, match=r"5 of 20 images cannot be read") as there:
        in_units(photos)
    assert str(there.value) == str(here.value)
    means.clear()
    assert contents(in_units(photos, skip_broken=True)) == contents(prepared(photos, skip_broken=True))
    assert sum(means) == 2  # nothing is extracted again: a blank image tells the shape


def test_a_killed_run_continues_with_its_blocks(photos, prepared, in_units, means, tmp_path):
    progress = []

    def killed(steps, job, store, progress):
        """Do every block but the first, so that none is appended; then die."""
        for unit in steps[0][1:]:
            unit.do(job, store)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_units(photos, killed)
    means.clear()
    folder = in_units(photos, report=lambda done, *_: progress.append(done))
    assert sum(means) == 6 + 1  # the block that was lost; one blank image tells the shape
    assert progress == [6, 12, 16, 20]
    assert contents(folder) == contents(prepared(photos))


def test_an_image_that_only_another_node_cannot_read_is_not_broken(photos, in_units, prepared, tmp_path):
    hidden, seen = tmp_path / "hidden.png", photos.parent / "07.png"

    def without_it(steps, job, store, progress):
        os.rename(seen, hidden)
        for unit in steps[0]:
            unit.do(job, store)
        os.rename(hidden, seen)
        progress(len(steps[0]), len(steps[0]))

    with pytest.raises(ValueError, match=r"07\.png does not exist on the node that extracts it, but can be read here"):
        in_units(photos, without_it, skip_broken=True)
    assert contents(in_units(photos, skip_broken=True)) == contents(prepared(photos))


@pytest.fixture(params=["files", "tar", "parquet", "saved"])
def images(request, photos, tmp_path):
    """The twenty photographs in files, in a tar archive, in Parquet's row groups, or as a saved data set."""
    content = [(photos.parent / f"{n:02}.png").read_bytes() for n in range(20)]
    source = {"files": photos, "tar": tmp_path / "a.tar", "parquet": tmp_path / "a.parquet", "saved": tmp_path / "a"}
    if request.param == "tar":
        shard(source["tar"], [(f"{n:02}.{end}", body) for n in range(20) for end, body in (("png", content[n]), TEXT)])
    elif request.param == "parquet":
        packed = pa.table({"image": content, "caption": ["text"] * 20})
        pq.write_table(packed, source["parquet"], row_group_size=3)
    elif request.param == "saved":
        datasets = pytest.importorskip("datasets")
        images = [{"bytes": one, "path": None} for one in content]
        features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
        columns = {"image": images, "caption": ["text"] * 20}
        datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(source["saved"]))
    return list_source(Source(path=str(source[request.param]))).images


def test_some_images_are_read_elsewhere_and_have_their_names(images):
    rows = np.array([7, 3, 19, 8])
    images.read(7)  # the cached part of a large file is not sent
    sent = pickle.dumps(images.take(rows))
    there = pickle.loads(sent)
    for n, row in enumerate(rows.tolist()):
        assert there.read(n) == images.read(row)
        assert there.describe(n) == images.describe(row)
        assert there.path(n) == images.path(row)
    assert images.read(7) not in sent


def shipped(source, folder, **weights):
    """The job that is sent to nodes, of the photographs in order."""
    section = Source(path=str(source), extractor="means:any")
    listing = list_source(section)
    extractor = replace(open_extractor("means:any"), **weights)
    reader = ImageReader(listing.images, len(listing), extractor.preprocessing, False)
    folder.mkdir()
    job = Extracting(extractor, CPU.torch_device(), 3, 0)
    return ship_extraction(job, Folder(folder), source=section, reader=reader)


def test_nodes_lack_nothing_or_say_what(photos, tmp_path):
    (photos.parent / "00.png").unlink()  # missing here, too
    job = shipped(photos, tmp_path / "work")
    sent = pickle.loads(pickle.dumps(job))
    assert sent.lacking() == []
    assert sent.open().extractor.fingerprint == open_extractor("means:any").fingerprint
    assert hash(job) == hash(sent)  # a process opens what it is sent once
    (photos.parent / "00.png").write_bytes(encoded(picture(99)))
    assert job.lacking() == [f"does not read {photos.parent / '00.png'} as it is here"]
    (lacks,) = shipped(photos, tmp_path / "one", fingerprint="other").lacking()
    assert "cannot open what it needs (the weights of means:any are not the same" in lacks


def test_relative_paths_start_where_the_command_did(tmp_path, monkeypatch):
    shard(tmp_path / "a.tar", [("a.png", encoded(picture(0))), ("a.txt", b"text")])
    monkeypatch.chdir(tmp_path)
    job = shipped("a.tar", tmp_path / "blocks")
    monkeypatch.chdir("/")
    assert job.lacking() == []
