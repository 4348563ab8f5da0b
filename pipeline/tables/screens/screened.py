"""A table judged by the rules of a screen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, UInt32
from pydantic import ValidationError

from aoq.pipeline.config.load import explain
from aoq.pipeline.config.screen import EXCLUSIONS, RULES, Screen, Suspected
from aoq.pipeline.data.clean_pairs import read_clean_pairs
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.search.vectors import check_vectors
from aoq.pipeline.tables.pairs import Pairs
from aoq.pipeline.tables.screens.knowledge import Context, Knowledge
from aoq.pipeline.tables.screens.matches import read_matches
from aoq.pipeline.tables.screens.rules import bit, check_knowledge, flag_negatives, rules_of
from aoq.pipeline.tables.screens.view import FORMAT_VERSION, Judged, View, write_view
from aoq.pipeline.tables.table import NegativeTable, data_frame
from aoq.pipeline.tables.writing import made_whole

CERTAIN = ("positives", "same_text")


@dataclass(frozen=True, repr=False)
class ScreenedTable:
    """A table and what a screen says of it; the table itself stays as it is."""

    table: NegativeTable
    view: View
    suspected: Suspected = "drop"
    """What becomes of negatives that the screen suspects, unless `weights` is told otherwise."""

    def __repr__(self) -> str:
        flagged = ", ".join(f"{d}: {int((self.flags(d) > 0).sum())} flagged" for d in DIRECTIONS)
        return f"ScreenedTable({self.table!r}, {flagged})"

    def flags(self, direction: Direction) -> UInt32[np.ndarray, "anchors h"]:
        """The bits of the rules that each negative meets, `rules_of` of each their names."""
        return self.view[direction].flags

    def suspicion(self, direction: Direction) -> Float32[np.ndarray, "anchors h"]:
        """0 to 1: how much the rules suspect each negative of being a false negative."""
        return self.view[direction].suspicion

    def weights(self, direction: Direction, suspected: Suspected | None = None) -> Float32[np.ndarray, "anchors h"]:
        """How much of each negative is left for sampling; 0 for padding."""
        weights = self.view[direction].weights(suspected or self.suspected)
        return np.where(self.table[direction].negative_ids >= 0, weights, np.float32(0))

    def left(self, direction: Direction) -> NegativeLists:
        """The lists without what is flagged, moved up and padded."""
        return self.table[direction].keep(self.flags(direction) == 0)

    def to_pandas(self, direction: Direction) -> Any:
        """A pandas.DataFrame as the table's own, with the names of the rules met (`flags`) and `suspicion`."""
        listed = self.table[direction].negative_ids >= 0
        bits, which = np.unique(self.flags(direction)[listed], return_inverse=True)
        names = np.array([",".join(rules_of(int(one))) for one in bits], dtype=object)
        suspicion = self.suspicion(direction)[listed]
        return data_frame(self.table[direction], flags=names[which], suspicion=suspicion)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the view, as `aoq screen` does, as the new folder `folder`; the table is not saved with it."""
        with made_whole(Path(folder), overwrite=overwrite) as made:
            write_view(self.view, made)


def screen_table(
    table: NegativeTable,
    rules: Mapping[str, Any],
    *,
    texts: Sequence[str] | None,
    images: Float32[np.ndarray, "images D"] | None,
    captions: Float32[np.ndarray, "captions D"] | None,
    positives: Path | str | Pairs | None,
    pair_probabilities: Path | str | Float32[np.ndarray, " captions"] | None,
) -> ScreenedTable:
    """The table judged by rules as a user names them, what they need checked against the table's size."""
    given = {**rules, "positives": _name(positives), "pair_probabilities": _name(pair_probabilities)}
    try:
        screen = Screen(**{rule: value for rule, value in given.items() if value is not None})
    except ValidationError as error:
        raise ValueError(explain(Screen, error).removeprefix("the file: ")) from None
    sizes = len(table.i2t), len(table.t2i)
    if texts is not None and len(texts) != sizes[1]:
        raise ValueError(f"{len(texts)} texts are given, and the table is of {sizes[1]} captions; give one each.")
    for side, vectors, count in (("images", images, sizes[0]), ("captions", captions, sizes[1])):
        if vectors is None:
            continue
        if len(vectors) != count:
            raise ValueError(f"{len(vectors)} vectors of {side} are given, and the table is of {count}; give one each.")
        check_vectors(vectors, f"the vectors of {side}", unit=True)
    if isinstance(positives, (str, Path)):
        positives = read_matches(Path(positives), *sizes)
    if isinstance(pair_probabilities, (str, Path)):
        pair_probabilities = read_clean_pairs(Path(pair_probabilities), sizes[1])
    known = Knowledge(texts, images, captions, positives, pair_probabilities)
    return ScreenedTable(table, judge(table, screen, known), screen.suspected)


def _name(given: Path | str | np.ndarray | None) -> str | None:
    """What a recipe calls a file, or an array."""
    if isinstance(given, np.ndarray):
        return f"sha256:{sha256(np.ascontiguousarray(given).tobytes()).hexdigest()}"
    return None if given is None else str(given)


def judge(table: NegativeTable, screen: Screen, known: Knowledge) -> View:
    """The table's negatives under the rules of the screen.

    A negative's suspicion is the fraction of the set rules that cast suspicion and that it meets; 1 if people said that
    it matches, or it is the same text.
    """
    check_knowledge(screen, known)
    judged, counts, context = {}, {}, Context(table, known)
    suspecting = [rule for rule in screen.rules if rule not in EXCLUSIONS]
    for direction in DIRECTIONS:
        flags = flag_negatives(context, direction, screen)
        met = sum(
            ((flags & bit(rule) > 0).astype(np.float32) for rule in suspecting), np.zeros(flags.shape, np.float32)
        )
        suspicion = met / max(1, len(suspecting))
        suspicion[flags & sum(bit(rule) for rule in CERTAIN) > 0] = 1
        judged[direction] = Judged(flags, suspicion)
        counts[direction] = _counts(flags, table[direction].negative_ids >= 0, screen)
    recipe = screen.model_dump(include={*screen.rules, "pair_probabilities"}, exclude_none=True)
    manifest = {
        "format_version": FORMAT_VERSION,
        "rules": list(RULES),
        "screen": recipe,
        "recipe_sha256": sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest(),
        "table_sha256": table.sha256,
        "directions": counts,
    }
    return View(judged["i2t"], judged["t2i"], manifest)


def _counts(
    flags: UInt32[np.ndarray, "anchors h"], listed: Bool[np.ndarray, "anchors h"], screen: Screen
) -> dict[str, Any]:
    """How many are listed, and of them left; how many each rule takes from what the rules before it leave, which
    adds up; and how many each meets altogether."""
    left = listed.copy()
    takes, meets = {}, {}
    for rule in screen.rules:
        met = flags & bit(rule) > 0
        meets[rule] = int(met.sum())
        takes[rule] = int((met & left).sum())
        left &= ~met
    empty = int((~left.any(axis=1)).sum())
    return {"listed": int(listed.sum()), "takes": takes, "left": int(left.sum()), "empty": empty, "meets": meets}
