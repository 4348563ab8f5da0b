"""Rules that every command keeps, whatever input it gets; and right results, known in another way."""

import re
from pathlib import Path

import numpy as np
import pyarrow.feather as feather
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from aoq.pipeline.console import is_hidden
from tests.chaos import forks
from tests.chaos.forks import Ended
from tests.chaos.reference import EACH

LINES = 12
"""Lines that a refusal has at most: `aoq data check` lists problems, Luigi names the tasks that failed."""
LOGGED = re.compile(r"\d\d:\d\d:\d\d (?!error:)")
"""A line of the log that is no error: where one of two branches fails, Luigi goes on with the other."""
INTERNALS = re.compile(
    r"allow_pickle|error: \[Errno|Traceback|Segmentation|Fatal Python|core dumped|Exception ignored|Aborted!"
)


class BrokenError(Exception):
    """A case breaks a rule."""


def hold(broke: str | None, what: str = "") -> None:
    """Go on unless something is broken; `what` led to it."""
    if broke:
        raise BrokenError(f"{what}: {broke}" if what else broke)


def refused_well(ended: Ended) -> str | None:
    """Say what is wrong with the end of a command, refused or not; None if nothing is."""
    if ended.late:
        return f"it took more than {ended.seconds:.0f} s\n{ended.said}"
    if ended.code is None or ended.code < 0:
        return f"it ended by signal {ended.code}\n{ended.said}"
    if found := INTERNALS.search(ended.output + ended.errors):
        return f"{found[0]!r} is shown\n{ended.output[-200:]}{ended.errors[-1500:]}"
    hidden = {character for character in ended.output + ended.errors if is_hidden(character)}
    if hidden:
        return f"{sorted(map(ascii, hidden))} reach the terminal\n{ended.said!a}"
    if ended.code != 0 and not ended.errors.strip():
        return f"exit code {ended.code} without a word"
    after = ended.errors[ended.errors.find("error:") :].strip().splitlines()
    refusal = [line for line in after if not LOGGED.match(line)]
    if ended.code != 0 and len(refusal) > LINES:
        return f"{len(refusal)} lines of refusal\n{ended.said}"
    return None


def failed(ended: Ended) -> str | None:
    return None if ended.code == 0 else f"it ends with {ended.code}\n{ended.said}"


def nothing_left(folder: Path, before: set[str]) -> str | None:
    """Name what a refused command left in its folder."""
    left = {path.name for path in folder.iterdir()} - before
    return f"it left {sorted(left)}" if left else None


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
