"""The README of a table: its lists and how to read them, with YAML for the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from aoq.pipeline.console import visible
from aoq.pipeline.files import file_sha256
from aoq.pipeline.tables.files import read_manifest, search_facts, table_directions, table_sides
from aoq.pipeline.tables.pairs import TWO_SIDES

VIEW = "view"
"""Folder of the view that is published with a table."""
_FILES = ("i2t", "t2i", "positives", "images", "captions", "items")
_CARD = Template(
    """\
---
${license}tags: [hard-negatives, $task, aoq]
$tables---
# Hard negatives

$about.
The table holds ids and scores, but no pictures or texts. Anchor n is row n of the data with the fingerprint `$dataset`.

$guarantees

`negative_ids` are rows of the other side: score falling, then id rising, padding −1. An anchor's positives are in
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


def write_card(folder: Path, *, name: str = "FOLDER", licence: str | None = None) -> None:
    """Write the README of a table, and of the view in its folder if there is one."""
    manifest, view = read_manifest(folder), folder / VIEW
    directions, sides = table_directions(manifest), [visible(side) for side in table_sides(manifest)]
    others, both = ("the others", "") if len(sides) == 1 else (f"the {sides[1]}", ", and vice versa")
    tables = {file: f"{file}.parquet" for file in _FILES}
    tables |= {f"{direction}_flags": f"{VIEW}/{direction}.parquet" for direction in directions}
    guarantees = {one: visible(describe_guarantee(search_facts(manifest, one))) for one in directions}
    flags = f"Bit n of `flags` in `{VIEW}` is rule n of its manifest's `rules`: a negative is left out or may match.\n"
    text = _CARD.substitute(
        license="" if licence is None else f"license: {json.dumps(licence)}\n",
        task="image-text-retrieval" if table_sides(manifest) == TWO_SIDES else "retrieval",
        tables=describe_tables(folder, tables, default=_FILES[0]),
        about=f"For each of the {sides[0]}, {others} that a teacher scores highest of those not paired with it{both}",
        dataset=visible(str(manifest.get("dataset", "unknown"))),
        guarantees="\n".join(f"- `{one}`: {guarantee}." for one, guarantee in guarantees.items()),
        tool=visible(str(manifest.get("tool", "aoq"))),
        version=visible(str(manifest.get("tool_version", ""))),
        teacher=visible(json.dumps(manifest.get("teacher", "unknown"))),
        flags=flags if view.is_dir() else "",
        name=name,
        view=f" --view {name}/{VIEW}" if view.is_dir() else "",
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def describe_tables(folder: Path, tables: Mapping[str, str], *, default: str = "") -> str:
    """Name the existing tables in YAML, with their hashes: `datasets` caches by this text, not by their content."""
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
        if "recall_interval" in about:  # shortlists and older tables have none
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
