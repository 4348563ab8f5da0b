"""Photographs as an image tower sees them, in evaluation and in training."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing

from aoq.models import build_model
from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.demo import read_labels, write_demo_world
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.prepare.augmentation import GREY, RANDOM_OPERATIONS, augment, random_crop
from aoq.pipeline.prepare.demo_pictures import write_demo_pictures
from aoq.pipeline.prepare.encoders import open_encoder
from aoq.pipeline.prepare.images import decode
from aoq.pipeline.prepare.pieces import Pieces
from aoq.pipeline.prepare.pixels import may_be_flipped, open_pixels
from aoq.pipeline.stages.encoding import Encoding
from tests.prepare.conftest import TINY, WORDS, picture, save_clip

SEEN = Preprocessing(16, 24, (16, 24), (0.5,) * 3, (0.5,) * 3, "bilinear")
CROPPED = Preprocessing(16, 16, 20, (0.5,) * 3, (0.5,) * 3, "bicubic")


@pytest.fixture(params=[True, False], ids=["packed", "files"])
def folder(prepared, photos, request):
    return prepared(photos, pack=request.param)


def test_pixels_are_what_the_preprocessing_makes_of_each_photograph(folder):
    split = open_split(folder, "train")
    pixels, rows = open_pixels(folder, split, CROPPED), np.array([3, 0, 3, 15])
    found = pixels.read(rows)
    assert found.dtype == torch.uint8
    numbers = [int(name.removesuffix(".png")) for name in split.ids]
    for row, made in zip(rows, found, strict=True):
        assert np.array_equal(made, CROPPED.pixels(picture(numbers[row])))
    assert torch.equal(pickle.loads(pickle.dumps(pixels)).read(rows), found)


def test_augmented_pixels_depend_on_seed_epoch_and_row_alone(folder):
    pixels = open_pixels(folder, open_split(folder, "train"), SEEN)
    ways = ("crop", "flip", "randaugment")
    whole = pixels.augmented(ways, 0, 1).read(np.arange(16))
    for rows in (np.array([5, 2]), np.array([2]), np.array([7, 7, 5])):
        assert torch.equal(pixels.augmented(ways, 0, 1).read(rows), whole[rows])
    for other in ((1, 1), (0, 2)):
        changed = pixels.augmented(ways, *other).read(np.arange(16))
        assert (changed != whole).flatten(1).any(1).sum() > 12
    assert torch.equal(pixels.augmented((), 0, 1).read(np.arange(4)), pixels.read(np.arange(4)))


def test_an_image_is_flipped_where_no_caption_names_a_side():
    image = picture(0, 24, 16)
    plain = SEEN.pixels(image)
    found = {False: 0, True: 0}
    for epoch in range(40):
        for may_flip in found:
            made = augment(image, SEEN, ("flip",), 0, epoch, 3, may_flip=may_flip)
            is_flipped = np.array_equal(made, plain[:, ::-1])
            assert is_flipped or np.array_equal(made, plain)
            found[may_flip] += is_flipped
    assert found[False] == 0
    assert 10 < found[True] < 30
    captions = ["A dog to the LEFT", "a cat", "the leftmost bird", "a bright light", "a right-hand turn"]
    assert may_be_flipped(captions, np.array([0, 0, 1, 2, 3], np.int32), 5).tolist() == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_one_way_does_not_move_the_random_numbers_of_another():
    image = picture(1, 60, 40)
    cropped = augment(image, SEEN, ("crop",), 0, 0, 5, may_flip=True)
    both = augment(image, SEEN, ("crop", "flip"), 0, 0, 5, may_flip=True)
    assert np.array_equal(both, cropped) or np.array_equal(both, cropped[:, ::-1])


@pytest.mark.parametrize("size", [(60, 40), (200, 3), (3, 200)])
def test_crops_are_parts_of_at_least_half_of_an_image(size):
    """Pixels of the image hold their coordinates, so a crop shows its corners."""
    wide, high = size
    x, y = np.meshgrid(np.linspace(0, 255, wide), np.linspace(0, 255, high))
    image = Image.fromarray(np.stack([x, y, 0 * x], axis=2).astype(np.uint8))
    areas = []
    for seed in range(50):
        seen = random_crop(image, SEEN, np.random.default_rng(seed)).astype(float)
        spread = [(seen[..., axis].max() - seen[..., axis].min()) / 255 for axis in (0, 1)]
        areas.append(spread[0] * spread[1])
    assert min(areas) > 0.4
    if size == (60, 40):
        assert np.ptp(areas) > 0.3
    else:  # no crop of such a shape lies inside: the whole is seen
        assert min(areas) > 0.85


@pytest.mark.parametrize("strength", [0.5, -0.5])
def test_operations_keep_the_size_and_do_what_they_are_called(strength):
    image = picture(2, 30, 20)
    made = [np.asarray(operation(image, strength)) for operation in RANDOM_OPERATIONS]
    assert {one.shape for one in made} == {(20, 30, 3)}
    assert np.array_equal(made[0], image)
    brighter = made[3].mean() > np.asarray(image).mean()
    assert brighter == (strength > 0)
    rotated, shifted = made[5], made[8]
    assert (rotated[0, 0] == GREY).all() or (rotated[-1, 0] == GREY).all()
    offset = round(0.3 * strength * 30)
    plain = np.asarray(image)
    kept = (shifted[:, 5:-5], np.roll(plain, -offset, axis=1)[:, 5:-5])
    assert np.abs(kept[0].astype(int) - kept[1].astype(int)).mean() < 3
    middle = [
        np.asarray(operation(Image.new("RGB", (31, 21), "red"), strength))[10, 15]
        for operation in RANDOM_OPERATIONS[5:8]
    ]
    assert all((colour == (255, 0, 0)).all() for colour in middle)


def test_a_folder_without_photographs_names_the_command(prepared, photos):
    folder = prepared(photos)
    (folder / "train_images.parquet").unlink()
    with pytest.raises(ValueError, match=r"has no train_images.parquet, .*; `aoq prepare SOURCE FOLDER --pack` makes"):
        open_pixels(folder, open_split(folder, "train"), SEEN)


def test_a_photograph_that_was_changed_is_refused(prepared, photos):
    folder = prepared(photos)
    pixels = open_pixels(folder, open_split(folder, "train"), SEEN)
    (photos.parent / "01.png").write_bytes((photos.parent / "02.png").read_bytes())
    with pytest.raises(ValueError, match=r"01.png: was changed since the folder was prepared; prepare"):
        pixels.read(np.array([0]))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [("path", [*range(16)], "instead of strings"), ("sha256", [None] * 16, "a photograph has no sha256")],
)
def test_a_list_of_photographs_that_is_none_is_refused(prepared, photos, column, values, message):
    folder = prepared(photos)
    path = folder / "train_images.parquet"
    table = pq.read_table(path)
    changed = table.set_column(table.schema.get_field_index(column), column, [values])
    pq.write_table(changed, path)
    with pytest.raises(ValueError, match=message):
        open_pixels(folder, open_split(folder, "train"), SEEN)


def test_the_demos_pictures_show_its_scenes(tmp_path):
    """The ground's colour in the background, each object's colour in the middle of its box if nothing lies above."""
    write_demo_world(tmp_path, images=40, dev_images=10, seed=0)
    write_demo_pictures(tmp_path)
    split, labels = open_split(tmp_path, "train"), read_labels(tmp_path, "train")["regions"]
    whole = Preprocessing(96, 96, (96, 96), (0.5,) * 3, (0.5,) * 3)
    found = open_pixels(tmp_path, split, whole).read(np.arange(40)).numpy()
    backgrounds, colours = {}, {}
    for image, regions, boxes in zip(found, labels, split.boxes, strict=True):
        ground = next(region[4] for region in regions if region[4] >= 0)
        values, counts = np.unique(image.reshape(-1, 3), axis=0, return_counts=True)
        backgrounds.setdefault(ground, set()).add(tuple(values[counts.argmax()]))
        objects = [(region[1], box) for region, box in zip(regions, boxes, strict=True) if region[0] >= 0]
        colour, box = objects[-1]  # drawn last
        x, y = (box[:2] + box[2:]) / 2 * 96
        colours.setdefault(colour, set()).add(tuple(image[int(y), int(x)]))
    for seen in (backgrounds, colours):
        assert len(seen) >= 4
        assert {len(one) for one in seen.values()} == {1}
        assert len(set().union(*seen.values())) == len(seen)
    assert decode(open_pixels(tmp_path, split, whole).photographs.read(0)).width == 96


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_pair_in_a_dual_encoder_gives_the_vectors_of_the_pair_as_an_encoder(prepared, photos, tmp_path, kind):
    """Photographs and captions take two ways that share only the library."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    seen = {"model_input_names": ["input_ids"]} if kind == "siglip" else {}  # as SigLIP's own: it sees padding
    _, tokeniser = save_clip(tmp_path / "pair", model_max_length=8, **seen)
    if kind == "siglip":
        text = {**TINY, "vocab_size": len(WORDS), "max_position_embeddings": 8, "projection_size": 16}
        sizes = {
            "text_config": {**text, "pad_token_id": 0},
            "vision_config": {**TINY, "image_size": 32, "patch_size": 8},
        }
        transformers.SiglipModel(transformers.SiglipConfig(**sizes)).save_pretrained(tmp_path / "pair")
        tokeniser.backend_tokenizer.post_processor = TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
        tokeniser.save_pretrained(tmp_path / "pair")
    folder, name = prepared(photos), f"transformers:{tmp_path / 'pair'}"
    split, pieces, encoder = open_split(folder, "train"), Pieces.open(name), open_encoder(name)
    dual = build_model(
        "dual_encoder",
        feature_size=3,
        vocabulary_size=len(pieces),
        embedding_size=encoder.images.dims,
        image_tower=name,
        text_tower=name,
        image_pooling="native",
        text_pooling="native",
        project=False,
    ).eval()
    dual.load_pretrained()
    pixels = open_pixels(folder, split, dual.preprocessing)
    pairs = PairData(split, pieces.tokenised(split.captions), pixels=pixels)
    sides = Encoding(name, folder, "train", 16, 16, split.captions).sides(torch.device("cpu"))
    with torch.inference_mode():
        found = dual.encode_images(pairs.images(np.arange(16))), dual.encode_captions(pairs.captions(np.arange(32)))
        for code, side, count in zip(found, ("images", "captions"), (16, 32), strict=True):
            torch.testing.assert_close(code.vectors, sides[side].vectors(np.arange(count)), atol=1e-5, rtol=1e-4)
