"""`aoq export` and `aoq import-table`: negative tables in other programs' formats, and lists that these mined."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from aoq.pipeline.cli.options import COUNT, PATH, image_ids, normalise, pairing_options, with_default
from aoq.pipeline.cli.output import echo
from aoq.pipeline.cli.vectors import open_sides, pair_in_order, read_pairs
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.data.folder import open_split, split_fingerprint
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.search.vector_files import Given

SCORES = {"exact": "exact scores", "source": "the source's scores", "none": "no scores"}


@click.command()
@click.argument("table", type=PATH)
@click.argument("output", type=PATH)
@click.option("--format", "name", required=True, metavar="FORMAT", help="One of the formats above.")
@click.option("--direction", type=click.Choice(["i2t", "t2i"]), help="Anchors are images (i2t) or captions (t2i).")
@click.option("--num-negatives", type=COUNT, help="At most this many of each list; default: all.")
@click.option("--scores", is_flag=True, help="With scores, where the format has a place for them.")
@click.option("--data", type=PATH, help="The dataset folder that has the captions and image ids.")
@with_default("--split", default="train", help="Which of its splits.")
@click.option("--captions", type=PATH, help="A text file, one caption a line.")
@image_ids
@click.option("--image-root", type=PATH, help="The pictures; an image's file is its id. DATA/thumbs has small ones.")
@click.option("--pack", is_flag=True, help="Put the pictures into the export, not their paths.")
@click.option("--image-texts", type=PATH, help="A text file, one line in the place of each image.")
@click.option("--vectors", nargs=2, metavar="IMAGES CAPTIONS", help="What the table was mined from.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; leave out what it flags.")
def export(
    table: Path,
    output: Path,
    name: str,
    direction: Direction | None,
    num_negatives: int | None,
    scores: bool,
    data: Path | None,
    split: str,
    captions: Path | None,
    image_ids: Path | None,
    image_root: Path | None,
    pack: bool,
    image_texts: Path | None,
    vectors: tuple[str, str] | None,
    view: Path | None,
) -> None:
    """Write a table in another trainer's format.

    The negative table in the folder TABLE is written to the new folder OUTPUT, with a README.md that loads it, as:

    \b
    triplet, n-tuple,         Parquet for sentence-transformers, with the columns
    labeled-pair,               of its mine_hard_negatives; pictures by path
    labeled-list
    ids                       the same in ids, with tables of images and captions,
                                for its util.resolve_ids
    tevatron, colpali, nemo   Tevatron 2, colpali-engine, NeMo Automodel: ids and a
                                corpus; queries of the latter two are captions
    ms-swift, vlm2vec         a line or row a pair; pictures by path
    negclip                   NegCLIP's TSV, of both directions
    pylate, flagembedding     texts alone
    trec                      runs of both directions, with scores
    aoq                       the 2020 code's lists of both directions

    A caption goes by its text, an image as a picture: what `aoq prepare` read for DATA (if packed, with --pack), or
    the file below --image-root that its id names, with an ending or without. Texts may stand in for images
    (--image-texts). An id in their place is refused. Captions and ids come from a dataset folder (--data), or from text
    files (--captions, --image-ids).

    An anchor with fewer negatives than --num-negatives is left out where all rows must be of one length. Of an anchor's
    positives the table keeps the lowest score only; where there are several, scores of positives (--scores; pylate)
    need --vectors.
    """
    from aoq.pipeline.produce.photographs import photograph_files
    from aoq.pipeline.tables.exchange.export import Said, export_table
    from aoq.pipeline.tables.exchange.formats import find_format
    from aoq.pipeline.tables.files import read_manifest
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.writing import made_whole

    form = find_format(name)
    if form.directions != "one" and direction is not None:
        raise click.UsageError(f"{name} has both directions; leave out --direction")
    if form.directions == "one" and direction is None:
        raise click.UsageError("say whose lists: --direction i2t (of images) or t2i (of captions)")
    if scores and form.scores in ("never", "of negatives"):
        raise click.UsageError(f"{name} has no place for positives' scores; leave out --scores")
    if vectors and not (scores or form.scores == "always"):
        raise click.UsageError("--vectors give the positives' scores; ask for them with --scores")
    if data is not None and (captions or image_ids):
        raise click.UsageError("--data has captions and image ids; leave out --captions and --image-ids")
    manifest = read_manifest(table)
    texts, ids, stand_ins = (None if file is None else read_lines(file) for file in (captions, image_ids, image_texts))
    pictures: Path | Sequence[str] | None = image_root
    if data is not None:
        opened = open_split(data, split)
        texts, ids = opened.captions, opened.ids
    with made_whole(output) as made:
        if data is not None and image_root is None and image_texts is None and form.images in ("path", "lookup"):
            unpacked = made.parent / "pictures" if pack else None
            pictures = photograph_files(data, split, opened.image_count, unpacked)
        teacher = manifest.get("teacher")
        normalised = isinstance(teacher, dict) and bool(teacher.get("normalised"))
        written = export_table(
            table,
            made,
            name,
            said=Said(texts, ids, pictures, stand_ins, pack),
            direction=direction,
            num_negatives=num_negatives,
            scores=scores,
            vectors=open_sides(*vectors, made.parent, normalise=normalised) if vectors else None,
            view=read_view(view, manifest) if view else None,
        )
    for one, about in written.items():
        lacking = "without a positive or with too few negatives"
        left_out = f"; {about.anchors_left_out} anchors are left out, {lacking}" if about.anchors_left_out else ""
        echo(f"{one}: {about.rows} rows{left_out}")


@click.command("import-table")
@click.argument("source", type=PATH)
@click.argument("output", type=PATH)
@pairing_options
@click.option("--data", type=PATH, help="The dataset folder that says who belongs to whom.")
@with_default("--split", default="train", help="Which of its splits.")
@image_ids
@click.option("--vectors", nargs=2, metavar="IMAGES CAPTIONS", help="To score every pair exactly, as `aoq mine` does.")
@normalise
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
    """Make a table of another program's lists.

    The lists become a negative table, the folder OUTPUT. SOURCE is the file of the images' lists: i2t_NAME.npy of AOQ's
    official code, or a TREC run with a name that begins with i2t. The captions' lists lie beside it, with t2i in place
    of i2t. In runs a caption goes by its row number, and so does an image unless --image-ids or --data gives the ids.

    Own positives are taken out. With --vectors scores are exact and the order is ours; without them, scores are those
    of the run, and lists of the official code have none.
    """
    if sum((pairs is not None, per_image is not None, unpaired, data is not None)) != 1:
        raise click.UsageError("say who belongs to whom: --pairs FILE, --per-image K, --data FOLDER or --unpaired")
    if normalise and not vectors:
        raise click.UsageError("--normalise is about --vectors; give them, or leave it out")
    from aoq.pipeline.tables.exchange.incoming import find_files, import_lists, open_foreign_lists
    from aoq.pipeline.tables.writing import made_whole

    files = find_files(source)
    image_of = None if pairs is None else read_pairs(pairs)
    ids = None
    if data is not None:
        opened = open_split(data, split)
        ids, image_of = opened.ids, opened.image_of
    if image_ids is not None:
        ids = read_lines(image_ids)
    captions = len(ids) * per_image if ids and per_image else None
    # Whose lists these are: all that is known is what they look like.
    teacher: dict[str, Any] = {"lists_sha256": {direction: file_sha256(path) for direction, path in files.items()}}
    if vectors:
        hashes = [Given.of(given).sha256 for given in vectors]
        teacher |= {"vectors_sha256": dict(zip(("images", "captions"), hashes, strict=True)), "normalised": normalise}
    with made_whole(output) as made:
        raw = open_foreign_lists(files, ids, captions if image_of is None else len(image_of), made.parent)
        if image_of is None:
            image_of = pair_in_order(len(raw["i2t"].ids), len(raw["t2i"].ids), per_image)
        dataset = sha256(image_of.tobytes()).hexdigest() if data is None else split_fingerprint(data, split)
        manifest = import_lists(
            raw,
            image_of,
            open_sides(*vectors, made.parent, normalise=normalise) if vectors else None,
            provenance={"dataset": dataset, "teacher": teacher, "tool": "aoq", "tool_version": version("aoq")},
            output=made,
        )
    for direction, found in manifest["directions"].items():
        own, empty = found["own_positives_left_out"], found["anchors_without_negatives"]
        said = f"{found['anchors']} lists of {found['h']}, {SCORES[found['scores']]}"
        left_out = f"; {own} own positives are left out" if own else ""
        without = f"; {empty} anchors have no negative" if empty else ""
        echo(f"{direction}: {said}{left_out}{without}")
