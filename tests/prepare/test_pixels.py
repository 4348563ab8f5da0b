"""Photographs as an image tower sees them, in evaluation and in training.

Decoded by other processes they have the same pixels, errors come at their place, and nobody is left behind.
"""

import multiprocessing
import os
import pickle
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing

from aoq.models import build_model
from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.data.augmentation import GREY, RANDOM_OPERATIONS, augment, random_crop
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.demo import read_labels, write_demo_world
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.pixels import decoded_elsewhere, may_be_flipped
from aoq.pipeline.prepare.extractors import open_encoder
from aoq.pipeline.prepare.photographs import open_pixels, write_demo_pictures
from aoq.pipeline.prepare.pieces import Pieces
from aoq.pipeline.stages.encoding import Encoding
from tests.prepare.conftest import TINY, WORDS, picture, save_clip
from tests.programs import forking

SEEN = Preprocessing(16, 24, (16, 24), (0.5,) * 3, (0.5,) * 3, "bilinear")
CROPPED = Preprocessing(16, 16, 20, (0.5,) * 3, (0.5,) * 3, "bicubic")
WAYS = ("crop", "flip", "randaugment")


@pytest.mark.parametrize("pack", [True, False])
def test_pixels_are_the_preprocessed_photographs(prepared, photos, pack):
    folder = prepared(photos, pack=pack)
    split = open_split(folder, "train")
    pixels, rows = open_pixels(folder, split, CROPPED), np.array([3, 0, 3, 15])
    read = pixels.read(rows)
    assert read.dtype == torch.uint8
    numbers = [int(name.removesuffix(".png")) for name in split.ids]
    for row, one in zip(rows, read, strict=True):
        assert np.array_equal(one, CROPPED.pixels(picture(numbers[row])))
    assert torch.equal(pickle.loads(pickle.dumps(pixels)).read(rows), read)


def test_augmented_pixels_depend_on_seed_epoch_and_row_alone(prepared, photos):
    folder = prepared(photos)
    pixels = open_pixels(folder, open_split(folder, "train"), SEEN)
    whole = pixels.augmented(WAYS, 0, 1).read(np.arange(16))
    for rows in (np.array([5, 2]), np.array([2]), np.array([7, 7, 5])):
        assert torch.equal(pixels.augmented(WAYS, 0, 1).read(rows), whole[rows])
    for other in ((1, 1), (0, 2)):
        changed = pixels.augmented(WAYS, *other).read(np.arange(16))
        assert (changed != whole).flatten(1).any(1).sum() > 12
    assert torch.equal(pixels.augmented((), 0, 1).read(np.arange(4)), pixels.read(np.arange(4)))


def test_an_image_is_flipped_unless_a_caption_names_a_side():
    image = picture(0, 24, 16)
    plain = SEEN.pixels(image)
    flips = {False: 0, True: 0}
    for epoch in range(40):
        for may_flip in flips:
            pixels = augment(image, SEEN, ("flip",), 0, epoch, 3, may_flip=may_flip)
            is_flipped = np.array_equal(pixels, plain[:, ::-1])
            assert is_flipped or np.array_equal(pixels, plain)
            flips[may_flip] += is_flipped
    assert flips[False] == 0
    assert 10 < flips[True] < 30
    cropped, both = (augment(image, SEEN, ways, 0, 0, 5, may_flip=True) for ways in (("crop",), ("crop", "flip")))
    assert np.array_equal(both, cropped) or np.array_equal(both, cropped[:, ::-1])  # each way draws its own numbers
    captions = ["A dog to the LEFT", "a cat", "the leftmost bird", "a bright light", "a right-hand turn"]
    may = may_be_flipped(captions, np.array([0, 0, 1, 2, 3], np.int32), 5)
    assert may.tolist() == [False, False, True, False, True]


