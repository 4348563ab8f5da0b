"""Scenes of the demo's generated world: coloured, sized, counted objects, as noisy region features and in captions.

A scene holds two or three groups of objects ("two small red dogs"), each in its own cell of a 3 x 3 grid, on
some ground. Scenes come in families that differ in one slot each (an object, a colour, a size, a count, two groups
with their places exchanged, the ground): the hard negatives of the world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

OBJECTS = ("dog", "cat", "car", "ball", "bird", "horse", "boy", "girl", "bicycle", "table", "boat", "kite")
OBJECT_COLOURS = ("red", "blue", "green", "yellow", "black", "white", "pink", "brown")
OBJECT_SIZES = ("small", "large")
GROUNDS = ("grass", "sand", "snow", "road", "water")
OBJECT, COLOUR, SIZE, COUNT = range(4)
GROUPS, SIDE, FAMILY, MOST = 3, 3, 6, 3
REGIONS, FEATURES = 12, 64
GROUND_GROUP = GROUPS
"""A phrase refers to group 0, 1, 2 or to the ground."""
EXCHANGED, GROUND_SLOT = GROUPS * 4, GROUPS * 4 + 1
UNLABELLED = -1
LABEL_NAMES = {"object": OBJECTS, "colour": OBJECT_COLOURS, "size": OBJECT_SIZES, "ground": GROUNDS}


@dataclass(frozen=True)
class Scenes:
    """Contents of scenes: object, colour, size and count of each group, its column and row, and the ground."""

    groups: Int[np.ndarray, "images groups 4"]
    """A count of 0 means no such group."""
    cells: Int[np.ndarray, "images groups 2"]
    ground: Int[np.ndarray, " images"]

    def __len__(self) -> int:
        return len(self.ground)


def draw_scenes(images: int, rng: np.random.Generator) -> tuple[Scenes, Int[np.ndarray, " images"]]:
    """Draw families of FAMILY scenes, in random order, and the family of each; groups have at most MOST objects."""
    families = -(-images // FAMILY)
    objects = rng.permuted(np.tile(np.arange(len(OBJECTS)), (families, 1)), axis=1)
    ranges = (0, len(OBJECT_COLOURS)), (0, len(OBJECT_SIZES)), (1, MOST + 1)
    drawn = [rng.integers(low, high, size=(families, GROUPS)) for low, high in ranges]
    groups = np.stack([objects[:, :GROUPS], *drawn], axis=-1)
    groups[rng.random(families) < 0.4, GROUPS - 1, COUNT] = 0
    cells = rng.permuted(np.tile(np.arange(SIDE * SIDE), (families, 1)), axis=1)[:, :GROUPS]
    ground = rng.integers(len(GROUNDS), size=families)

    slots = np.column_stack([groups.reshape(families, GROUPS * 4), np.zeros(families, dtype=np.int64), ground])
    slots = _vary(slots, objects[:, GROUPS], rng)
    cells = np.repeat(np.stack([cells % SIDE, cells // SIDE], axis=-1), FAMILY, axis=0)
    exchanged = slots[:, EXCHANGED] == 1
    cells[exchanged, :2] = cells[exchanged, 1::-1]
    order = rng.permutation(len(slots))[:images]
    groups = slots[order, : GROUPS * 4].reshape(-1, GROUPS, 4)
    return Scenes(groups, cells[order], slots[order, GROUND_SLOT]), order // FAMILY


def _vary(
    slots: Int[np.ndarray, "families slots"], spare: Int[np.ndarray, " families"], rng: np.random.Generator
) -> Int[np.ndarray, "images slots"]:
    """Copy each scene FAMILY times; all but the first differ in a slot of their own; objects change to the spare."""
    first = np.array([0, 0, 0, 1] * GROUPS + [0, 0])
    size = np.array([len(OBJECTS), len(OBJECT_COLOURS), len(OBJECT_SIZES), MOST] * GROUPS + [2, len(GROUNDS)])
    is_absent = np.repeat(slots[:, COUNT : GROUPS * 4 : 4] == 0, 4, axis=1)
    draws = rng.random(slots.shape)
    draws[:, : GROUPS * 4][is_absent] = 1.0
    slot = np.argsort(draws, axis=1)[:, :FAMILY].reshape(-1)

    varied = np.repeat(slots, FAMILY, axis=0)
    rows = np.arange(len(varied))
    value = (varied[rows, slot] - first[slot] + rng.integers(1, size[slot])) % size[slot] + first[slot]
    is_object = (slot < GROUPS * 4) & (slot % 4 == OBJECT)
    value = np.where(is_object, np.repeat(spare, FAMILY), value)
    is_copy = rows % FAMILY > 0
    varied[rows[is_copy], slot[is_copy]] = value[is_copy]
    return varied


def place_regions(
    scenes: Scenes, rng: np.random.Generator
) -> tuple[Int[np.ndarray, "images regions 5"], Float32[np.ndarray, "images regions 4"]]:
    """Place a region for every object, then ground and clutter, in random order: labels and boxes.

    Labels are object, colour, size, group and ground, each UNLABELLED if it does not apply.
    """
    images, slots, regions = len(scenes), GROUPS * MOST, REGIONS
    group = np.repeat(np.arange(GROUPS), MOST)
    there = np.tile(np.arange(MOST), GROUPS) < scenes.groups[:, group, COUNT]
    labels = np.full((images, slots + regions, 5), UNLABELLED)
    labels[:, :slots, :3] = scenes.groups[:, group, :3]
    labels[:, :slots, 3] = group
    is_ground = rng.random((images, regions)) < 0.5
    is_ground[:, 0] = True
    labels[:, slots:, 4] = np.where(is_ground, scenes.ground[:, None], UNLABELLED)

    centre = (scenes.cells[:, group] + 0.5 + rng.uniform(-0.25, 0.25, (images, slots, 2))) / SIDE
    extent = np.where(labels[:, :slots, 2, None] == 1, 0.26, 0.12) * rng.uniform(0.85, 1.15, (images, slots, 2))
    low = rng.uniform(0.0, 0.4, (images, regions, 2))
    high = low + rng.uniform(0.3, 0.6, (images, regions, 2))
    boxes = np.block([[centre - extent / 2, centre + extent / 2], [low, high]]).clip(0.0, 1.0).astype(np.float32)
    is_used = np.pad(there, ((0, 0), (0, regions)), constant_values=True)
    chosen = rng.permuted(np.argsort(~is_used, axis=1, kind="stable")[:, :regions], axis=1)
    rows = np.arange(images)[:, None]
    return labels[rows, chosen], boxes[rows, chosen]


def draw_looks(rng: np.random.Generator) -> dict[str, Float[np.ndarray, "*label features"]]:
    """Draw a random vector for each label; a coloured object has a look of its own, and so has a box's side."""
    shapes: dict[str, tuple[int, ...]] = {name: (len(labels),) for name, labels in LABEL_NAMES.items()}
    shapes |= {"coloured": (len(OBJECTS), len(OBJECT_COLOURS)), "side": (4,)}
    return {name: rng.standard_normal((*shape, FEATURES)) for name, shape in shapes.items()}


