"""The line that says what a split holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.facts import median_norm

Write = Callable[..., Path]


def told(folder: Path) -> str:
    (facts,) = examine_folder(folder).facts
    return str(facts)


@pytest.fixture
def differing() -> np.ndarray:
    """Four images of three regions of norm 5."""
    turned = np.linspace(0, 1, 12).reshape(4, 3)
    return np.stack([5 * np.cos(turned), 5 * np.sin(turned)], axis=2).astype(np.float32)


def test_captions_in_order(write_split: Write, differing: np.ndarray) -> None:
    assert told(write_split(ims=differing)) == (
        "train: 4 images × 3 regions × 2 features (float32, median norm 5), 12 captions, "
        "3 per image by their order (no train_pairs.npy)"
    )


def test_captions_in_pairs(write_split: Write, differing: np.ndarray) -> None:
    pairs = np.array([0] * 9 + [1, 2, 3])
    said = told(write_split(ims=differing, pairs=pairs, identity=np.array([0, 0, 1, 2])))
    assert said.endswith(", 12 captions, 1 to 9 per image by train_pairs.npy; 3 photographs by train_identity.npy")


def test_repeated_rows_are_one_image(write_split: Write, differing: np.ndarray) -> None:
    said = told(write_split(ims=differing.repeat(3, axis=0)))
    assert said.startswith("train: 4 images × 3 regions × 2 features")
    assert said.endswith("; each image is repeated in 3 rows")


def test_what_cannot_be_paired_has_no_facts(write_split: Write) -> None:
    assert examine_folder(write_split(caps=["one"] * 13)).facts == []


def test_the_median_norm_is_of_real_regions() -> None:
    features = np.ones((2001, 3, 4), np.float16)
    features[:, 0] = 0
    features[0] = np.nan
    assert median_norm(features) == 2.0
    assert median_norm(features * 0) is None