@pytest.mark.parametrize("size", [(60, 40), (200, 3), (3, 200)])
def test_crops_are_parts_of_at_least_half_of_an_image(size):
    """Pixels of the image hold their coordinates, so a crop shows its corners."""
    wide, high = size
    x, y = np.meshgrid(np.linspace(0, 255, wide), np.linspace(0, 255, high))
    image = Image.fromarray(np.stack([x, y, 0 * x], axis=2).astype(np.uint8))
    areas = []
    for seed in range(50):
        crop = random_crop(image, SEEN, np.random.default_rng(seed)).astype(float)
        areas.append(np.prod([np.ptp(crop[..., axis]) / 255 for axis in (0, 1)]))
    if size == (60, 40):
        assert min(areas) > 0.4
        assert np.ptp(areas) > 0.3
    else:  # no crop of such a shape lies inside: the whole is seen
        assert min(areas) > 0.85


@pytest.mark.parametrize("strength", [0.5, -0.5])
def test_random_operations(strength):
    image = picture(2, 30, 20)
    plain, results = np.asarray(image), [np.asarray(operation(image, strength)) for operation in RANDOM_OPERATIONS]
    assert {one.shape for one in results} == {(20, 30, 3)}
    assert np.array_equal(results[0], plain)
    assert (results[3].mean() > plain.mean()) == (strength > 0)
    rotated, shifted = results[5].astype(int), results[8].astype(int)
    assert (rotated[0, 0] == GREY).all() or (rotated[-1, 0] == GREY).all()
    assert np.abs(shifted - np.roll(plain, -round(0.3 * strength * 30), axis=1))[:, 5:-5].mean() < 3
    red = Image.new("RGB", (31, 21), "red")
    middle = [np.asarray(operation(red, strength))[10, 15] for operation in RANDOM_OPERATIONS[5:8]]
    assert all((colour == (255, 0, 0)).all() for colour in middle)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("path", [*range(16)], "column 'path' has type int64, and string is needed"),
        ("sha256", [None, *"0" * 15], "1 values of column 'sha256' are empty"),
        ("sha256", ["0"] * 16, r"01.png: was changed since the folder was prepared; prepare"),
        (None, None, r"has no train_images.parquet, .*; `aoq prepare SOURCE FOLDER --pack` makes"),
    ],
)
def test_a_wrong_list_of_photographs_is_refused(prepared, photos, column, values, message):
    folder = prepared(photos)
    path = folder / "train_images.parquet"
    table = pq.read_table(path)
    if column is None:
        path.unlink()
    else:
        pq.write_table(table.set_column(table.schema.get_field_index(column), column, [values]), path)
    with pytest.raises(ValueError, match=message):
        open_pixels(folder, open_split(folder, "train"), SEEN).read(np.array([0]))


