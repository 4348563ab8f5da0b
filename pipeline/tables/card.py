"""The README of a table: what its lists are and how they are read, with YAML for the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from aoq.pipeline.console import visible
from aoq.pipeline.files import file_sha256
from aoq.pipeline.tables.files import directions_of, read_manifest, search_facts, sides_of
from aoq.pipeline.tables.pairs import TWO_SIDES

VIEW = "view"
"""Folder of the view that is published with a table."""
_FILES = ("i2t", "t2i", "positives", "images", "captions", "items")
_COLUMNS = ("anchors", "h", "search", "first_score_mean", "last_score_mean", "above_positive_share")
_CARD = Template(
    """\
---
${license}tags: [hard-negatives, $task, aoq]
$tables---
# Hard negatives

$about. Ids and scores alone; no pictures, no texts. Anchor n is row n of the data with the fingerprint
`$dataset`.

| | $columns |
|---|$rule|
$rows

$guarantees

`negative_ids` are rows of the other side: score falling, then id rising, padding −1. An anchor's own are in
`positives`, never in the lists. Made by $tool $version; teacher:
`$teacher`.
$flags
```python
import aoq
from datasets import load_dataset

table = aoq.read_table("$name")  # checked against the sha256 in manifest.json
rows = load_dataset("$name", split="train")  # i2t; others by name: load_dataset("$name", "positives", split="train")
```

`aoq inspect $name --image 0` shows a list, `aoq export $name OUT --format …$view` writes it for a trainer.
"""
)
_FLAGS = """
$tables say what may match after all, place by place: bit n of `flags` is rule n of
$rules.
"""


def write_card(folder: Path, *, name: str = "FOLDER", licence: str | None = None, rules: Sequence[str] = ()) -> None:
    """Write the README; `rules` are those of the view in the folder, if there is one."""
    manifest = read_manifest(folder)
    directions, sides = directions_of(manifest), [visible(side) for side in sides_of(manifest)]
    first, last = sides[0], sides[-1]
    what = f"for each of the {first} the {last}, and for each of the {last} the {first}"
    what = f"for each of the {first} the others" if len(sides) == 1 else what
    tables = {file: f"{file}.parquet" for file in _FILES}
    tables |= {f"{direction}_flags": f"{VIEW}/{direction}.parquet" for direction in directions if rules}
    facts = {direction: search_facts(manifest, direction) for direction in directions}
    rows = ([direction, *(about.get(column, "") for column in _COLUMNS)] for direction, about in facts.items())
    flags = Template(_FLAGS).substitute(
        tables=" and ".join(f"`{direction}_flags`" for direction in directions),
        rules=", ".join(f"`{rule}`" for rule in rules),
    )
    text = _CARD.substitute(
        license="" if licence is None else f"license: {json.dumps(licence)}\n",
        task="image-text-retrieval" if sides_of(manifest) == TWO_SIDES else "retrieval",
        tables=describe_tables(folder, tables, default=_FILES[0]),
        about=f"Hard negatives, {what} that a teacher finds most similar among those that are not its own",
        dataset=visible(str(manifest.get("dataset", "unknown"))),
        columns=" | ".join(column.replace("_", " ") for column in _COLUMNS),
        rule="|".join("---" for _ in _COLUMNS),
        rows="\n".join("| " + " | ".join(visible(str(cell)) for cell in row) + " |" for row in rows),
        guarantees="\n".join(f"- `{one}`: {visible(describe_guarantee(about))}." for one, about in facts.items()),
        tool=visible(str(manifest.get("tool", "aoq"))),
        version=visible(str(manifest.get("tool_version", ""))),
        teacher=visible(json.dumps(manifest.get("teacher", "unknown"))),
        flags=flags if rules else "",
        name=name,
        view=f" --view {name}/{VIEW}" if rules else "",
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def describe_tables(folder: Path, tables: Mapping[str, str], *, default: str = "") -> str:
    """Name the existing tables in YAML, with their hashes: `datasets` caches by this text, whatever they hold."""
    entries = [
        f"- config_name: {name}\n  data_files: {file}\n  description: sha256 {file_sha256(folder / file)}\n"
        + ("  default: true\n" if name == default else "")
        for name, file in tables.items()
        if (folder / file).is_file()
    ]
    return "configs:\n" + "".join(entries)


def describe_guarantee(about: Mapping[str, Any]) -> str:
    """Describe how a direction's lists were found and how complete they are, from its fields of the manifest.

    No approximate table may pass for an exact one.

    >>> describe_guarantee({"guarantee": "exact", "certified_share": 1.0})
    'exact, 100.00% certified'
    >>> measured = {"recall": 0.962, "recall_interval": [0.9416, 0.9755], "recall_anchors": 512}
    >>> describe_guarantee({"guarantee": "approximate", **measured, "certified_share": 0.0})
    'approximate, 96.20% of the true lists (95% interval 94.16% to 97.55%, 512 anchors), not certified'
    """
    text = str(about.get("guarantee", "unknown"))
    if collapsed := about.get("collapsed_share"):
        text = f"{describe_collapse(collapsed)}; {text}"
    if "recall" in about:
        sample = f"{about['recall_anchors']} anchors"
        if "recall_interval" in about:  # not of a shortlist, nor in older tables
            low, high = about["recall_interval"]
            sample = f"95% interval {low:.2%} to {high:.2%}, {sample}"
        text += f", {about['recall']:.2%} of the true lists ({sample})"
    if "certified_share" in about:
        share = about["certified_share"]
        text += f", {share:.2%} certified" if share else ", not certified"
    if index := about.get("index"):
        text += f"; index {' '.join(filter(None, (index['factory'], index['parameters'])))}"
    return text


def describe_collapse(share: float) -> str:
    return f"all scores of {share:.0%} of the anchors lie within 1e-6: the teacher has collapsed"
