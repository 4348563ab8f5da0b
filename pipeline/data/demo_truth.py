"""Which captions of the generated world are true of which scenes, read back from the folder's words and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from aoq.pipeline.data.demo_grammar import COLOUR_WORDS, COUNT_WORDS, GROUND_WORDS, NOUNS, RELATIONS, SIZE_WORDS
from aoq.pipeline.data.demo_scenes import COLOURS, GROUNDS, GROUPS, NONE, OBJECTS, SIDE, SIZES

UNSAID = -2


def labels_path(folder: Path, split: str) -> Path:
    return folder / f"{split}_labels.json"


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
    """What a caption says: of groups (object, colour, size, number), of how two of them stand, of the ground."""

    groups: tuple[tuple[int, int, int, int], ...]
    """UNSAID where it leaves something open."""
    relation: tuple[int, int] | None
    """On which side of the second group the first one is, by column or by row."""
    ground: int

    def holds(self, scenes: SeenScenes) -> Bool[np.ndarray, " images"]:
        """Of which scenes it is true. Objects of a scene differ, so a group is known by its object."""
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
            said = [_which(words, piece[name]) for name, words in (("colour", COLOUR), ("size", SIZE))]
            groups.append((NOUN[piece["noun"]], said[0], said[1], COUNT[piece["count"]]))
        elif piece["relation"]:
            relation, comes_first = RELATION[piece["relation"]], not groups
        elif piece["ground"]:
            ground = GROUND[piece["ground"]]
    return Claim(tuple(groups[::-1] if comes_first else groups), relation, ground)


def _which(words: dict[str, int], said: str | None) -> int:
    return UNSAID if said is None else words[said]


NOUN = {word: OBJECTS.index(thing) for thing, forms in NOUNS.items() for pair in forms for word in pair}
COLOUR = {word: COLOURS.index(colour) for colour, words in COLOUR_WORDS.items() for word in words}
SIZE = {word: SIZES.index(size) for size, words in SIZE_WORDS.items() for word in words}
COUNT = {word: number for number, words in enumerate(COUNT_WORDS, start=1) for word in words}
RELATION = {word: sides for sides, words in RELATIONS.items() for word in words}
GROUND = {" ".join(words): GROUNDS.index(ground) for ground, words in GROUND_WORDS.items()}


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