def test_the_demos_pictures_show_its_scenes(tmp_path):
    """The ground's colour in the background, each object's colour in the middle of its box if nothing lies above."""
    write_demo_world(tmp_path, images=40, dev_images=1, seed=0)
    write_demo_pictures(tmp_path)
    split, labels = open_split(tmp_path, "train"), read_labels(tmp_path, "train")["regions"]
    whole = Preprocessing(96, 96, (96, 96), (0.5,) * 3, (0.5,) * 3)
    pictures = open_pixels(tmp_path, split, whole).read(np.arange(40)).numpy()
    backgrounds, colours = {}, {}
    for image, regions, boxes in zip(pictures, labels, split.boxes, strict=True):
        ground = next(region[4] for region in regions if region[4] >= 0)
        values, counts = np.unique(image.reshape(-1, 3), axis=0, return_counts=True)
        backgrounds.setdefault(ground, set()).add(tuple(values[counts.argmax()]))
        objects = [(region[1], box) for region, box in zip(regions, boxes, strict=True) if region[0] >= 0]
        colour, box = objects[-1]  # drawn last
        x, y = (box[:2] + box[2:]) / 2 * 96
        colours.setdefault(colour, set()).add(tuple(image[int(y), int(x)]))
    for shades in (backgrounds, colours):
        assert len(shades) >= 4
        assert {len(one) for one in shades.values()} == {1}
        assert len(set().union(*shades.values())) == len(shades)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_pair_in_a_dual_encoder_gives_the_vectors_of_the_pair_as_an_encoder(prepared, photos, tmp_path, kind):
    """Photographs and captions take two ways that share only the library."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    seen = {"model_input_names": ["input_ids"]} if kind == "siglip" else {}  # as SigLIP's own: it sees padding
    _, tokeniser = save_clip(tmp_path / "pair", model_max_length=8, **seen)
    if kind == "siglip":
        text = {**TINY, "vocab_size": len(WORDS), "max_position_embeddings": 8, "projection_size": 16}
        sides = {"text_config": {**text, "pad_token_id": 0}}
        sides["vision_config"] = {**TINY, "image_size": 32, "patch_size": 8}
        transformers.SiglipModel(transformers.SiglipConfig(**sides)).save_pretrained(tmp_path / "pair")
        tokeniser.backend_tokenizer.post_processor = TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
        tokeniser.save_pretrained(tmp_path / "pair")
    folder, name = prepared(photos), f"transformers:{tmp_path / 'pair'}"
    split, pieces, encoder = open_split(folder, "train"), Pieces.open(name), open_encoder(name)
    options = {"image_tower": name, "text_tower": name, "image_pooling": "native", "text_pooling": "native"}
    sizes = {"feature_size": 3, "vocabulary_size": len(pieces), "embedding_size": encoder.images.dims}
    dual = build_model("dual_encoder", **sizes, **options, project=False).eval()
    dual.load_pretrained()
    pixels = open_pixels(folder, split, dual.preprocessing)
    pairs = PairData(split, pieces.tokenised(split.captions), pixels=pixels)
    sides = Encoding(name, folder, "train", 16, 16, split.captions).sides(torch.device("cpu"))
    with torch.inference_mode():
        codes = dual.encode_images(pairs.images(np.arange(16))), dual.encode_captions(pairs.captions(np.arange(32)))
        for code, side, count in zip(codes, ("images", "captions"), (16, 32), strict=True):
            torch.testing.assert_close(code.vectors, sides[side].vectors(np.arange(count)), atol=1e-5, rtol=1e-4)


@pytest.fixture
def folder(prepared, photos):
    return prepared(photos)


def opened(folder):
    return open_pixels(folder, open_split(folder, "train"), SEEN)


@contextmanager
def started(folder, count):
    """The pool, all of whose processes run, and their ids."""
    with decoded_elsewhere(opened(folder), count) as pixels:
        pixels.read(np.arange(16))
        yield pixels, [process.pid for process in multiprocessing.active_children()]


def read_on(pixels, rows):
    for _ in range(1000):
        pixels.read(rows)


def runs(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_pixels_are_those_of_one_process_and_a_killed_one_is_one_sentence(folder, photos):
    alone, rows = opened(folder), np.array([7, 7, 3, 15, 0, 1])
    with started(folder, 2) as (pixels, pids):
        assert torch.equal(pixels.read(rows), alone.read(rows))
        for epoch in (0, 1):
            changed = alone.augmented(WAYS, 5, epoch).read(rows)
            assert torch.equal(pixels.augmented(WAYS, 5, epoch).read(rows), changed)
            assert torch.equal(pixels.augmented(WAYS, 5, epoch).read(rows[:1]), changed[:1])
        (photos.parent / "01.png").write_bytes((photos.parent / "02.png").read_bytes())
        with pytest.raises(ValueError, match=r"^\S+01.png: was changed since the folder was prepared; prepare"):
            pixels.read(rows)
        assert torch.equal(pixels.read(rows[:4]), alone.read(rows[:4]))  # the others go on
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(ChildProcessError, match=r"^a process that decodes photographs was killed, .* Run again: "):
            read_on(pixels, rows[:4])
    assert not multiprocessing.active_children()


def _begin(folder, told):
    with started(folder, 1) as (_, pids):
        told.send(pids)
        time.sleep(600)


def test_none_outlives_a_killed_training(folder):
    here, there = forking().Pipe()
    training = forking().Process(target=_begin, args=(folder, there))
    training.start()
    assert here.poll(60)
    pids = here.recv()
    assert len(pids) == 1
    assert all(map(runs, pids))
    training.kill()
    training.join()
    until = time.monotonic() + 30
    while any(map(runs, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(runs, pids))
