"""A table of pictures of one colour each, and a tiny CLIP; where a trainer is not installed its tests are left out."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence
from torch.nn.functional import cosine_similarity

import aoq
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.folder import split_fingerprint
from aoq.pipeline.prepare.photographs import write_demo_pictures
from tests.exports.conftest import clip, datasets, export, run, world  # noqa: F401  (fixtures)

ADAPTIVE = {"alpha": 0.3, "beta": 1.5}
MARGINS = {"margin_online": 0.2, "margin_offline": 0.0}
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


def distillation(images, captions, pairs, teachers, temperature=0.05):
    """KL(p || q) of every image and every caption of a batch, divided by the number of pairs."""
    rows, columns = (list(side) for side in zip(*pairs, strict=True))
    vectors = [(images[: len(rows)], captions[: len(rows)])]
    vectors += [(one[rows], other[columns]) for one, other in teachers]
    ours, *theirs = (cosine_similarity(one[:, None], other[None], dim=2) / temperature for one, other in vectors)
    p = sum(theirs) / len(theirs)
    both = ((p, ours), (p.T, ours.T))
    total = sum(kl_divergence(*(Categorical(logits=one) for one in each)).sum() for each in both)
    return float(total / len(pairs))


@pytest.fixture
def teachers():
    """Vectors of the world's images and captions by two teachers."""
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randn(rows, width, generator=generator) for rows in (15, 30)) for width in (6, 9)]
