"""Data given for a table's rows are those that it was mined on."""

import shutil

import numpy as np
import pytest

from aoq.pipeline.data.folder import split_fingerprint
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import EACH, IMAGES, TINY, run
from tests.stages.conftest import MINING, chain_of, make_stage

BATCHES = ("out", "--batch-size", 4)
FORMAT = ("--format", "pylate", "--direction", "t2i", "--image-texts", "described.txt")


@pytest.fixture
def data(files):
    """`own`, the data of `named`; `turned`, with the captions in another order; `other`, with other ids of images."""
    for name in ("own", "turned", "other"):
        (files / name).mkdir()
        np.save(files / name / "train_ims.npy", np.zeros((IMAGES, 1, 4), np.float32))
        shutil.copy("captions.txt", files / name / "train_caps.txt")
        shutil.copy("ids.txt", files / name / "train_ids.txt")
    for name, file in (("turned", "train_caps.txt"), ("other", "train_ids.txt")):
        lines = (files / name / file).read_text().splitlines()
        (files / name / file).write_text("\n".join(reversed(lines)) + "\n")
    read_table("table").save("named", dataset=split_fingerprint(files / "own", "train"))
    kept = ("--per-image", EACH, "--h-captions", 6, "--h-images", 4, "--image-ids", "ids.txt")
    run("mine", "images.npy", "captions.npy", "kept", *kept)
    return files


WRONG = {
    "named": ("turned", "the table was mined on other data (fingerprint "),
    "kept": ("other", "image 0 is '0.jpg' in the table and '14.jpg' in the split"),
}


@pytest.mark.parametrize(
    "command",
    [
        *(("export", "out", *FORMAT), ("to-judge", "out.csv"), ("publish", "out"), ("batches", *BATCHES)),
        ("batches", *BATCHES, "--write-shards", "--image-root", "pictures"),
    ],
)
def test_data_that_are_not_the_tables_are_refused(data, command):
    name, *arguments = command
    before = sorted(data.iterdir())
    for table, (wrong, message) in WRONG.items():
        said = run(name, table, *arguments, "--data", wrong, code=1).stderr
        assert message in said
        assert "in another order; give the data that the table was mined on, or mine again.\n" in said
        assert said.count("\n") == 1
    assert sorted(data.iterdir()) == before
    run(name, "named", *arguments, "--data", "own")


@pytest.fixture(scope="module", params=["dataset.noise.ratio=0.3", "dataset.train_images=40"])
def changed(request, tmp_path_factory):
    """The roots and the name of an experiment that trains on wrong pairs, or on a part of the images; its folder."""
    root = tmp_path_factory.mktemp("changed")
    chain = chain_of(request.param, root=root)
    for stage in ("world", *MINING):
        make_stage(chain, stage)
    return ("--data-root", root, "--artifact-root", root), f"{TINY}@{request.param}", chain.folder


@pytest.mark.parametrize(
    "command", [("export", "--format", "trec"), ("to-judge",), ("publish",), ("batches", "--batch-size", 4)]
)
def test_an_experiments_own_folder_is_taken_as_it_trains_on_it(changed, tmp_path, command):
    roots, experiment, folder = changed
    name, *options = command
    made = {}
    for place, data in (("own", ()), ("given", ("--data", folder))):
        output = tmp_path / place / "made.csv"
        output.parent.mkdir()
        run(name, experiment, output, *options, *data, *roots)
        files = [output] if output.is_file() else sorted(output.rglob("*.*"))
        made[place] = [(file.name, file.read_bytes()) for file in files if file.name != "README.md"]
    assert made["own"] == made["given"] != []
    assert name != "publish" or "images.parquet" in dict(made["own"])
