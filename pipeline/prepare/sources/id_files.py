"""Folders of `{split}_ids.txt` and `{split}_caps.txt`, as VSE∞, LAPS and our own dataset folders have them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from aoq.pipeline.data.files import read_lines
from aoq.pipeline.prepare.sources.layout import Columns, read_rows
from aoq.pipeline.prepare.sources.listing import Listing
from aoq.pipeline.reading import read_json

MAPPING = "id_mapping.json"


def has_id_files(source: Path) -> bool:
    return bool(_splits(source))


def _splits(folder: Path) -> list[str]:
    found = (path.name.removesuffix("_ids.txt") for path in sorted(folder.glob("?*_ids.txt")))
    return [split for split in found if (folder / f"{split}_caps.txt").is_file()]


def list_id_files(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List equally many captions for every id, in order, or an id per caption; `id_mapping.json` maps ids to files."""
    mapping = read_json(source / MAPPING, dict[str, str]) if (source / MAPPING).is_file() else None
    parts = []
    for split in _splits(source):
        path = source / f"{split}_ids.txt"
        ids, captions = read_lines(path), read_lines(source / f"{split}_caps.txt")
        times, rest = divmod(len(captions), len(ids))
        if rest or not times:
            raise ValueError(
                f"{path}: {len(ids)} ids for {len(captions)} captions; give each as many, or an id a caption."
            )
        names = ids if mapping is None else [_mapped(path, mapping, name) for name in ids]
        repeated = [name for name in names for _ in range(times)]
        parts.append(pa.table({"image": repeated, "caption": captions, "split": [split] * len(captions)}))
    root = images or next((source / name for name in ("images", "thumbs") if (source / name).is_dir()), source)
    return read_rows("a folder of ids and captions", pa.concat_tables(parts), Columns(), root.absolute())


def _mapped(path: Path, mapping: dict[str, str], name: str) -> str:
    if name not in mapping:
        raise ValueError(f"{path}: {MAPPING} does not have id {name!r}; add it.")
    return mapping[name]
