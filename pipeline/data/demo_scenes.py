"""Scenes of the demo's generated world: coloured, sized, counted objects as noisy region features.

A scene holds two or three groups of objects ("two small red dogs"), each in its own cell of a 3 x 3 grid, on
some ground. Scenes come in families that differ in one slot each (an object, a colour, a size, a count, two groups
with their places exchanged, the ground): the hard negatives of the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int

OBJECTS = ("dog", "cat", "car", "ball", "bird", "horse", "boy", "girl", "bicycle", "table", "boat", "kite")
OBJECT_COLOURS = ("red", "blue", "green", "yellow", "black", "white", "pink", "brown")
OBJECT_SIZES = ("small", "large")
GROUNDS = ("grass", "sand", "snow", "road", "water")
OBJECT, COLOUR, SIZE, COUNT = range(4)
GROUPS, SIDE, FAMILY, MOST = 3, 3, 6, 3
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


def draw_scenes(images: int, most: int, rng: np.random.Generator) -> tuple[Scenes, Int[np.ndarray, " images"]]:
    """Draw families of FAMILY scenes, in random order, and the family of each; groups have at most `most` objects."""
    families = -(-images // FAMILY)
    objects = rng.permuted(np.tile(np.arange(len(OBJECTS)), (families, 1)), axis=1)
    ranges = (0, len(OBJECT_COLOURS)), (0, len(OBJECT_SIZES)), (1, most + 1)
    drawn = [rng.integers(low, high, size=(families, GROUPS)) for low, high in ranges]
    groups = np.stack([objects[:, :GROUPS], *drawn], axis=-1)
    groups[rng.random(families) < 0.4, GROUPS - 1, COUNT] = 0
    cells = rng.permuted(np.tile(np.arange(SIDE * SIDE), (families, 1)), axis=1)[:, :GROUPS]
    ground = rng.integers(len(GROUNDS), size=families)

    slots = np.column_stack([groups.reshape(families, GROUPS * 4), np.zeros(families, dtype=np.int64), ground])
    slots = _vary(slots, objects[:, GROUPS], most, rng)
    cells = np.repeat(np.stack([cells % SIDE, cells // SIDE], axis=-1), FAMILY, axis=0)
    exchanged = slots[:, EXCHANGED] == 1
    cells[exchanged, :2] = cells[exchanged, 1::-1]
    order = rng.permutation(len(slots))[:images]
    groups = slots[order, : GROUPS * 4].reshape(-1, GROUPS, 4)
    return Scenes(groups, cells[order], slots[order, GROUND_SLOT]), order // FAMILY


def _vary(
    slots: Int[np.ndarray, "families slots"], spare: Int[np.ndarray, " families"], most: int, rng: np.random.Generator
) -> Int[np.ndarray, "images slots"]:
    """Copy each scene FAMILY times; all but the first differ in a slot of their own; objects change to the spare."""
    first = np.array([0, 0, 0, 1] * GROUPS + [0, 0])
    size = np.array([len(OBJECTS), len(OBJECT_COLOURS), len(OBJECT_SIZES), most] * GROUPS + [2, len(GROUNDS)])
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


def place_regions(
    scenes: Scenes, regions: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, "images regions 5"], Float32[np.ndarray, "images regions 4"]]:
    """Place a region for every object, then ground and clutter, in random order: labels and boxes.

    Labels are object, colour, size, group and ground, each UNLABELLED if it does not apply.
    """
    images, slots = len(scenes), GROUPS * MOST
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


def draw_looks(features: int, rng: np.random.Generator) -> dict[str, Float[np.ndarray, "*label features"]]:
    """Draw a random vector for each label; a coloured object has a look of its own, and so has a box's side."""
    shapes: dict[str, tuple[int, ...]] = {name: (len(labels),) for name, labels in LABEL_NAMES.items()}
    shapes |= {"coloured": (len(OBJECTS), len(OBJECT_COLOURS)), "side": (4,)}
    return {name: rng.standard_normal((*shape, features)) for name, shape in shapes.items()}


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
