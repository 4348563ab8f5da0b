"""Judge a table's negatives by the rules of a screen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float32, UInt32
from pydantic import ValidationError

from aoq.pipeline.config.screen import RULES, Screen, Suspected
from aoq.pipeline.config.section import explain
from aoq.pipeline.data.clean_pairs import read_clean_pairs
from aoq.pipeline.tables.contents import TableContents
from aoq.pipeline.tables.pairs import Pairs
from aoq.pipeline.tables.screens.judgements import read_judgements, read_matches
from aoq.pipeline.tables.screens.knowledge import Context, Knowledge, entry_blocks
from aoq.pipeline.tables.screens.rules import check_knowledge, flag_negatives
from aoq.pipeline.tables.screens.suspicion import rate_suspicion
from aoq.pipeline.tables.screens.view import FORMAT_VERSION, Judged, View, bit


def judge(table: TableContents, screen: Screen, known: Knowledge) -> View:
    """Judge the table's negatives by the rules of the screen."""
    check_knowledge(screen, known)
    judged, counts, context = {}, {}, Context(table, known, screen)
    for direction in table.directions:
        flags = flag_negatives(context, direction)
        judged[direction] = Judged(flags, rate_suspicion(context, direction, flags))
        counts[direction] = _counts(flags, table[direction].negative_ids >= 0, screen)
        if screen.judgements is not None:
            probabilities = (context.judged(entries) for entries in entry_blocks(direction, table[direction]))
            counts[direction]["judged"] = sum(int((~np.isnan(block)).sum()) for block in probabilities)
    manifest = {
        "format_version": FORMAT_VERSION,
        "rules": list(RULES),
        "screen": screen.recipe,
        "recipe_sha256": sha256(json.dumps(screen.recipe, sort_keys=True).encode()).hexdigest(),
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


def judge_by_rules(
    table: TableContents,
    rules: Mapping[str, Any],
    *,
    texts: Sequence[str] | None,
    images: Float32[np.ndarray, "images D"] | None,
    captions: Float32[np.ndarray, "captions D"] | None,
    positives: Path | str | Pairs | None,
    pair_probabilities: Path | str | Float32[np.ndarray, " captions"] | None,
    judgements: Path | str | pa.Table | None,
) -> tuple[View, Suspected]:
    """Judge the table by rules as a user names them; check the rules' inputs against the table's size."""
    if unknown := [rule for rule in rules if rule not in Screen.model_fields]:
        raise ValueError(f"there is no rule {unknown[0]!r}; the rules are {', '.join(Screen.model_fields)}.")
    inputs = {"positives": positives, "pair_probabilities": pair_probabilities, "judgements": judgements}
    options = {**rules, **{option: _name(value) for option, value in inputs.items()}}
    try:
        screen = Screen(**{option: value for option, value in options.items() if value is not None})
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
        source = Path(judgements) if isinstance(judgements, str) else judgements
        judged = read_judgements(source, *sizes, grades=screen.judged_grades, one_set=table.is_one_set)
    known = Knowledge(texts, images, captions, positives, pair_probabilities, judged)
    return judge(table, screen, known), screen.suspected


def _name(value: Path | str | np.ndarray | pa.Table | None) -> str | None:
    """Name a file, an array or an Arrow table in a recipe."""
    if isinstance(value, pa.Table):
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, value.schema) as stream:
            stream.write_table(value.combine_chunks())
        return f"sha256:{sha256(content.getvalue()).hexdigest()}"
    if isinstance(value, np.ndarray):
        return f"sha256:{sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    return None if value is None else str(value)
