"""The files of a negative table.

Two Parquet files, `i2t.parquet` (anchors are images) and `t2i.parquet` (anchors are captions), and `manifest.json`:

    anchor_id       int32                     row n is anchor n
    negative_ids    fixed_size_list<int32>[h]    score falling, then id rising; padding -1
    scores          fixed_size_list<float32>[h]  padding null; all null in a table imported without scores
    positive_score  float32                   of the lowest-scoring positive; NaN where there is none
    sources         fixed_size_list<uint8>[h]    of fused tables only: bit m is set where member m lists the pair

Own positives never appear; `positives.parquet` (caption_id, image_id) says who they are. The footer's key `aoq` and the
manifest say whose scores they are, on which data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.search.lists import NegativeLists, from_arrow, to_arrow
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.pairs import Pairs

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
POSITIVES = "positives.parquet"
CERTIFICATES = pa.schema({"anchor_id": pa.int32(), "last_score": pa.float32(), "bound": pa.float32()})
PAIRS = pa.schema({"caption_id": pa.int32(), "image_id": pa.int32()})


class ContentHash:
    """SHA-256 of the SHA-256s of ids, scores, positive scores (and sources), little-endian: whatever the layout."""

    def __init__(self) -> None:
        self._columns = [sha256() for _ in range(3)]

    def add(self, lists: NegativeLists) -> None:
        columns = [lists.negative_ids, lists.scores, lists.positive_score]
        columns += [] if lists.sources is None else [lists.sources]
        self._columns += [sha256() for _ in columns[len(self._columns) :]]
        for column, values in zip(self._columns, columns, strict=True):
            column.update(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())

    def hexdigest(self) -> str:
        return sha256(b"".join(column.digest() for column in self._columns)).hexdigest()


def content_sha256(lists: NegativeLists) -> str:
    """The hash of all lists of a direction, as its file would have them."""
    content, is_real = ContentHash(), (lists.negative_ids >= 0) & ~np.isnan(lists.scores)
    content.add(replace(lists, scores=np.where(is_real, lists.scores, np.float32(np.nan))))
    return content.hexdigest()


def list_writer(path: Path | BytesIO, h: int, footer: Mapping[str, Any], sources: bool = False) -> pq.ParquetWriter:
    """Write with page checksums, as a flipped byte reads as another id, and no dictionary, as numbers hardly repeat."""
    empty = NegativeLists(
        np.empty((0, h), np.int32),
        np.empty((0, h), np.float32),
        np.empty(0, np.float32),
        np.empty((0, h), np.uint8) if sources else None,
    )
    schema = to_arrow(empty).schema.with_metadata({"aoq": json.dumps(footer, sort_keys=True)})
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=False,
        use_byte_stream_split=["scores.list.element"],
        write_page_checksum=True,
    )


def read_lists(path: Path) -> NegativeLists:
    """Read one direction, every page checked."""
    with open_lists(path) as file, readable_errors(path):
        table = file.read()
    return numbered(path, table, 0)


def read_chunks(path: Path, rows: int) -> Iterator[NegativeLists]:
    """Read one direction up to `rows` lists at a time."""
    first = 0
    with open_lists(path) as file, readable_errors(path):
        for batch in file.iter_batches(rows):
            yield numbered(path, pa.Table.from_batches([batch]), first)
            first += len(batch)


def count_lists(path: Path) -> tuple[int, int]:
    """How many lists one direction has, and how long they are at most."""
    with open_lists(path) as file:
        return file.metadata.num_rows, file.schema_arrow.field("scores").type.list_size


def group_rows(file: pq.ParquetFile) -> list[int]:
    """How many rows each row group has."""
    return [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]


@contextmanager
def readable_errors(path: Path, remedy: str = "delete the artefact and mine again") -> Iterator[None]:
    """One sentence for whatever is wrong with a file that is there."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; it belongs to every table, so {remedy}.") from None
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ValueError(f"{path} is damaged or not a Parquet file ({error}); {remedy}.") from None


def open_lists(path: Path) -> pq.ParquetFile:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; a negative table is a folder with i2t.parquet and t2i.parquet."
        )
    with readable_errors(path):
        file = pq.ParquetFile(path, page_checksum_verification=True)
    schema = file.schema_arrow
    expected = ["anchor_id", "negative_ids", "scores", "positive_score"]
    if schema.names[:4] != expected or not pa.types.is_fixed_size_list(schema.field("scores").type):
        raise ValueError(f"{path} has columns {schema.names}, a negative table has {expected}.")
    return file


def numbered(path: Path, table: pa.Table, first: int) -> NegativeLists:
    anchors = table.column("anchor_id").to_numpy()
    if not np.array_equal(anchors, np.arange(first, first + len(anchors))):
        raise ValueError(f"{path}: anchor_id is not 0, 1, 2, ...; rows were lost or reordered, so mine again.")
    return from_arrow(table)


def write_positives(folder: Path, positives: Pairs) -> None:
    """The pairs that are no negatives, by caption, then by image."""
    images, captions = positives[np.lexsort(positives.T)].T
    pairs = pa.table({"caption_id": captions, "image_id": images}, schema=PAIRS)
    pq.write_table(pairs, folder / POSITIVES, compression="zstd", write_page_checksum=True)


def read_positives(folder: Path) -> Pairs:
    """The true pairs, rows (image, caption)."""
    rows = read_beside(folder / POSITIVES, PAIRS)
    return np.stack([rows["image_id"].to_numpy(), rows["caption_id"].to_numpy()], axis=1)


def read_beside(path: Path, schema: pa.Schema) -> pa.Table:
    """A file that stands beside the lists, every page checked."""
    with readable_errors(path, "mine again"):
        return pq.read_table(path, page_checksum_verification=True).select(schema.names).cast(schema)


def read_manifest(folder: Path, *, dataset: str | None = None) -> dict[str, Any]:
    """What the table says of itself; refused as `read_table` does."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no {MANIFEST}, so it is no negative table.") from None
    except ValueError as error:
        raise ValueError(f"{folder / MANIFEST} is damaged ({error}); delete the artefact and mine again.") from None
    found = manifest.get("format_version")
    if found != FORMAT_VERSION:
        raise ValueError(f"{folder} has format version {found}, this version reads {FORMAT_VERSION}; mine again.")
    if dataset is not None and manifest["dataset"] != dataset:
        raise ValueError(
            f"{folder} was mined on other training data (fingerprint {manifest['dataset'][:12]}, this experiment's is "
            f"{dataset[:12]}): its rows are other images. Choose a teacher with the same [dataset], or mine again."
        )
    return manifest


def said_of(manifest: Mapping[str, Any], direction: Direction) -> dict[str, Any]:
    """What a manifest says of one direction, if anything."""
    return manifest.get("directions", {}).get(direction, {})


def table_hashes(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The sha256 of each direction's lists."""
    try:
        return {direction: about["sha256"] for direction, about in manifest["directions"].items()}
    except KeyError:
        raise ValueError("the table's manifest gives no sha256 of its lists, it is from before; mine again.") from None
