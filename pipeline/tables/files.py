"""The files of a negative table, as docs/formats/table.md describes them, read and checked against their hashes.

"Images" and "captions" stand for any two sides. In a table of one set, whose rows are searched among themselves,
similarities and pairs are symmetric, so both directions have the same lists, and `i2t.parquet` holds them once. Queries
that are also documents, but are searched in one direction only, are a second side all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
from typing_extensions import Required, TypedDict

from aoq.pipeline.columns import Parquet, open_parquet, read_parquet
from aoq.pipeline.files import canonical_json, write_atomically
from aoq.pipeline.reading import read_json, reading
from aoq.pipeline.search.lists import NegativeLists, from_arrow
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.pairs import SIDES, TWO_SIDES, Pairs, pairs_sha256, require_one_each, rows_by_id

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
POSITIVES = "positives.parquet"
CERTIFICATES = pa.schema({"anchor_id": pa.int32(), "last_score": pa.float32(), "bound": pa.float32()})
PAIRS = pa.schema({"caption_id": pa.int32(), "image_id": pa.int32()})
LISTS = pa.schema(
    {
        "anchor_id": pa.int32(),
        "negative_ids": pa.list_(pa.int32()),
        "scores": pa.list_(pa.float32()),
        "positive_score": pa.float32(),
        "sources": pa.list_(pa.uint8()),
    }
)
MINE_AGAIN = "delete the artefact and mine again"


class ContentHash:
    """SHA-256 of the SHA-256s of ids, scores, positive scores (and sources), little-endian, for any layout."""

    def __init__(self) -> None:
        self._columns: list[Any] = []

    def add(self, lists: NegativeLists) -> None:
        columns = [lists.negative_ids, lists.scores, lists.positive_score]
        columns += [] if lists.sources is None else [lists.sources]
        self._columns = self._columns or [sha256() for _ in columns]
        for column, values in zip(self._columns, columns, strict=True):
            column.update(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())

    def hexdigest(self) -> str:
        return sha256(b"".join(column.digest() for column in self._columns)).hexdigest()


def content_sha256(lists: NegativeLists) -> str:
    content, is_real = ContentHash(), (lists.negative_ids >= 0) & ~np.isnan(lists.scores)
    content.add(replace(lists, scores=np.where(is_real, lists.scores, np.float32(np.nan))))
    return content.hexdigest()


def read_lists(folder: Path, direction: Direction, manifest: Mapping[str, Any]) -> NegativeLists:
    """Read one direction; refuse lists that do not match the manifest's hash."""
    (lists,) = read_chunks(folder, direction, manifest)
    return lists


def read_chunks(
    folder: Path, direction: Direction, manifest: Mapping[str, Any], rows: int | None = None
) -> Iterator[NegativeLists]:
    """Read one direction, up to `rows` lists at a time; refuse them at the end if they do not match their hash."""
    path, content, first = folder / f"{direction}.parquet", ContentHash(), 0
    candidates = count_rows(folder, manifest)[SIDES[direction][1]]
    with open_lists(path) as file:
        for block in [file.read()] if rows is None else file.batches(rows):
            require_numbers(path, block, first)
            lists = from_arrow(block)
            ids = lists.negative_ids
            if ids.min(initial=-1) < -1 or ids.max(initial=-1) >= candidates:
                raise ValueError(f"{path} lists ids that are not among the {candidates} candidates; {MINE_AGAIN}.")
            content.add(lists)
            yield lists
            first += len(block)
    _require_hash(path, "lists", content.hexdigest(), search_facts(manifest, direction).get("sha256"))


def _require_hash(path: Path, what: str, sha256: str, stated: str | None) -> None:
    """Refuse content that does not match the manifest's hash; older tables have none."""
    if stated not in (None, sha256):
        manifest = path.with_name(MANIFEST)
        raise ValueError(f"{path} holds {what} that do not match their sha256 in {manifest}; {MINE_AGAIN}.")


def count_lists(path: Path) -> tuple[int, int]:
    """Count the lists of one direction, and the length to which each is padded."""
    with open_lists(path) as file:
        return len(file), file.file.schema_arrow.field("scores").type.list_size


def count_rows(folder: Path, manifest: Mapping[str, Any]) -> dict[str, int]:
    """Count a table's images and captions by its files; one set has as many of both."""
    counts = [count_lists(folder / f"{direction}.parquet")[0] for direction in table_directions(manifest)]
    return dict(zip(TWO_SIDES, (counts[0], counts[-1]), strict=True))


@contextmanager
def open_lists(path: Path) -> Iterator[Parquet]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; a negative table is a folder with i2t.parquet and t2i.parquet."
        )
    with open_parquet(path, LISTS, optional=["sources"], nullable=["scores"], remedy=MINE_AGAIN) as file:
        schema = file.file.schema_arrow
        lengths = {schema.field(name).type.list_size for name in ("negative_ids", "scores")}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError(f"{path} has lists of lengths {sorted(lengths)} in one row; {MINE_AGAIN}.")
        yield file


def require_numbers(path: Path, table: pa.Table, first: int = 0) -> None:
    """Refuse rows that are not anchors `first`, `first` + 1, ..."""
    if not np.array_equal(table["anchor_id"].to_numpy(), np.arange(first, first + len(table))):
        raise ValueError(f"{path}: anchor_id is not 0, 1, 2, ...; rows were lost or reordered, so mine again.")


