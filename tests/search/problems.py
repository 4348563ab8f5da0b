"""Adversarial search problems, each a function of its name alone."""

import json
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from aoq.pipeline.engine import products_in
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.arithmetic import Arithmetic, Operand, product_errors, product_floors
from aoq.pipeline.search.backends import search_problem
from aoq.pipeline.search.device import to_device
from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.search.scores import sum_exactly
from aoq.pipeline.tables.table import NegativeTable, read_table

SHAPES = (
    (7, 9, 1),
    (12, 30, 2),
    (25, 40, 3),
    (9, 60, 5),
    (40, 17, 8),
    (30, 90, 16),
    (64, 64, 33),
    (20, 50, 64),
    (300, 900, 24),
)
PAIRINGS = ("five each", "none", "many to many")


def scaled(x, powers):
    return x * 10**powers / np.sqrt(x.shape[1])


KINDS = {
    "normal": lambda rng, x: x,
    "duplicates": lambda rng, x: x,
    "a hair apart": lambda rng, x: x[:1] * (1 + 2.0**-22 * rng.integers(-1, 2, x.shape)),
    "one ulp apart": lambda rng, x: np.nextafter(np.float32(x[:1]), np.float32(9) * rng.integers(-1, 2, x.shape)),
    "small integers": lambda rng, x: rng.integers(-2, 3, x.shape),
    # Exact sums of 25 and more bits: many stand half-way between two float32 numbers.
    "midpoints": lambda rng, x: rng.integers(0, 2**13, x.shape),
    "all zero": lambda rng, x: x * 0,
    "zeros among them": lambda rng, x: np.where(np.arange(len(x))[:, None] % 2, x, 0),
    "denormal": lambda rng, x: np.where(rng.random(x.shape) < 0.5, 1e-40, 1e-5) * x,
    "tiny": lambda rng, x: x * 1e-11,
    "huge": lambda rng, x: scaled(x, rng.uniform(11, 11.5, (len(x), 1))),
    "of all sizes": lambda rng, x: scaled(x, rng.uniform(-30, 11.5, (len(x), 1))),
    "opposed": lambda rng, x: np.abs(x) * (-1) ** rng.integers(0, 2),
    "identical": lambda rng, x: np.ones_like(x) / 3,
    "collapsed": lambda rng, x: np.ones_like(x) + 1e-7 * x,
    "unit": lambda rng, x: x,
    "sparse": lambda rng, x: x * (rng.random(x.shape) < 0.2),
}