def region_features(
    looks: Mapping[str, Float[np.ndarray, "*_label features"]],
    labels: Int[np.ndarray, "images regions 5"],
    boxes: Float32[np.ndarray, "images regions 4"],
    noise: float,
    rng: np.random.Generator,
) -> Float32[np.ndarray, "images regions features"]:
    """Sum the looks of an object, its place, and noise; clutter is noise at a place."""
    thing, colour, size, _, ground = np.moveaxis(labels, -1, 0)
    seen = looks["object"][thing] + looks["colour"][colour] + 0.7 * looks["size"][size]
    seen += 0.7 * looks["coloured"][thing, colour]
    seen *= (thing != UNLABELLED)[..., None]
    seen += np.where((ground != UNLABELLED)[..., None], looks["ground"][ground], 0.0)
    for side in range(4):
        seen += 2.0 * (boxes[..., side, None] - 0.5) * looks["side"][side]
    seen += noise * rng.standard_normal(seen.shape)
    return seen.astype(np.float32)


SYNONYMS = {"dog": "puppy", "cat": "kitten", "car": "vehicle", "horse": "pony", "bicycle": "bike", "boat": "ship"}
SYNONYMS |= {"red": "crimson", "pink": "rose"}
NOUNS, COLOUR_WORDS = (
    [(name, SYNONYMS[name]) if name in SYNONYMS else (name,) for name in names] for names in (OBJECTS, OBJECT_COLOURS)
)
PLURALS = {word: f"{word}s" for words in NOUNS for word in words} | {"puppy": "puppies", "pony": "ponies"}
SIZE_WORDS = (("small", "little", "tiny"), ("large", "big"))
COUNT_WORDS = ((), ("a",), ("two", "a pair of"), ("three", "several"))
PREPOSITIONS = ("on", "on", "in", "on", "by")
"""Words before grass, sand, snow, road and water."""
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
Detail = Literal["partial", "full"]
Chunk = tuple[str, "int | None"]
"""Words, and the group that they refer to."""


