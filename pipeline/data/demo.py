"""The demo: a complete dataset folder of a generated world, with the truth about every region and phrase.

`{split}_labels.json` is that truth, a json object:

    names     object, colour, size, ground: what the numbers below mean
    regions   per image and region [object, colour, size, group, ground], -1 where it does not apply; a region is an
              object of a group, or ground, or clutter (all -1). The objects of a group share a phrase.
    phrases   per caption [start, stop, [region, ...]]: the tokens start .. stop - 1 of the tokenised caption
              (counted without `<start>`) speak of these regions of its image. Other words speak of none.

Which captions are true of which scenes is read back from the folder's words and labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from aoq.pipeline.data import demo_grammar as grammar
from aoq.pipeline.data.demo_grammar import Caption, narrate
from aoq.pipeline.data.demo_scenes import (
    COLOURS,
    GROUNDS,
    GROUPS,
    MOST,
    NONE,
    OBJECTS,
    SIDE,
    SIZES,
    Regions,
    draw_looks,
    draw_scenes,
    place_regions,
    region_features,
)

UNSAID = -2
NOUN = {word: OBJECTS.index(thing) for thing, forms in grammar.NOUNS.items() for pair in forms for word in pair}
COLOUR = {word: COLOURS.index(colour) for colour, words in grammar.COLOUR_WORDS.items() for word in words}
SIZE = {word: SIZES.index(size) for size, words in grammar.SIZE_WORDS.items() for word in words}
COUNT = {word: number for number, words in enumerate(grammar.COUNT_WORDS, start=1) for word in words}
RELATION = {word: sides for sides, words in grammar.RELATIONS.items() for word in words}
GROUND = {" ".join(words): GROUNDS.index(ground) for ground, words in grammar.GROUND_WORDS.items()}


def write_demo_world(
    folder: Path,
    *,
    images: int = 3000,
    dev_images: int = 500,
    seed: int,
    regions: int = 12,
    feature_size: int = 64,
    noise: float = 2.0,
    captions_an_image: int = 5,
) -> None:
    """Write the splits train and dev, byte for byte the same for the same arguments.

    `noise` is the standard deviation added to every feature; an object's own features have about 1.9.
    """
    most = min(MOST, (regions - 2) // 3)
    if most < 1 or images < 1 or dev_images < 1:
        raise ValueError(
            f"a demo world needs 5 regions or more and images in both splits; got regions={regions}, images={images}, "
            f"dev_images={dev_images}."
        )
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)]
    looks = draw_looks(feature_size, streams[0])
    folder.mkdir(parents=True, exist_ok=True)
    for split, size, rng in (("train", images, streams[1]), ("dev", dev_images, streams[2])):
        scenes = draw_scenes(size, most, rng)
        placed = place_regions(scenes, regions, rng)
        captions = narrate(scenes, captions_an_image, rng)
        np.save(folder / f"{split}_ims.npy", region_features(looks, placed, noise, rng).astype(np.float16))
        np.save(folder / f"{split}_boxes.npy", placed.boxes)
        np.save(folder / f"{split}_pairs.npy", np.repeat(np.arange(size, dtype=np.int32), captions_an_image))
        lines = {"caps": [caption.text for caption in captions], "ids": [f"{split}-{row:06d}" for row in range(size)]}
        for name, content in lines.items():
            (folder / f"{split}_{name}.txt").write_bytes("".join(f"{line}\n" for line in content).encode())
        labels_path(folder, split).write_text(_labels(placed, captions, captions_an_image), encoding="utf-8")


def labels_path(folder: Path, split: str) -> Path:
    """Where the truth about a split of a generated world is; other data have no such file."""
    return folder / f"{split}_labels.json"


def _labels(placed: Regions, captions: list[Caption], captions_an_image: int) -> str:
    """The ground truth; see the head of this file."""
    regions = placed.labels.tolist()
    phrases = []
    for row, caption in enumerate(captions):
        labels = regions[row // captions_an_image]
        phrases.append([[p.start, p.stop, _referents(labels, p.referent)] for p in caption.phrases])
    names = {"object": OBJECTS, "colour": COLOURS, "size": SIZES, "ground": GROUNDS}
    return json.dumps({"names": names, "regions": regions, "phrases": phrases}, separators=(",", ":")) + "\n"


def _referents(labels: list[list[int]], referent: int) -> list[int]:
    """The regions of a group, or of the ground."""
    if referent == grammar.GROUND:
        return [region for region, (*_, ground) in enumerate(labels) if ground != NONE]
    return [region for region, (*_, group, _) in enumerate(labels) if group == referent]


@dataclass(frozen=True)
class SeenScenes:
    """What is in each image: object, colour, size, number and place of each group, and the ground."""

    groups: Int[np.ndarray, "images groups 4"]
    """A number of 0: no such group."""
    cells: Int[np.ndarray, "images groups 2"]
    """Column and row."""
    ground: Int[np.ndarray, " images"]

    @classmethod
    def read(cls, folder: Path, split: str) -> SeenScenes:
        labels = np.array(json.loads(labels_path(folder, split).read_text(encoding="utf-8"))["regions"])
        boxes = np.load(folder / f"{split}_boxes.npy")
        centres = (boxes[..., :2] + boxes[..., 2:]) / 2
        groups = np.zeros((len(labels), GROUPS, 4), dtype=np.int64)
        cells = np.zeros((len(labels), GROUPS, 2), dtype=np.int64)
        for group in range(GROUPS):
            of_group = labels[:, :, 3] == group
            first = of_group.argmax(axis=1)
            images = np.arange(len(labels))
            groups[:, group, :3] = labels[images, first, :3]
            groups[:, group, 3] = of_group.sum(axis=1)
            cells[:, group] = np.minimum(centres[images, first] * SIDE, SIDE - 1)
        return cls(groups, cells, labels[:, :, 4].max(axis=1))


@dataclass(frozen=True)
class Claim:
    """What a caption says about groups (object, colour, size, number), how two of them stand, and the ground."""

    groups: tuple[tuple[int, int, int, int], ...]
    """UNSAID where it leaves something open."""
    relation: tuple[int, int] | None
    """On which side of the second group the first one is, by column or by row."""
    ground: int

    def holds(self, scenes: SeenScenes) -> Bool[np.ndarray, " images"]:
        """Whether it is true of each scene. Objects of a scene differ, so a group is known by its object."""
        true = np.ones(len(scenes.ground), dtype=np.bool_)
        places = []
        for said in map(np.array, self.groups):
            fits = ((scenes.groups == said) | (said == UNSAID)).all(axis=2) & (scenes.groups[:, :, 3] > 0)
            true &= fits.any(axis=1)
            places.append(scenes.cells[np.arange(len(true)), fits.argmax(axis=1)])
        if self.relation is not None:
            axis = 0 if self.relation[0] else 1
            true &= np.sign(places[0] - places[1])[:, axis] == self.relation[axis]
        return true if self.ground == NONE else true & (scenes.ground == self.ground)


def read_claim(caption: str) -> Claim:
    """What a caption of the generated world says.

    >>> read_claim("Left of a small red dog are two kites on the grass .")
    Claim(groups=((11, -2, -2, 2), (0, 0, 0, 1)), relation=(-1, 0), ground=0)
    """
    groups: list[tuple[int, int, int, int]] = []
    relation, ground, comes_first = None, NONE, False
    for piece in _pieces(caption):
        if piece["noun"]:
            colour, size = COLOUR.get(piece["colour"], UNSAID), SIZE.get(piece["size"], UNSAID)
            groups.append((NOUN[piece["noun"]], colour, size, COUNT[piece["count"]]))
        elif piece["relation"]:
            relation, comes_first = RELATION[piece["relation"]], not groups
        elif piece["ground"]:
            ground = GROUND[piece["ground"]]
    return Claim(tuple(groups[::-1] if comes_first else groups), relation, ground)


@lru_cache(maxsize=1)
def _grammar() -> re.Pattern[str]:
    def one_of(words: dict[str, int] | dict[str, tuple[int, int]]) -> str:
        return "|".join(sorted(words, key=len, reverse=True))

    group = (
        rf"(?P<count>{one_of(COUNT)}) (?:(?P<size>{one_of(SIZE)}) )?(?:(?P<colour>{one_of(COLOUR)}) )?"
        rf"(?P<noun>{one_of(NOUN)})\b"
    )
    return re.compile(
        rf"(?:{group}|(?P<relation>{one_of(RELATION)})|(?P<ground>{one_of(GROUND)})|there|is|are|and|[.,])\s*"
    )


def _pieces(caption: str) -> Iterator[re.Match[str]]:
    text, place = caption.lower(), 0
    while place < len(text):
        piece = _grammar().match(text, place)
        if piece is None:
            raise ValueError(f"{caption!r} is no caption of the generated world, from {text[place:]!r} on.")
        yield piece
        place = piece.end()
