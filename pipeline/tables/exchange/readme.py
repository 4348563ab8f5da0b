"""README of an export: its content, and the lines that load it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from string import Template

from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.exchange.formats import Format
from aoq.pipeline.tables.exchange.outgoing import Outgoing, Written
from aoq.pipeline.tables.readme import describe_tables

README = """\
Hard negatives in the format $name, mined by aoq $version: $rows$pictures.

```$language
$load
```
"""


def write_readme(
    folder: Path,
    name: str,
    form: Format,
    outgoing: Mapping[Direction, Outgoing],
    written: Mapping[Direction, Written],
) -> None:
    """Write the YAML by which `datasets` finds the tables, if there are any, then the lines."""
    sides = [side for one in outgoing.values() for side in (one.anchors, one.candidates)]
    files = sorted(path for kind in ("parquet", "jsonl") for path in folder.glob(f"*.{kind}"))
    tables = {path.stem if len(files) > 1 else "default": path.name for path in files}
    given = {"folder": folder.name}
    given |= {"queries": f"{sides[0].noun}s", "documents": f"{sides[1].noun}s"}
    lookups = sorted({f"{side.noun}s" for side in sides}, reverse=True)
    given |= {"tables": ", ".join(lookups), "names": ", ".join(f'"{name}"' for name in lookups)}
    by_path = any(side.are_pictures for side in sides) and not any(one.packed for one in outgoing.values())
    text = Template(README).substitute(
        name=name,
        version=version("aoq"),
        rows=", ".join(f"{about.rows} rows, {one}, up to {outgoing[one].depth} each" for one, about in written.items()),
        pictures=", with pictures by their paths on this machine" if by_path else "",
        language=form.language,
        load=Template(form.load.strip()).substitute(given),
    )
    (folder / "README.md").write_text(_front_matter(folder, tables) + text, encoding="utf-8")


def _front_matter(folder: Path, tables: Mapping[str, str]) -> str:
    return f"---\n{describe_tables(folder, tables)}---\n" if tables else ""
