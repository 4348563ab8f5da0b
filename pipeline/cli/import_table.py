"""`aoq import-table`: lists that another program mined, as a table."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aoq.pipeline.cli.mining_options import pairing_options, read_pairing, read_pairs
from aoq.pipeline.cli.vectors import open_sides

if TYPE_CHECKING:
    from aoq.pipeline.data.folder import Split

SCORES = {"exact": "exact scores", "source": "the source's scores", "none": "no scores"}


@click.command("import-table")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@pairing_options
@click.option("--data", type=click.Path(path_type=Path), help="The dataset folder that says who belongs to whom.")
@click.option("--split", default="train", show_default=True, help="Which of its splits.")
@click.option("--image-ids", type=click.Path(path_type=Path), help="A text file, one id a line; default: row numbers.")
@click.option("--vectors", nargs=2, metavar="IMAGES CAPTIONS", help="To score every pair exactly, as `aoq mine` does.")
@click.option("--normalise", is_flag=True, help="Divide every vector by its norm first.")
def import_table(
    source: Path,
    output: Path,
    pairs: Path | None,
    per_image: int | None,
    unpaired: bool,
    data: Path | None,
    split: str,
    image_ids: Path | None,
    vectors: tuple[str, str] | None,
    normalise: bool,
) -> None:
    """Make a negative table, the folder OUTPUT, of lists that another program mined.

    SOURCE is the file of the images' lists: i2t_NAME.npy of AOQ's official code, or a TREC run with a name that begins
    with i2t. The captions' lists lie beside it, with t2i in place of i2t. In runs a caption goes by its row number, and
    so does an image unless --image-ids or --data gives the ids.

    Own positives are taken out. With --vectors scores are exact and the order is ours; without them, scores are those
    of the run, and lists of the official code have none.
    """
    if sum((pairs is not None, per_image is not None, unpaired, data is not None)) != 1:
        raise click.UsageError("say who belongs to whom: --pairs FILE, --per-image K, --data FOLDER or --unpaired")
    if normalise and not vectors:
        raise click.UsageError("--normalise is about --vectors; give them, or leave it out")
    from aoq.pipeline.data.files import read_lines
    from aoq.pipeline.data.folder import open_split, split_fingerprint
    from aoq.pipeline.tables.exchange.incoming import find_files, import_lists, open_foreign_lists
    from aoq.pipeline.tables.writing import made_whole

    files = find_files(source)
    opened = open_split(data, split) if data is not None else None
    ids = None if opened is None else opened.ids
    if image_ids is not None:
        ids = read_lines(image_ids)
    with made_whole(output) as made:
        raw = open_foreign_lists(files, ids, _captions(opened, pairs, per_image, ids), made.parent)
        sizes = len(raw["i2t"].ids), len(raw["t2i"].ids)
        image_of = opened.image_of if opened is not None else read_pairing(*sizes, pairs, per_image)
        about = {"teacher": _teacher(files, vectors, normalise), "tool": "aoq", "tool_version": version("aoq")}
        dataset = sha256(image_of.tobytes()).hexdigest() if data is None else split_fingerprint(data, split)
        manifest = import_lists(
            raw,
            image_of,
            open_sides(*vectors, made.parent, normalise=normalise) if vectors else None,
            provenance={"dataset": dataset, **about},
            output=made,
        )
    for direction, found in manifest["directions"].items():
        own, empty = found["own_positives_left_out"], found["anchors_without_negatives"]
        left_out = f"; {own} own positives are left out" if own else ""
        without = f"; {empty} anchors have no negative" if empty else ""
        click.echo(
            f"{direction}: {found['anchors']} lists of {found['h']}, {SCORES[found['scores']]}{left_out}{without}"
        )


def _captions(opened: Split | None, pairs: Path | None, per_image: int | None, ids: list[str] | None) -> int | None:
    """How many there are, as far as what was given says it."""
    if opened is not None:
        return opened.caption_count
    if pairs is not None:
        return len(read_pairs(pairs))
    return len(ids) * per_image if ids and per_image else None


def _teacher(files: dict[Any, Path], vectors: tuple[str, str] | None, normalise: bool) -> dict[str, Any]:
    """Whose lists these are: all that is known is what they look like."""
    from aoq.pipeline.artifact import file_sha256
    from aoq.pipeline.search.vectors import vectors_file

    lists = {direction: file_sha256(path) for direction, path in files.items()}
    if not vectors:
        return {"lists_sha256": lists}
    hashes = {side: file_sha256(vectors_file(one)) for side, one in zip(("images", "captions"), vectors, strict=True)}
    return {"lists_sha256": lists, "vectors_sha256": hashes, "normalised": normalise}
