"""The README of an export: what it holds, and the lines that load it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from string import Template

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.exchange.formats import Format
from aoq.pipeline.tables.exchange.outgoing import Outgoing, Written

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
    """YAML that `datasets` finds the tables by, where there are some, then the lines."""
    sides = [side for one in outgoing.values() for side in (one.anchors, one.candidates)]
    files = sorted(path for kind in ("parquet", "jsonl") for path in folder.glob(f"*.{kind}"))
    given = {"folder": folder.name}
    given |= {"queries": f"{sides[0].noun}s", "documents": f"{sides[1].noun}s"}
    by_path = any(side.are_pictures for side in sides) and not any(one.packed for one in outgoing.values())
    text = Template(README).substitute(
        name=name,
        version=version("aoq"),
        rows=", ".join(f"{about.rows} rows, {one}, up to {outgoing[one].depth} each" for one, about in written.items()),
        pictures=", with pictures by their paths on this machine" if by_path else "",
        language=form.language,
        load=Template(form.load.strip()).substitute(given),
    )
    (folder / "README.md").write_text(_configs(files) + text, encoding="utf-8")


def _configs(files: list[Path]) -> str:
    """The tables by name, and their hashes: `datasets` caches them by this text alone, whatever the files hold."""
    if not files:
        return ""
    entries = [
        f"- config_name: {path.stem if len(files) > 1 else 'default'}\n  data_files: {path.name}\n"
        f"  description: sha256 {file_sha256(path)}\n"
        for path in files
    ]
    return "---\nconfigs:\n" + "".join(entries) + "---\n"