class Caption(NamedTuple):
    text: str
    phrases: list[tuple[int, int, int]]
    """Tokens start .. stop - 1 refer to a group of objects, or to the ground (GROUND_GROUP)."""


def narrate(
    scenes: Scenes, family: Int[np.ndarray, " images"], number: int, rng: np.random.Generator, detail: Detail
) -> list[Caption]:
    """Tell `number` different captions of every scene, image by image; in full detail few are true of another scene.

    The fraction FAMILY_STYLE of them use the choices of the whole family, so that captions of different images
    differ in the very word in which the images differ.
    """
    styles = rng.integers(2**32, size=(int(family.max()) + 1, number))[family]
    texts: set[str] = set()
    captions: list[Caption] = []
    contents = zip(scenes.groups.tolist(), scenes.cells.tolist(), scenes.ground.tolist(), styles.tolist(), strict=True)
    for groups, cells, ground, own_styles in contents:
        own: dict[str, Caption] = {}
        for style in own_styles:
            if rng.random() < FAMILY_STYLE:
                caption = Teller(groups, cells, ground, np.random.default_rng(style), detail).tell()
                if caption.text not in texts:
                    own[caption.text] = caption
        while len(own) < number:
            caption = Teller(groups, cells, ground, rng, detail).tell()
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
    detail: Detail

    def tell(self) -> Caption:
        """Tell, in full detail, all groups, the relation of two of them, and the ground.

        Otherwise tell one or three groups, or two and their relation; sometimes with the ground.
        """
        groups = self.rng.permutation([group for group in range(GROUPS) if self.groups[group][COUNT]]).tolist()
        on_ground: list[Chunk] = [(PREPOSITIONS[self.ground], None), (f"the {GROUNDS[self.ground]}", GROUND_GROUP)]
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
        relation = (self._choose_word(RELATIONS[sides[int(self.rng.integers(len(sides)))]]), None)
        if self._often(0.15):
            return [relation, self._group(second), self._verb(first), self._group(first)]
        return [*self._opening(first), relation, self._group(second)]

    def _opening(self, group: int) -> list[Chunk]:
        if self._often(0.2):
            return [("there", None), self._verb(group), self._group(group)]
        return [self._group(group), self._verb(group)] if self._often(0.4) else [self._group(group)]

    def _group(self, group: int) -> Chunk:
        thing, colour, size, count = self.groups[group]
        words = [self._choose_word(COUNT_WORDS[count])]
        for table, number, share in ((SIZE_WORDS, size, 0.8), (COLOUR_WORDS, colour, 0.9)):
            if self._often(share) or self.detail == "full":
                words.append(self._choose_word(table[number]))
        noun = self._choose_word(NOUNS[thing])
        return " ".join([*words, noun if count == 1 else PLURALS[noun]]), group

    def _verb(self, group: int) -> Chunk:
        return "is" if self.groups[group][COUNT] == 1 else "are", None

    def _choose_word(self, words: Sequence[str]) -> str:
        # Always two draws, so that captions of one style stay in step after a word with more or fewer synonyms.
        other, which = self.rng.random(2)
        return words[0] if other < FIRST_WORD or len(words) == 1 else words[1 + int(which * (len(words) - 1))]

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
