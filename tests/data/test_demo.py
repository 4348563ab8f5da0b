"""The demo world: the same bytes for the same seed, hard by one word, and truthful about every scene."""

import json
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.demo import is_true, read_labels, read_scenes, write_demo_world
from aoq.pipeline.data.demo_scenes import COLOUR_WORDS, COUNT_WORDS, GROUNDS, NOUNS, PLURALS, SIZE_WORDS, Scenes
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.vocabulary import tokenise

NOUN_OF = {form: names[0] for names in NOUNS for name in names for form in (name, PLURALS[name])}
COLOUR_OF = {word: words[0] for words in COLOUR_WORDS for word in words}
SIZE_OF = {word: words[0] for words in SIZE_WORDS for word in words}
COUNT_OF = {
    word.split()[-2] if word == "a pair of" else word: n for n, words in enumerate(COUNT_WORDS) for word in words
}
GROUND_OF = {ground: ground for ground in GROUNDS}


def test_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        write_demo_world(tmp_path / name, images=20, dev_images=7, seed=seed)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 12
    for file in files:
        content = (tmp_path / "one" / file).read_bytes()
        assert (tmp_path / "two" / file).read_bytes() == content
        if "pairs" not in file and "ids" not in file:
            assert (tmp_path / "other" / file).read_bytes() != content


def test_a_folder_is_complete_and_sound(tmp_path: Path) -> None:
    write_demo_world(tmp_path, images=9, dev_images=2, seed=0, captions_an_image=3)
    assert examine_folder(tmp_path).flaws == []
    split = open_split(tmp_path, "train")
    assert (split.features.shape, split.features.dtype) == ((9, 12, 64), np.float16)
    assert split.boxes is not None
    assert split.captions_of.most == 3
    assert open_split(tmp_path, "dev").image_count == 2


def test_phrases_say_what_their_regions_hold(tmp_path: Path) -> None:
    write_demo_world(tmp_path, images=120, dev_images=30, seed=7)
    train, labels = open_split(tmp_path, "train"), json.loads((tmp_path / "train_labels.json").read_text())
    names = labels["names"]
    assert len(labels["phrases"]) == train.caption_count
    assert np.shape(labels["regions"]) == (120, 12, 5)
    for caption, image, phrases in zip(train.captions, train.image_of, labels["phrases"], strict=True):
        tokens = tokenise(caption)
        assert phrases
        for start, stop, regions in phrases:
            held = [labels["regions"][image][region] for region in regions]
            assert held
            for word in tokens[start:stop]:
                for thing, colour, size, _, ground in held:
                    assert NOUN_OF.get(word) in (None, names["object"][thing])
                    assert COLOUR_OF.get(word) in (None, names["colour"][colour])
                    assert SIZE_OF.get(word) in (None, names["size"][size])
                    assert GROUND_OF.get(word) in (None, names["ground"][ground])
            if tokens[start] != "the":
                told = COUNT_OF["pair" if tokens[start + 1] == "pair" else tokens[start]]
                assert told == len(regions)
                assert len({group for *_, group, _ in held}) == 1
                assert any(word in NOUN_OF for word in tokens[start:stop])


def test_few_captions_in_full_detail_are_true_of_another_scene(tmp_path):
    for detail, fewest, most in (("partial", 0.25, 0.7), ("full", 0.0, 0.05)):
        write_demo_world(tmp_path, images=300, dev_images=6, seed=0, detail=detail)
        split, scenes = open_split(tmp_path, "train"), read_scenes(tmp_path, "train")
        rows = range(0, split.caption_count, 13)
        true = [is_true(split.captions[row], scenes) for row in rows]
        assert all(one[split.image_of[row]] for one, row in zip(true, rows, strict=True))
        assert fewest <= np.mean([one.sum() > 1 for one in true]) <= most


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda truth: truth.pop("phrases"), "phrases: field required"),
        (lambda truth: truth["regions"].pop(), "the truth about 12 regions of 6 images"),
        (lambda truth: truth["regions"][0][0].__setitem__(0, 12), "a number names nothing"),
        (lambda truth: truth["regions"][0][0].__setitem__(0, 10**20), "a number names nothing"),
        (lambda truth: truth["regions"][0][0].__setitem__(1, None), "regions.0.0.1: input should be a valid integer"),
        (lambda truth: truth["phrases"][0].append([0, 1, [-1]]), "phrases.0..*greater than or equal to 0"),
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
        ("Two kites to the left of a dog .", [1, 0]),
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
    with pytest.raises(ValueError, match=f"is not a caption of the generated world.*{message}"):
        is_true(caption, SCENES)
