"""The generated world of the demo, told: captions from a small grammar, with the regions each phrase speaks of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from aoq.pipeline.data.demo_scenes import COLOURS, COUNT, GROUNDS, GROUPS, OBJECTS, SIDE, SIZES, Scenes

GROUND = GROUPS
"""A phrase speaks of group 0, 1, 2 or of the ground."""
NOUNS = {
    "dog": (("dog", "dogs"), ("puppy", "puppies")),
    "cat": (("cat", "cats"), ("kitten", "kittens")),
    "car": (("car", "cars"), ("vehicle", "vehicles")),
    "ball": (("ball", "balls"),),
    "bird": (("bird", "birds"),),
    "horse": (("horse", "horses"), ("pony", "ponies")),
    "boy": (("boy", "boys"),),
    "girl": (("girl", "girls"),),
    "bicycle": (("bicycle", "bicycles"), ("bike", "bikes")),
    "table": (("table", "tables"),),
    "boat": (("boat", "boats"), ("ship", "ships")),
    "kite": (("kite", "kites"),),
}
SIZE_WORDS = {"small": ("small", "little", "tiny"), "large": ("large", "big")}
COLOUR_WORDS = {colour: (colour,) for colour in COLOURS} | {
    "red": ("red", "crimson"),
    "pink": ("pink", "rose"),
}
COUNT_WORDS = (("a",), ("two", "a pair of"), ("three", "several"))
GROUND_WORDS = {
    "grass": ("on", "the grass"),
    "sand": ("on", "the sand"),
    "snow": ("in", "the snow"),
    "road": ("on", "the road"),
    "water": ("by", "the water"),
}
RELATIONS = {
    (-1, 0): ("left of", "to the left of"),
    (1, 0): ("right of", "to the right of"),
    (0, -1): ("above", "over"),
    (0, 1): ("below", "under"),
}
ALIKE = 0.6
"""The share of captions told with the choices of the family."""
FIRST = 0.75
"""How often the first of several words for the same thing is taken."""


Word = TypeVar("Word")
Chunk = tuple[str, "int | None"]
"""Words, and what they speak of."""


@dataclass(frozen=True)
class Phrase:
    """Tokens start .. stop - 1 of a caption speak of a group of objects, or of the ground (GROUND)."""

    start: int
    stop: int
    referent: int


@dataclass(frozen=True)
class Caption:
    text: str
    phrases: tuple[Phrase, ...]


def narrate(scenes: Scenes, number: int, rng: np.random.Generator) -> list[Caption]:
    """`number` different captions of every scene, image by image.

    ALIKE of them are told with the choices that the rest of the family shares, so that captions of different images
    differ in the very word in which the images differ.
    """
    attributes, cells = scenes.attributes.tolist(), scenes.cells.tolist()
    styles = rng.integers(2**32, size=(int(scenes.family.max()) + 1, number)).tolist()
    told: set[str] = set()
    captions: list[Caption] = []
    for image, (family, ground) in enumerate(zip(scenes.family.tolist(), scenes.ground.tolist(), strict=True)):
        own: dict[str, Caption] = {}
        for style in styles[family]:
            if rng.random() < ALIKE:
                caption = Teller(attributes[image], cells[image], ground, np.random.default_rng(style)).tell()
                if caption.text not in told:
                    own[caption.text] = caption
        teller = Teller(attributes[image], cells[image], ground, rng)
        while len(own) < number:
            caption = teller.tell()
            own[caption.text] = caption
        told.update(own)
        captions += own.values()
    return captions


@dataclass(frozen=True)
class Teller:
    """Tells one scene, drawing every choice from `rng`."""

    attributes: list[list[int]]
    cells: list[int]
    ground: int
    rng: np.random.Generator

    def tell(self) -> Caption:
        """One or three groups, or two and how they stand to each other; now and then with the ground."""
        groups = [group for group in range(GROUPS) if self.attributes[group][COUNT]]
        groups = [groups[i] for i in self.rng.permutation(len(groups))]
        kind = self.rng.random()
        if kind < 0.15:
            return assemble([*self._opening(groups[0]), *self._on_ground()])
        if kind > 0.85 and len(groups) == 3:
            first, second, third = (self._group(group) for group in groups)
            return assemble([first, (",", None), second, ("and", None), third])
        related = self._related(groups[0], groups[1])
        return assemble([*related, *self._on_ground()] if self._often(0.2) else related)

    def _related(self, first: int, second: int) -> list[Chunk]:
        relation = (self._relation(first, second), None)
        if self._often(0.15):
            return [relation, self._group(second), (self._verb(first), None), self._group(first)]
        return [*self._opening(first), relation, self._group(second)]

    def _opening(self, group: int) -> list[Chunk]:
        verb = (self._verb(group), None)
        if self._often(0.2):
            return [("there", None), verb, self._group(group)]
        return [self._group(group), verb] if self._often(0.4) else [self._group(group)]

    def _group(self, group: int) -> Chunk:
        thing, colour, size, count = self.attributes[group]
        words = [self._one_of(COUNT_WORDS[count - 1])]
        if self._often(0.8):
            words.append(self._one_of(SIZE_WORDS[SIZES[size]]))
        if self._often(0.9):
            words.append(self._one_of(COLOUR_WORDS[COLOURS[colour]]))
        singular, plural = self._one_of(NOUNS[OBJECTS[thing]])
        return " ".join([*words, singular if count == 1 else plural]), group

    def _relation(self, first: int, second: int) -> str:
        """One of the relations that hold: by column if the cells differ there, by row if they differ there."""
        here, there = self.cells[first], self.cells[second]
        sides = np.sign([here % SIDE - there % SIDE, here // SIDE - there // SIDE]).tolist()
        axis = [axis for axis in (0, 1) if sides[axis]]
        by = axis[int(self.rng.integers(len(axis)))]
        return self._one_of(RELATIONS[(sides[0], 0) if by == 0 else (0, sides[1])])

    def _on_ground(self) -> list[Chunk]:
        preposition, ground = GROUND_WORDS[GROUNDS[self.ground]]
        return [(preposition, None), (ground, GROUND)]

    def _verb(self, group: int) -> str:
        return "is" if self.attributes[group][COUNT] == 1 else "are"

    def _one_of(self, words: Sequence[Word]) -> Word:
        # Always two draws, so that what is told alike stays so after a word with a synonym more or less.
        other, which = self.rng.random(2)
        return words[0] if other < FIRST or len(words) == 1 else words[1 + int(which * (len(words) - 1))]

    def _often(self, share: float) -> bool:
        return bool(self.rng.random() < share)


def assemble(chunks: list[Chunk]) -> Caption:
    """A sentence of chunks, and where each phrase stands in it.

    >>> assemble([("a dog", 1), ("is left of", None), ("a cat", 0)])
    Caption(text='A dog is left of a cat .', phrases=(Phrase(start=0, stop=2, referent=1), Phrase(start=5, ...)))
    """
    phrases, tokens = [], 0
    for text, referent in chunks:
        stop = tokens + len(text.split())
        if referent is not None:
            phrases.append(Phrase(tokens, stop, referent))
        tokens = stop
    sentence = " ".join(text for text, _ in chunks)
    return Caption(f"{sentence[0].upper()}{sentence[1:]} .", tuple(phrases))
