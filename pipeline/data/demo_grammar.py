"""Captions of the demo's generated world, from a small grammar, with the regions that each phrase refers to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int

from aoq.pipeline.data.demo_scenes import COUNT, GROUNDS, GROUPS, OBJECT_COLOURS, OBJECT_SIZES, OBJECTS, Scenes

GROUND_GROUP = GROUPS
"""A phrase refers to group 0, 1, 2 or to the ground."""
SYNONYMS = {"dog": "puppy", "cat": "kitten", "car": "vehicle", "horse": "pony", "bicycle": "bike", "boat": "ship"}
NOUNS = {thing: (thing, SYNONYMS[thing]) if thing in SYNONYMS else (thing,) for thing in OBJECTS}
PLURALS = {word: f"{word}s" for words in NOUNS.values() for word in words} | {"puppy": "puppies", "pony": "ponies"}
SIZE_WORDS = {"small": ("small", "little", "tiny"), "large": ("large", "big")}
COLOUR_WORDS = {colour: (colour,) for colour in OBJECT_COLOURS} | {"red": ("red", "crimson"), "pink": ("pink", "rose")}
COUNT_WORDS = (("a",), ("two", "a pair of"), ("three", "several"))
PREPOSITIONS = {"grass": "on", "sand": "on", "snow": "in", "road": "on", "water": "by"}
RELATIONS = {
    (-1, 0): ("left of", "to the left of"),
    (1, 0): ("right of", "to the right of"),
    (0, -1): ("above", "over"),
    (0, 1): ("below", "under"),
}
FAMILY_STYLE = 0.6
"""Fraction of captions that use the choices of the family."""
FIRST_WORD = 0.75
"""Probability of the first of several words for the same thing."""
Word = TypeVar("Word")
Detail = Literal["partial", "full"]
Chunk = tuple[str, "int | None"]
"""Words, and the group that they refer to."""


class Caption(NamedTuple):
    text: str
    phrases: list[tuple[int, int, int]]
    """Tokens start .. stop - 1 refer to a group of objects, or to the ground (GROUND_GROUP)."""


def narrate(
    scenes: Scenes,
    family: Int[np.ndarray, " images"],
    number: int,
    rng: np.random.Generator,
    *,
    detail: Detail = "partial",
) -> list[Caption]:
    """Tell `number` different captions of every scene, image by image; in full detail few are true of another scene.

    The fraction FAMILY_STYLE of them use the choices of the whole family, so that captions of different images
    differ in the very word in which the images differ.
    """
    styles = rng.integers(2**32, size=(int(family.max()) + 1, number))[family]
    texts: set[str] = set()
    captions: list[Caption] = []
    groups, cells, ground = scenes.groups.tolist(), scenes.cells.tolist(), scenes.ground.tolist()
    for image, own_styles in enumerate(styles.tolist()):
        scene = groups[image], cells[image], ground[image]
        own: dict[str, Caption] = {}
        for style in own_styles:
            if rng.random() < FAMILY_STYLE:
                caption = Teller(*scene, np.random.default_rng(style), detail).tell()
                if caption.text not in texts:
                    own[caption.text] = caption
        while len(own) < number:
            caption = Teller(*scene, rng, detail).tell()
            own[caption.text] = caption
        texts.update(own)
        captions += own.values()
    return captions


@dataclass(frozen=True)
class Teller:
    """Tells one scene; every choice is drawn from `rng`."""

    groups: list[list[int]]
    cells: list[list[int]]
    ground: int
    rng: np.random.Generator
    detail: Detail = "partial"

    def tell(self) -> Caption:
        """Tell, in full detail, all groups, the relation of two of them, and the ground.

        Otherwise tell one or three groups, or two and their relation; sometimes with the ground.
        """
        groups = self.rng.permutation([group for group in range(GROUPS) if self.groups[group][COUNT]]).tolist()
        ground = GROUNDS[self.ground]
        on_ground: list[Chunk] = [(PREPOSITIONS[ground], None), (f"the {ground}", GROUND_GROUP)]
        if self.detail == "full":
            others: list[Chunk] = [chunk for group in groups[2:] for chunk in (("and", None), self._group(group))]
            return assemble([*self._related(groups[0], groups[1]), *others, *on_ground])
        kind = self.rng.random()
        if kind < 0.15:
            return assemble([*self._opening(groups[0]), *on_ground])
        if kind > 0.85 and len(groups) == 3:
            first, second, third = (self._group(group) for group in groups)
            return assemble([first, (",", None), second, ("and", None), third])
        related = self._related(groups[0], groups[1])
        return assemble([*related, *on_ground] if self._often(0.2) else related)

    def _related(self, first: int, second: int) -> list[Chunk]:
        """Relate two groups by one of the relations that hold: by column or by row, where their cells differ."""
        column, row = np.sign(np.subtract(self.cells[first], self.cells[second])).tolist()
        sides = [side for side in ((column, 0), (0, row)) if any(side)]
        relation = (self._one_of(RELATIONS[sides[int(self.rng.integers(len(sides)))]]), None)
        if self._often(0.15):
            return [relation, self._group(second), self._verb(first), self._group(first)]
        return [*self._opening(first), relation, self._group(second)]

    def _opening(self, group: int) -> list[Chunk]:
        if self._often(0.2):
            return [("there", None), self._verb(group), self._group(group)]
        return [self._group(group), self._verb(group)] if self._often(0.4) else [self._group(group)]

    def _group(self, group: int) -> Chunk:
        thing, colour, size, count = self.groups[group]
        words = [self._one_of(COUNT_WORDS[count - 1])]
        if self._tells(0.8):
            words.append(self._one_of(SIZE_WORDS[OBJECT_SIZES[size]]))
        if self._tells(0.9):
            words.append(self._one_of(COLOUR_WORDS[OBJECT_COLOURS[colour]]))
        noun = self._one_of(NOUNS[OBJECTS[thing]])
        return " ".join([*words, noun if count == 1 else PLURALS[noun]]), group

    def _verb(self, group: int) -> Chunk:
        return "is" if self.groups[group][COUNT] == 1 else "are", None

    def _one_of(self, words: Sequence[Word]) -> Word:
        # Always two draws, so that captions of one style stay in step after a word with more or fewer synonyms.
        other, which = self.rng.random(2)
        return words[0] if other < FIRST_WORD or len(words) == 1 else words[1 + int(which * (len(words) - 1))]

    def _tells(self, share: float) -> bool:
        return self._often(share) or self.detail == "full"

    def _often(self, share: float) -> bool:
        return bool(self.rng.random() < share)


def assemble(chunks: list[Chunk]) -> Caption:
    """Join chunks into a sentence, and locate each phrase in it.

    >>> assemble([("a dog", 1), ("is left of", None), ("a cat", 0)])
    Caption(text='A dog is left of a cat .', phrases=[(0, 2, 1), (5, 7, 0)])
    """
    phrases, tokens = [], 0
    for text, referent in chunks:
        stop = tokens + len(text.split())
        if referent is not None:
            phrases.append((tokens, stop, referent))
        tokens = stop
    sentence = " ".join(text for text, _ in chunks)
    return Caption(f"{sentence[0].upper()}{sentence[1:]} .", phrases)
