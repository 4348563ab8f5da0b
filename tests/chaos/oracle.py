"""Right results, known in another way than by the command that made them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.feather as feather
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from tests.chaos import forks
from tests.chaos.reference import EACH

Command = tuple[object, ...]


def right_table(place: Path, command: Command) -> str | None:
    """A table that `aoq audit` finds nothing wrong with."""
    audited = forks.run(("aoq", "audit", "out"), place)
    return None if audited.code == 0 else f"exit code 0, and the audit says: {audited.said}"


def right_search(place: Path, command: Command) -> str | None:
    """The lists that a product of all pairs gives, from the vectors as they stand now."""
    broke = right_table(place, command)
    if broke:
        return broke
    images, captions = (_vectors(place, str(given)) for given in command[2:4])
    with np.errstate(all="ignore"):
        images, captions = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (images, captions))
        scores = images @ captions.T
    own = _owners(place, command, len(captions))[None, :] == np.arange(len(images))[:, None]
    for direction, matrix, is_own in (("i2t", scores, own), ("t2i", scores.T, own.T)):
        lists = pq.read_table(place / "out" / f"{direction}.parquet")
        ids = np.array(lists["negative_ids"].to_pylist())
        for row, listed in enumerate(ids):
            kept = listed[listed >= 0]
            if is_own[row, kept].any() or len(set(kept)) < len(kept):
                return f"exit code 0, and list {row} of {direction} holds an own positive, or one twice"
            rest = np.delete(matrix[row], np.concatenate([kept, np.flatnonzero(is_own[row])]))
            if len(rest) and (len(kept) < ids.shape[1] or matrix[row, kept].min() < rest.max() - 1e-5):
                return f"exit code 0, and list {row} of {direction} is not the hardest"
    return None


def _vectors(place: Path, given: str) -> np.ndarray:
    """The vectors that a command was given, as numpy reads them."""
    file, _, part = given.partition("::")
    if file.endswith(".safetensors"):
        return load_file(place / file)[part].astype(np.float64)
    if file.endswith(".parquet"):
        return np.array(pq.read_table(place / file).column(0).to_pylist(), np.float64)
    if file.endswith(".feather"):
        return np.array(feather.read_table(place / file)["vector"].to_pylist(), np.float64)
    return np.load(place / file).astype(np.float64)


def _owners(place: Path, command: Command, captions: int) -> np.ndarray:
    """The image of each caption."""
    if "--pairs" in command:
        return np.load(place / "pairs.npy").astype(np.int64)
    return np.repeat(np.arange(captions // EACH + 1), EACH)[:captions]
