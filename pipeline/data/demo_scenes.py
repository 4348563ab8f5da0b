"""The generated world of the demo, seen: scenes of coloured, sized, counted objects as noisy region features.

A scene holds two or three groups of objects ("two small red dogs"), each in a cell of its own of a 3 x 3 grid, before
some ground. Scenes come in families that differ in one slot each (an object, a colour, a size, a count, two groups
with their places exchanged, the ground): the hard negatives of the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int

OBJECTS = ("dog", "cat", "car", "ball", "bird", "horse", "boy", "girl", "bicycle", "table", "boat", "kite")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "pink", "brown")
SIZES = ("small", "large")
GROUNDS = ("grass", "sand", "snow", "road", "water")
OBJECT, COLOUR, SIZE, COUNT = range(4)
GROUPS, SIDE, FAMILY, MOST = 3, 3, 6, 3
EXCHANGED, GROUND_SLOT = GROUPS * 4, GROUPS * 4 + 1
NONE = -1
LABELS: dict[str, tuple[int, ...]] = {
    "object": (len(OBJECTS),),
    "colour": (len(COLOURS),),
    "size": (len(SIZES),),
    "ground": (len(GROUNDS),),
    "coloured": (len(OBJECTS), len(COLOURS)),
    "side": (4,),
}
"""What looks like something, in the order drawn: a coloured object has a look of its own, and so has a box's side."""


@dataclass(frozen=True)
class Scenes:
    """What is where: `attributes` are object, colour, size and count of each group; a count of 0: no such group."""

    attributes: Int[np.ndarray, "images groups 4"]
    cells: Int[np.ndarray, "images groups"]
    ground: Int[np.ndarray, " images"]
    family: Int[np.ndarray, " images"]

    def __len__(self) -> int:
        return len(self.ground)


@dataclass(frozen=True)
class Regions:
    """What is in each region: object, colour, size, group and ground, each NONE where it does not apply."""

    labels: Int[np.ndarray, "images regions 5"]
    boxes: Float32[np.ndarray, "images regions 4"]