def vectors_of(rng: np.random.Generator, count: int, size: int, kind: str) -> np.ndarray:
    """Vectors of one kind; most kinds hold every vector several times."""
    distinct = rng.standard_normal((max(1, count // 3), size))
    chosen = rng.integers(0, len(distinct), count)
    if kind in ("normal", "unit", "opposed", "sparse"):
        chosen = np.arange(count)
        distinct = rng.standard_normal((count, size))
    found = KINDS[kind](rng, distinct)[chosen].astype(np.float32)
    if kind == "unit":
        found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.float32(1e-6))
    if kind in ("denormal", "of all sizes"):  # a side of nothing but tiny vectors is refused
        found[0] = rng.standard_normal(size)
    return found


def check_products(how: Arithmetic, device: torch.device, count: int, size: int, kind: str) -> None:
    """The arithmetic's products are within their bounds, and reach the floors of the scores that they belong to.

    All of one sign and of one size is the worst for sums that are cut.
    """
    rng = np.random.default_rng(size)
    sides = [vectors_of(rng, count, size, "normal" if kind == "of one sign" else kind) for _ in range(2)]
    sides = [np.abs(side) for side in sides] if kind == "of one sign" else sides
    one, other = (
        Operand.of(to_device(side, device), np.linalg.norm(side.astype(np.float64), axis=1), how) for side in sides
    )
    with products_in("tf32" if how.name == "tf32" else "float32"):
        near = one.near @ other.near.T
    exact, errors = one.vectors.double() @ other.vectors.double().T, product_errors(one, other, how)[:, None]
    assert ((near.double() - exact).abs() <= errors + how.result * (exact.abs() + errors)).all()
    for column in range(0, count, 7):
        assert (near[:, column] >= product_floors(exact[:, column].float(), errors[:, 0], how)).all()


def problem_named(name: str) -> Problem:
    """Make the problem of a name: `kind/shape/pairing/set`."""
    kind, shape, pairing, sets = name.split("/")
    images, captions, size = SHAPES[int(shape)]
    rng = np.random.default_rng(list(name.encode()))
    one = vectors_of(rng, images, size, kind)
    if sets == "one set":
        pairs = rng.integers(0, images, ({"none": 0}.get(pairing, 5), 2))
        both = np.concatenate([pairs, pairs[:, ::-1]])
        own = 1 + max((len(set(both[both[:, 0] == row, 1]) - {row}) for row in range(images)), default=0)
        return Problem(one, one, pairs, int(rng.integers(1, images - own + 1)), 0, one_set=True)
    other = vectors_of(rng, captions, size, kind)
    if pairing == "five each":
        pairs = np.stack([np.arange(captions) // 5 % images, np.arange(captions)], axis=1)
    elif pairing == "none":
        pairs = np.empty((0, 2), np.int64)
    else:
        pairs = rng.integers(0, [images, captions], (images, 2))
    pairs = np.unique(pairs, axis=0)
    most = [int(np.bincount(side, minlength=1).max()) if len(side) else 0 for side in pairs.T]
    nearly_all = int(shape) % 2
    h_captions, h_images = (
        max(1, free if nearly_all else int(rng.integers(1, free + 1)))
        for free in (captions - most[0], images - most[1])
    )
    return Problem(
        one, other, pairs, h_captions * (sets != "captions alone"), h_images * (sets != "images alone"), memory=10**8
    )


NAMES = tuple(
    f"{kind}/{shape}/{PAIRINGS[(shape + number) % 3]}/{sets}"
    for number, kind in enumerate(KINDS)
    for shape in range(len(SHAPES))
    for sets in (
        ("both", "one set", "captions alone", "images alone")[(shape + number) % 4],
        *(("both",) if (shape + number) % 4 and shape in (1, 3, 5, 7, 8) else ()),
    )
)
SMALL = tuple(name for name in NAMES if name.split("/")[1] != "8")


def reference_lists(problem: Problem, direction: Direction) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and scores of each anchor's h best negatives, by falling score, then rising id; -1 and NaN pad."""
    side, ids, scores = problem[direction], [], []
    for row, anchor in enumerate(side.anchors):
        own = set(side.positives[row].tolist())
        ranked = sorted(
            (-sum_exactly(anchor, candidate), number)
            for number, candidate in enumerate(side.candidates)
            if number not in own
        )
        ids.append([number for _, number in ranked[: side.h]] + [-1] * (side.h - len(ranked)))
        scores.append([-score for score, _ in ranked[: side.h]] + [np.nan] * (side.h - len(ranked)))
    return np.array(ids, np.int32), np.array(scores, np.float32) + np.float32(0)


def fingerprint(*arrays: np.ndarray) -> str:
    """First digits of the hash of all bytes."""
    return sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in arrays)).hexdigest()[:12]


PINNED = json.loads(Path(__file__).with_name("pinned.json").read_text())


def check_pinned(names: Iterable[str], search: str = "onepass", device: str = "auto") -> None:
    """The lists of these problems are those that are pinned, and every list is certified."""
    for name in names:
        problem = replace(problem_named(name), device=device)
        found = search_problem(problem, search=search).lists
        assert all((lists.scores[:, -1] > lists.bound).all() for lists in found.values())
        depths = np.array([problem.h_captions, problem.h_images])
        parts = [fingerprint(problem.images, problem.captions, problem.positives, depths)]
        for direction, lists in found.items():
            parts.append(f"{direction}:{fingerprint(lists.negative_ids, lists.scores, lists.positive_score)}")
        assert " ".join(parts) == PINNED[name], name


def two_captions_each(images: int) -> Problem:
    """Images of 12 dimensions, and two captions near each."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(images, 12)).astype(np.float32)
    captions = np.repeat(vectors, 2, axis=0) + rng.normal(size=(2 * images, 12)).astype(np.float32)
    return Problem(vectors, captions, np.repeat(np.arange(images, dtype=np.int32), 2), 20, 10)


def mined(problem: Problem, folder: Path, search: str, **options: object) -> NegativeTable:
    """The table that is mined into a folder; its indexes are kept beside the folder."""
    options = {"provenance": {"dataset": "d"}, "indexes": folder.parent / "kept", **options}
    mine(problem, search=search, work=folder / "work", output=folder / "table", **options)
    return read_table(folder / "table")
