"""What captions of the generated world say, and of which scenes it is true."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.data.demo import SeenScenes, read_claim, write_demo_world
from aoq.pipeline.data.folder import open_split


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_demo_world(folder, images=240, dev_images=10, seed=2)
    return folder


def test_every_caption_is_true_of_its_own_scene(world):
    split, scenes = open_split(world, "train"), SeenScenes.read(world, "train")
    others = 0
    for caption, image in zip(split.captions, split.image_of, strict=True):
        true = read_claim(caption).holds(scenes)
        assert true[image], caption
        others += true.sum() - 1
    assert 0 < others < 0.05 * len(split.captions) * 240


SCENES = SeenScenes(
    groups=np.array([[[0, 0, 0, 1], [11, 3, 1, 2], [5, 1, 0, 0]], [[0, 0, 0, 2], [11, 3, 1, 2], [5, 1, 0, 1]]]),
    cells=np.array([[[2, 0], [0, 0], [1, 1]], [[0, 2], [1, 0], [1, 1]]]),
    ground=np.array([0, 4]),
)


@pytest.mark.parametrize(
    ("caption", "true"),
    [
        ("A small red dog .", [1, 0]),
        ("Two dogs .", [0, 1]),
        ("A pair of large yellow kites .", [1, 1]),
        ("Two small kites .", [0, 0]),
        ("A horse .", [0, 1]),  # the first scene has none
        ("There are two kites on the grass .", [1, 0]),
        ("Two kites to the left of a dog .", [1, 0]),
        ("Left of a dog are two kites .", [1, 0]),
        ("Two kites over a pair of puppies by the water .", [0, 1]),
        ("A dog , two kites and a horse .", [0, 0]),
        ("Two dogs , two kites and a pony .", [0, 1]),
    ],
)
def test_claims_are_held_against_scenes(caption, true):
    assert read_claim(caption).holds(SCENES).tolist() == [bool(one) for one in true]


def test_other_sentences_are_refused():
    with pytest.raises(ValueError, match="from 'runs fast"):
        read_claim("A dog runs fast .")