def draw_scenes(images: int, most: int, rng: np.random.Generator) -> Scenes:
    """Families of FAMILY scenes, in random order; a group has at most `most` objects."""
    families = -(-images // FAMILY)
    objects = rng.permuted(np.tile(np.arange(len(OBJECTS)), (families, 1)), axis=1)
    attributes = [
        objects[:, :GROUPS],
        rng.integers(len(COLOURS), size=(families, GROUPS)),
        rng.integers(len(SIZES), size=(families, GROUPS)),
        rng.integers(1, most + 1, size=(families, GROUPS)),
    ]
    attributes[COUNT][rng.random(families) < 0.4, GROUPS - 1] = 0
    cells = rng.permuted(np.tile(np.arange(SIDE * SIDE), (families, 1)), axis=1)[:, :GROUPS]
    ground = rng.integers(len(GROUNDS), size=families)

    slots = np.stack(attributes, axis=-1).reshape(families, GROUPS * 4)
    slots = np.column_stack([slots, np.zeros(families, dtype=np.int64), ground])
    slots = _vary(slots, objects[:, GROUPS], most, rng)
    cells = np.repeat(cells, FAMILY, axis=0)
    exchanged = slots[:, EXCHANGED] == 1
    cells[exchanged, :2] = cells[exchanged, 1::-1]
    order = rng.permutation(len(slots))[:images]
    attributes_of = slots[order, : GROUPS * 4].reshape(-1, GROUPS, 4)
    return Scenes(attributes_of, cells[order], slots[order, GROUND_SLOT], order // FAMILY)


def _vary(
    slots: Int[np.ndarray, "families slots"], spare: Int[np.ndarray, " families"], most: int, rng: np.random.Generator
) -> Int[np.ndarray, "images slots"]:
    """FAMILY copies of each scene, all but the first changed in one slot, never the same one; objects to the spare."""
    first = np.array([0, 0, 0, 1] * GROUPS + [0, 0])
    size = np.array([len(OBJECTS), len(COLOURS), len(SIZES), most] * GROUPS + [2, len(GROUNDS)])
    is_absent = np.repeat(slots[:, COUNT : GROUPS * 4 : 4] == 0, 4, axis=1)
    draws = rng.random(slots.shape)
    draws[:, : GROUPS * 4][is_absent] = 1.0
    draws[:, size == 1] = 1.0
    slot = np.argsort(draws, axis=1)[:, :FAMILY].reshape(-1)

    varied = np.repeat(slots, FAMILY, axis=0)
    rows = np.arange(len(varied))
    value = (varied[rows, slot] - first[slot] + rng.integers(1, size[slot])) % size[slot] + first[slot]
    is_object = (slot < GROUPS * 4) & (slot % 4 == OBJECT)
    value = np.where(is_object, np.repeat(spare, FAMILY), value)
    is_copy = rows % FAMILY > 0
    varied[rows[is_copy], slot[is_copy]] = value[is_copy]
    return varied


def place_regions(scenes: Scenes, regions: int, rng: np.random.Generator) -> Regions:
    """A region for every object, then ground and clutter, in random order."""
    images, slots = len(scenes), GROUPS * MOST
    group = np.repeat(np.arange(GROUPS), MOST)
    there = np.tile(np.arange(MOST), GROUPS) < scenes.attributes[:, group, COUNT]
    labels = np.full((images, slots + regions, 5), NONE)
    labels[:, :slots, :3] = scenes.attributes[:, group, :3]
    labels[:, :slots, 3] = group
    is_ground = rng.random((images, regions)) < 0.5
    is_ground[:, 0] = True
    labels[:, slots:, 4] = np.where(is_ground, scenes.ground[:, None], NONE)

    column, row = scenes.cells[:, group] % SIDE, scenes.cells[:, group] // SIDE
    centre = (np.stack([column, row], axis=-1) + 0.5 + rng.uniform(-0.25, 0.25, (images, slots, 2))) / SIDE
    extent = np.where(labels[:, :slots, 2, None] == 1, 0.26, 0.12) * rng.uniform(0.85, 1.15, (images, slots, 2))
    low = rng.uniform(0.0, 0.4, (images, regions, 2))
    high = low + rng.uniform(0.3, 0.6, (images, regions, 2))
    corners = np.concatenate([centre - extent / 2, low], axis=1), np.concatenate([centre + extent / 2, high], axis=1)
    boxes = np.concatenate(corners, axis=-1)
    is_used = np.concatenate([there, np.ones((images, regions), dtype=bool)], axis=1)
    chosen = rng.permuted(np.argsort(~is_used, axis=1, kind="stable")[:, :regions], axis=1)
    rows = np.arange(images)[:, None]
    return Regions(labels[rows, chosen], boxes[rows, chosen].clip(0.0, 1.0).astype(np.float32))


def draw_looks(features: int, rng: np.random.Generator) -> dict[str, Float[np.ndarray, "*label features"]]:
    """How each label looks: one random vector per object, colour, size, ground, coloured object and box side."""
    return {name: rng.standard_normal((*shape, features)) for name, shape in LABELS.items()}


def region_features(
    looks: Mapping[str, Float[np.ndarray, "*_label features"]], regions: Regions, noise: float, rng: np.random.Generator
) -> Float32[np.ndarray, "images regions features"]:
    """The sum of what is seen, where it is seen, and noise; clutter is noise at a place."""
    thing, colour, size, _, ground = np.moveaxis(regions.labels, -1, 0)
    seen = looks["object"][thing] + looks["colour"][colour] + 0.7 * looks["size"][size]
    seen += 0.7 * looks["coloured"][thing, colour]
    seen *= (thing != NONE)[..., None]
    seen += np.where((ground != NONE)[..., None], looks["ground"][ground], 0.0)
    for side in range(4):
        seen += 2.0 * (regions.boxes[..., side, None] - 0.5) * looks["side"][side]
    seen += noise * rng.standard_normal(seen.shape)
    return seen.astype(np.float32)
