"""A table judged by the rules of a screen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, UInt32
from pydantic import ValidationError

from aoq.pipeline.config.screen import RULES, Screen, Suspected
from aoq.pipeline.config.section import explain
from aoq.pipeline.data.clean_pairs import read_clean_pairs
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.pairs import Pairs
from aoq.pipeline.tables.screens.entries import entry_blocks
from aoq.pipeline.tables.screens.judgements import read_judgements
from aoq.pipeline.tables.screens.knowledge import Context, Knowledge
from aoq.pipeline.tables.screens.matches import read_matches
from aoq.pipeline.tables.screens.rules import bit, check_knowledge, flag_negatives, rules_of
from aoq.pipeline.tables.screens.suspicion import suspicion_of
from aoq.pipeline.tables.screens.view import FORMAT_VERSION, Judged, View, write_view
from aoq.pipeline.tables.table import NegativeTable, data_frame
from aoq.pipeline.tables.writing import made_whole


@dataclass(frozen=True, repr=False)
class ScreenedTable:
    """A table and a screen's judgement of it; the table itself stays unchanged."""

    table: NegativeTable
    view: View
    suspected: Suspected = "drop"
    """Treatment of suspected negatives, unless `weights` is given another."""

    def __repr__(self) -> str:
        flagged = ", ".join(f"{d}: {int((self.flags(d) > 0).sum())} flagged" for d in self.table.directions)
        return f"ScreenedTable({self.table!r}, {flagged})"

    def flags(self, direction: Direction) -> UInt32[np.ndarray, "anchors h"]:
        """Bits of the rules that each negative meets; `rules_of` names them."""
        return self.view[direction].flags

    def suspicion(self, direction: Direction) -> Float32[np.ndarray, "anchors h"]:
        """Suspicion that each negative is a false negative, from 0 to 1."""
        return self.view[direction].suspicion

    def weights(self, direction: Direction, suspected: Suspected | None = None) -> Float32[np.ndarray, "anchors h"]:
        """Sampling weight of each negative; 0 for padding."""
        weights = self.view[direction].weights(suspected or self.suspected)
        return np.where(self.table[direction].negative_ids >= 0, weights, np.float32(0))

    def left(self, direction: Direction) -> NegativeLists:
        """Lists without flagged negatives, moved up and padded."""
        return self.table[direction].keep(self.flags(direction) == 0)

    def to_pandas(self, direction: Direction) -> Any:
        """Make a pandas.DataFrame like the table's own, with the names of the rules met (`flags`) and `suspicion`."""
        listed = self.table[direction].negative_ids >= 0
        bits, which = np.unique(self.flags(direction)[listed], return_inverse=True)
        names = np.array([",".join(rules_of(int(one))) for one in bits], dtype=object)
        suspicion = self.suspicion(direction)[listed]
        return data_frame(self.table[direction], flags=names[which], suspicion=suspicion)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the view, as `aoq screen` does, to the new folder `folder`; the table is not saved with it."""
        with made_whole(Path(folder), overwrite=overwrite) as made:
            write_view(self.view, made)


class Parts(NamedTuple):
    """What a table's user draws from: the table, and a screen's judgement of it, if there is one."""

    table: NegativeTable
    view: View | None
    suspected: Suspected

    def judged(self, direction: Direction) -> Judged | None:
        return None if self.view is None else self.view[direction]


def parts_of(table: NegativeTable | ScreenedTable) -> Parts:
    """Take a table apart, screened or not."""
    if isinstance(table, ScreenedTable):
        return Parts(table.table, table.view, table.suspected)
    return Parts(table, None, "drop")


def screen_table(
    table: NegativeTable,
    rules: Mapping[str, Any],
    *,
    texts: Sequence[str] | None,
    images: Float32[np.ndarray, "images D"] | None,
    captions: Float32[np.ndarray, "captions D"] | None,
    positives: Path | str | Pairs | None,
    pair_probabilities: Path | str | Float32[np.ndarray, " captions"] | None,
    judgements: Path | str | pa.Table | None,
) -> ScreenedTable:
    """Judge the table by rules as a user names them; check the rules' inputs against the table's size."""
    if unknown := [rule for rule in rules if rule not in Screen.model_fields]:
        raise ValueError(f"there is no rule {unknown[0]!r}; the rules are {', '.join(Screen.model_fields)}.")
    files = {"positives": positives, "pair_probabilities": pair_probabilities, "judgements": judgements}
    given = {**rules, **{option: _name(file) for option, file in files.items()}}
    try:
        screen = Screen(**{rule: value for rule, value in given.items() if value is not None})
    except ValidationError as error:
        raise ValueError(explain(Screen, error)) from None
    sizes = len(table.i2t), len(table.t2i)
    if texts is not None and len(texts) != sizes[1]:
        raise ValueError(f"{len(texts)} texts are given, and the table is of {sizes[1]} captions; give one each.")
    for side, vectors, count in (("images", images, sizes[0]), ("captions", captions, sizes[1])):
        if vectors is not None and len(vectors) != count:
            raise ValueError(f"{len(vectors)} vectors of {side} are given, and the table is of {count}; give one each.")
    if isinstance(positives, (str, Path)):
        positives = read_matches(Path(positives), *sizes)
    if isinstance(pair_probabilities, (str, Path)):
        pair_probabilities = read_clean_pairs(Path(pair_probabilities), sizes[1])
    judged = None
    if judgements is not None:
        judgements = Path(judgements) if isinstance(judgements, str) else judgements
        judged = read_judgements(judgements, *sizes, grades=screen.judged_grades, one_set=table.is_one_set)
    known = Knowledge(texts, images, captions, positives, pair_probabilities, judged)
    return ScreenedTable(table, judge(table, screen, known), screen.suspected)


def _name(given: Path | str | np.ndarray | pa.Table | None) -> str | None:
    """Name of a file, an array or an Arrow table in a recipe."""
    if isinstance(given, pa.Table):
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, given.schema) as stream:
            stream.write_table(given.combine_chunks())
        return f"sha256:{sha256(content.getvalue()).hexdigest()}"
    if isinstance(given, np.ndarray):
        return f"sha256:{sha256(np.ascontiguousarray(given).tobytes()).hexdigest()}"
    return None if given is None else str(given)


def judge(table: NegativeTable, screen: Screen, known: Knowledge) -> View:
    """Judge the table's negatives by the rules of the screen."""
    check_knowledge(screen, known)
    judged, counts, context = {}, {}, Context(table, known, screen)
    for direction in table.directions:
        flags = flag_negatives(context, direction)
        judged[direction] = Judged(flags, suspicion_of(context, direction, flags))
        counts[direction] = _counts(flags, table[direction].negative_ids >= 0, screen)
        if screen.judgements is not None:
            asked = (context.judged(entries) for entries in entry_blocks(direction, table[direction]))
            counts[direction]["judged"] = sum(int((~np.isnan(one)).sum()) for one in asked)
    recipe = screen.recipe
    manifest = {
        "format_version": FORMAT_VERSION,
        "rules": list(RULES),
        "screen": recipe,
        "recipe_sha256": sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest(),
        "table_sha256": table.sha256,
        "directions": counts,
    }
    return View(judged["i2t"], judged[table.directions[-1]], manifest)


def _counts(
    flags: UInt32[np.ndarray, "anchors h"], listed: Bool[np.ndarray, "anchors h"], screen: Screen
) -> dict[str, Any]:
    """Count the listed negatives, those left, and per rule those it takes from what earlier rules leave (which adds up)
    and those that meet it altogether."""
    left = listed.copy()
    takes, meets = {}, {}
    for rule in screen.rules:
        met = flags & bit(rule) > 0
        meets[rule] = int(met.sum())
        takes[rule] = int((met & left).sum())
        left &= ~met
    empty = int((~left.any(axis=1)).sum())
    return {"listed": int(listed.sum()), "takes": takes, "left": int(left.sum()), "empty": empty, "meets": meets}