def read_positives(folder: Path, manifest: Mapping[str, Any]) -> Pairs:
    """Read the positive pairs, rows (image, caption); refuse pairs that do not match the manifest's hash."""
    path = folder / POSITIVES
    rows = read_parquet(path, PAIRS, remedy=MINE_AGAIN)
    pairs = np.stack([rows["image_id"].to_numpy(), rows["caption_id"].to_numpy()], axis=1)
    if ((pairs < 0) | (pairs >= [*count_rows(folder, manifest).values()])).any():
        raise ValueError(f"{path} has pairs with rows that the table does not have; {MINE_AGAIN}.")
    _require_hash(path, "pairs", pairs_sha256(pairs), manifest.get("positives_sha256"))
    return pairs


class About(TypedDict, total=False):
    """The manifest's fields of one direction that programs read."""

    h: int
    anchors: int
    sha256: str
    search: str
    guarantee: str
    scores: Literal["exact", "source", "none"]
    sources: list[str]


class TableManifest(TypedDict, total=False):
    """The manifest's fields that programs read."""

    format_version: Required[int]
    dataset: str
    sides: list[str]
    positives_sha256: str
    ids: dict[Literal["images", "captions"], str]
    directions: dict[Direction, About]


def read_manifest(folder: Path, *, dataset: str | None = None) -> dict[str, Any]:
    """Read a table's manifest; refuse another version, and data other than `dataset`."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {MANIFEST}, so it is not a negative table.")
    if "table_sha256" in read_json(path, dict[str, Any], remedy=MINE_AGAIN):
        raise ValueError(f"{folder} is a view made by `aoq screen`; name the table, and this folder as --view.")
    manifest = cast(dict[str, Any], read_json(path, TableManifest, remedy=MINE_AGAIN))
    version = manifest["format_version"]
    if version != FORMAT_VERSION:
        raise ValueError(f"{folder} has format version {version}, but this aoq reads {FORMAT_VERSION}; mine again.")
    if len(table_sides(manifest)) not in (1, 2):
        raise ValueError(f"{path} names the sides {manifest['sides']}, but a table has two or one set; {MINE_AGAIN}.")
    if dataset is not None and (mined := manifest.get("dataset", "")) != dataset:
        raise ValueError(
            f"{folder} was mined on other training data (fingerprint {mined[:12]}, this experiment's is "
            f"{dataset[:12]}): its rows are different images. Choose a teacher with the same [dataset], or mine again."
        )
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_atomically(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def table_sides(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the two sides' rows; a single name means one set."""
    return tuple(manifest.get("sides", TWO_SIDES))


def table_directions(manifest: Mapping[str, Any]) -> tuple[Direction, ...]:
    """Return the directions whose lists a table stores: only the first for one set, as both are the same."""
    return DIRECTIONS[: len(table_sides(manifest))]


def search_facts(manifest: Mapping[str, Any], direction: Direction) -> dict[str, Any]:
    """Return the manifest's fields of one direction, if any: its search, its guarantee and its figures."""
    return manifest.get("directions", {}).get(direction, {})


def table_hashes(manifest: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {direction: about["sha256"] for direction, about in manifest["directions"].items()}
    except KeyError:
        raise ValueError(
            "the table was written by an older version, without the sha256 of its lists; mine it again."
        ) from None


def row_nouns(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Name a row of each side, or of the one set."""
    return {"images": "image", "captions": "caption"} if len(table_sides(manifest)) > 1 else {"images": "item"}


def id_columns(manifest: Mapping[str, Any]) -> dict[str, tuple[str, pa.Schema]]:
    nouns = row_nouns(manifest)
    return {side: (f"{noun}s.parquet", pa.schema({f"{noun}_id": pa.string()})) for side, noun in nouns.items()}


def corrects_hubs(manifest: Mapping[str, Any]) -> bool:
    """Return whether a table's scores are corrected for hubs, and so compare with no plain similarity."""
    return "hubness" in manifest.get("teacher", {})


def read_ids(table: Path, manifest: Mapping[str, Any]) -> dict[str, list[str]]:
    """Read the ids of the sides that have them; refuse ids that do not match the manifest's hashes."""
    columns, hashes = id_columns(manifest), manifest.get("ids", {})
    if unknown := hashes.keys() - columns.keys():
        raise ValueError(
            f"{table / MANIFEST} has ids of {sorted(unknown)}, but the table's sides are {[*columns]}; {MINE_AGAIN}."
        )
    ids, counts = {}, count_rows(table, manifest)
    for side, stated in hashes.items():
        file, schema = columns[side]
        names = cast(list[str], read_parquet(table / file, schema, remedy=MINE_AGAIN)[schema.names[0]].to_pylist())
        _require_hash(table / file, "ids", ids_sha256(names), stated)
        with reading(table / file, "the ids of a table", MINE_AGAIN):
            require_one_each(names, "ids", counts[side])
            rows_by_id(names, "row")
        ids[side] = names
    return ids


def ids_sha256(names: Sequence[str]) -> str:
    return sha256(canonical_json(list(names)).encode()).hexdigest()
