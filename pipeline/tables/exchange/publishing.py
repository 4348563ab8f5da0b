"""Publish a table with a data card, without pictures and texts.

    i2t.parquet, t2i.parquet, positives.parquet, manifest.json, certificates   the table, which reads back as one
    view/           a screen's judgement of each place
    images.parquet  image_id of each row; captions.parquet likewise; for one set, items.parquet
    README.md       the card, with YAML for the Hugging Face hub

Nothing in it describes this machine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from aoq.pipeline.tables.exchange.outgoing import ROWS
from aoq.pipeline.tables.files import (
    MANIFEST,
    POSITIVES,
    directions_of,
    id_columns,
    read_chunks,
    read_ids,
    read_manifest,
    read_positives,
    said_of,
    sides_of,
)
from aoq.pipeline.tables.pairs import TWO_SIDES
from aoq.pipeline.tables.screens.view import View, read_view, write_view
from aoq.pipeline.tables.writing import describe_tables, write_ids
from aoq.pipeline.terminal import visible

VIEW = "view"
COLUMNS = ("anchors", "h", "search", "guarantee", "first_score_mean", "last_score_mean", "above_positive_share")

CARD = Template(
    """\
---
${license}pretty_name: $pretty
tags: [hard-negatives, $task, aoq]
$tables---
# $name

$about Ids and scores alone; no pictures, no texts.
$rows of the data with the fingerprint
`$dataset`.

| | $columns |
|---|$rule|
$directions

`negative_ids` are rows of what is searched: score falling, then id rising, padding −1. An anchor's own are in
`positives`, never in the lists. Made by $tool $version; teacher:
`$teacher`.
$flags
```python
import aoq
from datasets import load_dataset
table = aoq.read_table("$name")  # checked against the sha256 in manifest.json
rows = load_dataset("$name", "i2t", split="train")
```

`aoq export $name OUT --format …$view` writes it for a trainer, with your own captions and pictures.
"""
)
ABOUT = {
    1: (
        "Hard negatives within one set: for each of the $first the others that a teacher finds most similar among "
        "those that are not its own.",
        "Anchor n of `i2t` is row n of the $first,",
    ),
    2: (
        "Hard negatives: for each of the $first the $second, and for each of the $second the $first that a teacher "
        "finds most similar among those that are not its own.",
        "Anchor n of `i2t` is row n of the $first, anchor n of `t2i` row n of the $second,",
    ),
}
"""Description of the content and of its rows, by the number of sides."""
FLAGS = """
$tables say what may match after all, place by place: bit n of `flags` is rule n of
$rules.
"""


def publish_table(
    table: Path,
    output: Path,
    *,
    view: Path | None = None,
    image_ids: Sequence[str] | None = None,
    caption_ids: Sequence[str] | None = None,
    licence: str | None = None,
) -> list[str]:
    """Check the table and its view, write both to the new folder `output`, and name the files."""
    manifest = read_manifest(table)
    judged = None if view is None else read_view(view, manifest)
    directions = directions_of(manifest)
    if len(directions) == 1 and caption_ids is not None:
        raise ValueError("the table is of one set, whose ids are --image-ids; leave out --caption-ids.")
    for direction in directions:
        for _ in read_chunks(table, direction, manifest, 16 * ROWS):
            pass  # refused at the end if the lists do not match the manifest
    read_positives(table, manifest)
    output.mkdir()
    for name in (*(f"{one}{kind}" for one in directions for kind in (".parquet", ".certificates.parquet")), POSITIVES):
        if (table / name).is_file():
            shutil.copyfile(table / name, output / name)
    shutil.copyfile(table / MANIFEST, output / MANIFEST)
    ids = {"images": image_ids, "captions": caption_ids}
    own = read_ids(table, manifest)
    write_ids(output, own | {side: names for side, names in ids.items() if names is not None})
    if judged is not None:
        write_view(judged, output / VIEW)
    (output / "README.md").write_text(_card(output, manifest, judged, licence), encoding="utf-8")
    return sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())


def _card(output: Path, manifest: Mapping[str, Any], view: View | None, licence: str | None) -> str:
    directions, sides = directions_of(manifest), sides_of(manifest)
    files = (*(f"{one}.parquet" for one in directions), POSITIVES, *(file for file, _ in id_columns(manifest).values()))
    tables = {Path(file).stem: file for file in files}
    tables |= {f"{one}_flags": f"{VIEW}/{one}.parquet" for one in directions}
    rows = [[one, *(said_of(manifest, one).get(column, "") for column in COLUMNS)] for one in directions]
    names = {"first": visible(sides[0]), "second": visible(sides[-1])}
    about, anchors = (Template(text).substitute(names) for text in ABOUT[len(sides)])
    flag_tables = " and ".join(f"`{one}_flags`" for one in directions)
    rules = "" if view is None else ", ".join(f"`{rule}`" for rule in view.manifest["rules"])
    return CARD.substitute(
        license="" if licence is None else f"license: {json.dumps(licence)}\n",
        pretty=json.dumps(output.name, ensure_ascii=False),
        tables=describe_tables(output, tables, default=directions[0]),
        name=output.name,
        dataset=visible(str(manifest.get("dataset", "unknown"))),
        columns=" | ".join(column.replace("_", " ") for column in COLUMNS),
        rule="|".join("---" for _ in COLUMNS),
        directions="\n".join("| " + " | ".join(visible(str(cell)) for cell in row) + " |" for row in rows),
        flags="" if view is None else Template(FLAGS).substitute(rules=rules, tables=flag_tables),
        task="image-text-retrieval" if sides == TWO_SIDES else "retrieval",
        about=about,
        rows=anchors,
        teacher=visible(json.dumps(manifest.get("teacher", "unknown"))),
        tool=visible(str(manifest.get("tool", "aoq"))),
        version=visible(str(manifest.get("tool_version", ""))),
        view="" if view is None else f" --view {output.name}/{VIEW}",
    )
