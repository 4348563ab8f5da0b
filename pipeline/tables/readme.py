"""A table's README.md: what it is, and YAML by which `datasets` finds its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.tables.files import directions_of, read_manifest, said_of
from aoq.pipeline.tables.guarantee import describe_guarantee
from aoq.pipeline.terminal import visible

TABLES = ("i2t", "t2i", "positives", "images", "captions", "items")
"""Files that `datasets` may read, by name; the first is what it reads where none is named."""
README = """\
A negative table by aoq: a row an anchor, its hardest negatives by falling score. `negative_ids` are rows of what is
searched, padding is −1; an anchor's own are in `positives`, never in the lists. `manifest.json` says whose scores these
are.

GUARANTEES

```python
import aoq
from datasets import load_dataset

table = aoq.read_table("FOLDER")  # this folder; checked against the sha256 in manifest.json
rows = load_dataset("FOLDER", split="train")  # i2t; others by name: load_dataset("FOLDER", "positives", split="train")
```

`aoq inspect FOLDER --image 0` shows a list, `aoq export FOLDER OUT --format …` writes it for a trainer.
"""


def write_table_readme(table: Path) -> None:
    """Write it beside the files that are there; the same files have the same."""
    manifest = read_manifest(table)
    said = {direction: describe_guarantee(said_of(manifest, direction)) for direction in directions_of(manifest)}
    guarantees = "\n".join(f"- `{direction}`: {visible(guarantee)}." for direction, guarantee in said.items())
    tables = describe_tables(table, {name: f"{name}.parquet" for name in TABLES}, default=TABLES[0])
    (table / "README.md").write_text(f"---\n{tables}---\n{README.replace('GUARANTEES', guarantees)}", encoding="utf-8")


def describe_tables(folder: Path, tables: Mapping[str, str], *, default: str = "") -> str:
    """Name the existing tables in YAML, with their hashes: `datasets` caches by this text, whatever they hold."""
    entries = [
        f"- config_name: {name}\n  data_files: {file}\n  description: sha256 {file_sha256(folder / file)}\n"
        + ("  default: true\n" if name == default else "")
        for name, file in tables.items()
        if (folder / file).is_file()
    ]
    return "configs:\n" + "".join(entries)
