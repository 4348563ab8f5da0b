"""A table as others get it, with a data card: no pictures, no texts.

    i2t.parquet, t2i.parquet, positives.parquet, manifest.json, certificates   the table, which reads back as one
    view/           what a screen says of its places
    images.parquet, captions.parquet   image_id and caption_id of each row, where there are some
    README.md       the card, with YAML for the Hugging Face hub

Nothing of it tells of this machine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.exchange.outgoing import ROWS, rows_by_id
from aoq.pipeline.tables.exchange.readme import describe_tables
from aoq.pipeline.tables.files import MANIFEST, POSITIVES, read_chunks, read_manifest, read_positives
from aoq.pipeline.tables.ids import FILES, read_ids, write_ids
from aoq.pipeline.tables.screens.view import View, read_view, write_view
from aoq.pipeline.terminal import visible

VIEW = "view"
COLUMNS = ("anchors", "h", "search", "guarantee", "first_score_mean", "last_score_mean", "above_positive_share")

CARD = Template(
    """\
---
${license}pretty_name: $pretty
tags: [hard-negatives, image-text-retrieval, aoq]
$tables---
# $name

Hard negatives for image-text retrieval: for each image the captions, and for each caption the images that a teacher
finds most similar among those that are not its own. Ids and scores alone; no pictures, no texts. Anchor n of `i2t` is
row n of the images, anchor n of `t2i` row n of the captions, of the data with the fingerprint
`$dataset`.

| | $columns |
|---|$rule|
$directions

`negative_ids` are rows of the other side: score falling, then id rising, padding −1. An anchor's own are in
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
FLAGS = """
`i2t_flags` and `t2i_flags` say what may match after all, place by place: bit n of `flags` is rule n of
$rules.
"""


def publish_table(
    table: Path,
    output: Path,
    *,
    view: Path | None = None,
    image_ids: Sequence[str] | None = None,
    licence: str | None = None,
) -> list[str]:
    """Check the table and its view, write both to the new folder `output`, and name the files."""
    manifest = read_manifest(table)
    judged = None if view is None else read_view(view, manifest)
    for direction in DIRECTIONS:
        for _ in read_chunks(table, direction, manifest, 16 * ROWS):
            pass  # refused in the end where the lists are not those of the manifest
    read_positives(table, manifest)
    output.mkdir()
    for name in (*(f"{one}{kind}" for one in DIRECTIONS for kind in (".parquet", ".certificates.parquet")), POSITIVES):
        if (table / name).is_file():
            shutil.copyfile(table / name, output / name)
    shutil.copyfile(table / MANIFEST, output / MANIFEST)
    write_ids(output, read_ids(table, manifest) | ({} if image_ids is None else {"images": _unique(image_ids)}))
    if judged is not None:
        write_view(judged, output / VIEW)
    (output / "README.md").write_text(_card(output, manifest, judged, licence), encoding="utf-8")
    return sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())


def _unique(ids: Sequence[str]) -> Sequence[str]:
    rows_by_id(ids)
    return ids


def _card(output: Path, manifest: Mapping[str, Any], view: View | None, licence: str | None) -> str:
    tables = {Path(name).stem: name for name in ("i2t.parquet", "t2i.parquet", POSITIVES, *FILES.values())}
    tables |= {f"{one}_flags": f"{VIEW}/{one}.parquet" for one in DIRECTIONS}
    said = manifest.get("directions", {})
    rows = [[one, *(said.get(one, {}).get(column, "") for column in COLUMNS)] for one in DIRECTIONS]
    rules = "" if view is None else ", ".join(f"`{rule}`" for rule in view.manifest["rules"])
    return CARD.substitute(
        license="" if licence is None else f"license: {json.dumps(licence)}\n",
        pretty=json.dumps(output.name, ensure_ascii=False),
        tables=describe_tables(output, tables),
        name=output.name,
        dataset=visible(str(manifest.get("dataset", "unknown"))),
        columns=" | ".join(column.replace("_", " ") for column in COLUMNS),
        rule="|".join("---" for _ in COLUMNS),
        directions="\n".join("| " + " | ".join(visible(str(cell)) for cell in row) + " |" for row in rows),
        flags="" if view is None else Template(FLAGS).substitute(rules=rules),
        teacher=visible(json.dumps(manifest.get("teacher", "unknown"))),
        tool=visible(str(manifest.get("tool", "aoq"))),
        version=visible(str(manifest.get("tool_version", ""))),
        view="" if view is None else f" --view {output.name}/{VIEW}",
    )
