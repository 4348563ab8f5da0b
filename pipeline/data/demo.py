"""The demo: a complete dataset folder of a generated world, with the truth about every region and phrase.

`{split}_labels.json` is that truth, a json object:

    names     object, colour, size, ground: names of the numbers below
    regions   per image and region [object, colour, size, group, ground], -1 if it does not apply; a region is an
              object of a group, or ground, or clutter (all -1). The objects of a group share a phrase.
    phrases   per caption [start, stop, [region, ...]]: the tokens start .. stop - 1 of the tokenised caption
              (counted without `<start>`) refer to these regions of its image. Other words refer to none.

Words and labels together determine which captions are true of which scenes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from jaxtyping import Bool
from pydantic import BeforeValidator, NonNegativeInt
from typing_extensions import TypedDict

from aoq.pipeline.data import demo_scenes as world
from aoq.pipeline.reading import open_array, read_json, reading

SpokenPhrase = Annotated[tuple[NonNegativeInt, NonNegativeInt, list[NonNegativeInt]], BeforeValidator(tuple)]


class Labels(TypedDict):
    """The truth about a split of a generated world."""

    regions: list[list[list[int]]]
    phrases: list[list[SpokenPhrase]]


def write_demo_world(
    folder: Path,
    *,
    images: int = 3000,
    dev_images: int = 500,
    seed: int,
    feature_noise: float = 2.0,
    captions_an_image: int = 5,
    detail: world.Detail = "partial",
) -> None:
    """Write the splits train and dev, byte for byte reproducible from the arguments.

    `feature_noise` is the standard deviation added to every feature; an object's own features have about 1.9.
    """
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)]
    looks = world.draw_looks(streams[0])
    folder.mkdir(parents=True, exist_ok=True)
    for split, size, rng in (("train", images, streams[1]), ("dev", dev_images, streams[2])):
        scenes, family = world.draw_scenes(size, rng)
        labels, boxes = world.place_regions(scenes, rng)
        captions = world.narrate(scenes, family, captions_an_image, rng, detail)
        features = world.region_features(looks, labels, boxes, feature_noise, rng)
        image_of = np.repeat(np.arange(size, dtype=np.int32), captions_an_image)
        # The last of the referents is the ground.
        shows = np.concatenate(
            [labels[:, :, 3:4] == np.arange(world.GROUPS), labels[:, :, 4:] != world.UNLABELLED], axis=2
        )
        phrases = [
            [[start, stop, np.flatnonzero(shows[image, :, referent]).tolist()] for start, stop, referent in spoken]
            for image, (_, spoken) in zip(image_of, captions, strict=True)
        ]
        truth = {"names": world.LABEL_NAMES, "regions": labels.tolist(), "phrases": phrases}
        for name, array in (("ims", features.astype(np.float16)), ("boxes", boxes), ("pairs", image_of)):
            np.save(folder / f"{split}_{name}.npy", array)
        for name, lines in (
            ("caps.txt", [caption.text for caption in captions]),
            ("ids.txt", [f"{split}-{row:06d}" for row in range(size)]),
            ("labels.json", [json.dumps(truth, separators=(",", ":"))]),
        ):
            (folder / f"{split}_{name}").write_bytes("".join(f"{line}\n" for line in lines).encode())


def labels_path(folder: Path, split: str) -> Path:
    """Return the path of the truth about a split of a generated world; other data have no such file."""
    return folder / f"{split}_labels.json"


def read_labels(folder: Path, split: str) -> Labels:
    """Read the truth about a split of a generated world; its regions are those of the boxes."""
    path = labels_path(folder, split)
    labels = read_json(path, Labels)
    images, regions = open_array(folder / f"{split}_boxes.npy").shape[:2]
    kinds = *(len(world.LABEL_NAMES[name]) for name in ("object", "colour", "size")), world.GROUPS, len(world.GROUNDS)
    with reading(path, f"the truth about {regions} regions of {images} images"):
        numbers = np.array(labels["regions"])
        if numbers.shape != (images, regions, 5) or (numbers < world.UNLABELLED).any() or (numbers >= kinds).any():
            raise ValueError(f"regions are {numbers.shape}, or a number names nothing")
    return labels


def read_scenes(folder: Path, split: str) -> world.Scenes:
    """Reconstruct the scenes of a generated world from its labels and boxes."""
    labels = np.array(read_labels(folder, split)["regions"])
    low, high = np.split(open_array(folder / f"{split}_boxes.npy"), 2, axis=2)
    cells = np.minimum((low + high) / 2 * world.SIDE, world.SIDE - 1).astype(np.int64)
    belongs = labels[:, :, 3:4] == np.arange(world.GROUPS)
    images, first = np.arange(len(labels))[:, None], belongs.argmax(axis=1)
    groups = np.concatenate([labels[images, first, :3], belongs.sum(axis=1)[..., None]], axis=2)
    return world.Scenes(groups, cells[images, first], labels[:, :, 4].max(axis=1))


def _numbered(words: Iterable[Sequence[str]]) -> dict[str, int]:
    return {word: number for number, synonyms in enumerate(words) for word in synonyms}


_NUMBERS = {
    "count": _numbered(world.COUNT_WORDS),
    "size": _numbered(world.SIZE_WORDS),
    "colour": _numbered(world.COLOUR_WORDS),
    "noun": _numbered([*words, *(world.PLURALS[word] for word in words)] for words in world.NOUNS),
    "ground": _numbered(
        [f"{word} the {ground}"] for word, ground in zip(world.PREPOSITIONS, world.GROUNDS, strict=True)
    ),
}
_SIDES = {word: sides for sides, words in world.RELATIONS.items() for word in words}
_WORDS: dict[str, Iterable[str]] = {**_NUMBERS, "relation": _SIDES}
_COUNT, _SIZE, _COLOUR, _NOUN, _GROUND, _RELATION = (
    f"(?P<{name}>{'|'.join(sorted(words, key=len, reverse=True))})" for name, words in _WORDS.items()
)
_ANY = -2
_CAPTION_PIECE = re.compile(
    rf"(?:{_COUNT} (?:{_SIZE} )?(?:{_COLOUR} )?{_NOUN}\b|{_RELATION}|{_GROUND}|there|is|are|and|[.,])\s*|(?P<other>.+)",
    re.DOTALL,
)


def is_true(caption: str, scenes: world.Scenes) -> Bool[np.ndarray, " images"]:
    """Return whether a caption of the generated world is true of each scene; unmentioned properties may be anything."""
    true, cells, relation = np.ones(len(scenes), dtype=np.bool_), [], None
    for piece in _CAPTION_PIECE.finditer(caption.lower()):
        if piece["other"]:
            raise ValueError(f"{caption!r} is not a caption of the generated world, from {piece['other']!r} on.")
        if piece["noun"]:
            properties = [_NUMBERS[name].get(piece[name], _ANY) for name in ("noun", "colour", "size", "count")]
            fits = ((scenes.groups == properties) | (np.array(properties) == _ANY)).all(axis=2)
            true &= fits.any(axis=1)
            # The objects of a scene differ, so an object identifies its group.
            cells.append(scenes.cells[np.arange(len(scenes)), fits.argmax(axis=1)])
        elif piece["relation"]:
            # "Left of a dog is a cat" names the cat, the object to the left, last.
            relation, sign = _SIDES[piece["relation"]], 1 if cells else -1
        elif piece["ground"]:
            true &= scenes.ground == _NUMBERS["ground"][piece["ground"]]
    if relation is not None:
        if len(cells) < 2:
            raise ValueError(f"{caption!r} is not a caption of the generated world: its relation is not between two.")
        true &= np.sign(cells[0] - cells[1]) @ relation == sign
    return true
