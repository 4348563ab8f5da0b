"""A table of pictures of one colour each, and a tiny CLIP; where a trainer is not installed its tests are left out."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

import aoq
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.folder import split_fingerprint
from aoq.pipeline.prepare.demo_pictures import write_demo_pictures
from tests.exports.conftest import clip, datasets, export, run, world  # noqa: F401  (fixtures)

NEEDS = {
    "sentence_transformers": ["test_sentence_transformers.py", "two_processes.py"],
    "open_clip_train": ["test_open_clip_training.py"],
}
collect_ignore_glob = [name for library, names in NEEDS.items() if not find_spec(library) for name in names]


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """A small demo world with pictures, as `aoq prepare --pack` leaves them, and a table of random vectors."""
    folder, rng = tmp_path_factory.mktemp("demo") / "data", np.random.default_rng(0)
    write_demo_world(folder, images=24, dev_images=4, seed=0, captions_an_image=2)
    write_demo_pictures(folder)
    vectors = rng.normal(size=(24, 8)), rng.normal(size=(48, 8))
    table = aoq.hard_negatives(*vectors, np.arange(48) // 2, h=(6, 4))
    table.save(folder.parent / "table", dataset=split_fingerprint(folder, "train"))
    return SimpleNamespace(folder=folder, table=aoq.read_table(folder.parent / "table"), path=folder.parent / "table")
