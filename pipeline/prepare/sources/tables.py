"""Tables of images and captions: CSV and variants, JSON lines, Parquet; a folder with a table of its images, or of
Parquet files as the Hugging Face hub names them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from aoq.pipeline.columns import parse_json_lines
from aoq.pipeline.prepare.sources.layout import IMAGES, SPLIT, Columns, read_rows, split_of_file
from aoq.pipeline.prepare.sources.listing import Listing, ParquetImages
from aoq.pipeline.reading import reading

SEPARATORS = ",\t|;"
SUFFIXES = {".csv": "CSV", ".tsv": "TSV", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".parquet": "Parquet"}
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "captions.csv", "captions.tsv")


def find_table(source: Path) -> Path | None:
    """Find the table that a source is, or that a folder of images has."""
    if source.is_dir():
        return next((source / name for name in METADATA if (source / name).is_file()), None)
    return source if source.suffix.lower() in SUFFIXES else None


def list_table(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List the images that a table names, below the folder `images`, or that it holds."""
    path = find_table(source)
    assert path is not None  # the source was recognised by it
    suffix = path.suffix.lower()
    kind, root = f"a {SUFFIXES[suffix]} table", images or path.parent
    if suffix == ".parquet":
        return _list_parquet(kind, [path], columns, root)
    with reading(path, kind):
        rows = _read_csv(path) if suffix in (".csv", ".tsv") else parse_json_lines(path)
    with naming(path):
        return read_rows(kind, rows, columns, root.absolute())


def find_parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))


def list_parquet_folder(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List files as the hub names them: `train-00000-of-00002.parquet`."""
    paths = find_parquet_files(source)
    splits = [name for name in map(split_of_file, paths) if name is not None]
    are_named = len(splits) == len(paths) and len(set(splits)) > 1
    return _list_parquet("a folder of Parquet files", paths, columns, images or source, splits if are_named else None)


def _list_parquet(
    kind: str, paths: list[Path], columns: Columns, root: Path, splits: Sequence[str] | None = None
) -> Listing:
    """List Parquet files of one schema; images in them stay there. `splits` are used if the files name none."""
    parts = []
    for number, path in enumerate(paths):
        with reading(path, "a Parquet table"):
            schema = pq.read_schema(path)
            held = [field.name for field in schema if _holds_images(field.type)]
            names = [name for name in schema.names if name not in held]
            part = pq.ParquetFile(path, page_checksum_verification=True).read(names)
        if splits is not None and SPLIT not in schema.names:
            part = part.append_column(SPLIT, pa.array([splits[number]] * len(part), pa.string()))
        parts.append(part)
    rows = pa.concat_tables(parts, promote_options="default")
    named = columns.image or next((name for name in IMAGES if name in held), None)
    is_held = named is not None and named in held
    with naming(paths[0]):
        images = ParquetImages([str(path) for path in paths], str(named)) if is_held else root.absolute()
        return read_rows(kind, rows, columns, images)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before errors about columns."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return "bytes" in [kind.field(i).name for i in range(kind.num_fields)]
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _read_csv(path: Path) -> pa.Table:
    """Read all columns as texts: an id 007 is not 7."""
    with path.open("rb") as file:
        header = file.readline(1 << 20).decode("utf-8-sig")
    separator = max(SEPARATORS, key=header.count)
    parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with csv.open_csv(path, parse_options=parse) as opened:
        names = opened.schema.names
    convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return csv.read_csv(path, parse_options=parse, convert_options=convert)
