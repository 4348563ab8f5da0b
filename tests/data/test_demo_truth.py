"""Captions of the generated world are true of their own scene; for any other scene the truth can be computed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aoq.pipeline.data.demo import is_true, read_labels, read_scenes, write_demo_world
from aoq.pipeline.data.demo_scenes import Scenes
from aoq.pipeline.data.folder import open_split


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_demo_world(folder, images=240, dev_images=10, seed=2)
    return folder


def test_every_caption_is_true_of_its_own_scene(world):
    split, scenes = open_split(world, "train"), read_scenes(world, "train")
    others = 0
    for caption, image in zip(split.captions, split.image_of, strict=True):
        true = is_true(caption, scenes)
        assert true[image], caption
        others += true.sum() - 1
    assert 0 < others < 0.05 * len(split.captions) * 240


@pytest.mark.parametrize(("detail", "fewest", "most"), [("partial", 0.25, 0.7), ("full", 0.0, 0.05)])
def test_few_captions_in_full_detail_are_true_of_another_scene(tmp_path, detail, fewest, most):
    write_demo_world(tmp_path, images=600, dev_images=6, seed=0, detail=detail)
    split, scenes = open_split(tmp_path, "train"), read_scenes(tmp_path, "train")
    rows = range(0, split.caption_count, 7)
    true = [is_true(split.captions[row], scenes) for row in rows]
    assert all(found[split.image_of[row]] for found, row in zip(true, rows, strict=True))
    assert fewest <= np.mean([found.sum() > 1 for found in true]) <= most


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda truth: truth.pop("phrases"), "phrases: field required"),
        (lambda truth: truth["regions"].pop(), "the truth about 12 regions of 6 images"),
        (lambda truth: truth["regions"][0].pop(), "the truth about 12 regions of 6 images"),
        (lambda truth: truth["regions"][0][0].__setitem__(0, 12), "a number names nothing"),
        (lambda truth: truth["regions"][0][0].__setitem__(0, 10**20), "a number names nothing"),
        (lambda truth: truth["regions"][0][0].__setitem__(1, None), "regions.0.0.1: input should be a valid integer"),
        (lambda truth: truth["phrases"][0].append([0, 1, [-1]]), "phrases.0..*greater than or equal to 0"),
        (lambda truth: truth["phrases"][0].append(7), "not iterable"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path, damage, message):
    write_demo_world(tmp_path, images=6, dev_images=6, seed=0)
    truth = json.loads((tmp_path / "dev_labels.json").read_text())
    damage(truth)
    (tmp_path / "dev_labels.json").write_text(json.dumps(truth))
    with pytest.raises(ValueError, match=rf"dev_labels.json is damaged or not .*{message}"):
        read_labels(tmp_path, "dev")


SCENES = Scenes(
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
    assert is_true(caption, SCENES).tolist() == [bool(one) for one in true]


@pytest.mark.parametrize(
    ("caption", "message"),
    [("A dog runs fast .", "from 'runs fast"), ("A dog left of .", "its relation is not between two"), ("Over .", "")],
)
def test_other_sentences_are_refused(caption, message):
    with pytest.raises(ValueError, match=f"is no caption of the generated world.*{message}"):
        is_true(caption, SCENES)
