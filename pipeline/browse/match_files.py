"""Files of known matches with one pair more or less; everything else in them stays."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aoq.pipeline.tables.files import PAIRS

CAPTION, IMAGE = PAIRS.names


def _csv(path: Path, caption: int, image: int, is_match: bool) -> bytes:
    rows = [PAIRS.names]
    if path.exists():
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    header, *pairs = rows
    places = header.index(CAPTION), header.index(IMAGE)
    if is_match:
        row = {places[0]: str(caption), places[1]: str(image)}
        pairs.append([row.get(place, "") for place in range(len(header))])
    else:
        pairs = [row for row in pairs if tuple(int(row[place]) for place in places) != (caption, image)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *pairs])
    return text.getvalue().encode()


def _parquet(path: Path, caption: int, image: int, is_match: bool) -> bytes:
    table = pq.read_table(path) if path.exists() else PAIRS.empty_table()
    if is_match:
        schema = pa.schema([table.schema.field(name) for name in PAIRS.names])
        row = pa.table({CAPTION: [caption], IMAGE: [image]}, schema=schema)
        table = pa.concat_tables([table, row], promote_options="default")
    else:
        table = table.filter(pc.or_(pc.not_equal(table[CAPTION], caption), pc.not_equal(table[IMAGE], image)))
    file = io.BytesIO()
    pq.write_table(table, file, write_page_checksum=True)
    return file.getvalue()


def _json(path: Path, caption: int, image: int, is_match: bool) -> bytes:
    images_of = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    name = next((key for key in images_of if int(key) == caption), str(caption))
    images = [one for one in images_of.get(name, []) if int(one) != image]
    images_of[name] = [*images, image] if is_match else images
    return json.dumps({key: images for key, images in images_of.items() if images}).encode()


EDITORS: dict[str, Callable[[Path, int, int, bool], bytes]] = {".csv": _csv, ".parquet": _parquet, ".json": _json}
