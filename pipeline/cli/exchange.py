"""`aoq export`, `import-table` and `publish`: tables in the formats of other programs, and lists from them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
from jaxtyping import Integer

from aoq.pipeline.cli.options import PATH, POSITIVE
from aoq.pipeline.cli.output import counted, echo, echo_next
from aoq.pipeline.cli.table_options import NamedTable, RowFiles, row_options, takes_tables
from aoq.pipeline.cli.vector_options import normalise, pair_in_order, pairing_options, require_true_pairs
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.folder import open_split, split_fingerprint
from aoq.pipeline.files import file_sha256
from aoq.pipeline.tables.files import read_manifest, table_directions
from aoq.pipeline.tables.pairs import TWO_SIDES, Known, read_pair_file, read_text_lines
from aoq.pipeline.tables.writing import made_whole, write_ids
from aoq.pipeline.vector_files import VectorFile
from aoq.pipeline.vectors import open_sides

SCORES_ARE = {"exact": "exact scores", "source": "the source's scores", "none": "no scores"}


@click.command("export")
@click.option("--format", "name", required=True, metavar="FORMAT", help="One of the formats above.")
@click.option("--direction", type=click.Choice(["i2t", "t2i"]), help="Anchors are images (i2t) or captions (t2i).")
@click.option(
    "--num-negatives",
    type=POSITIVE,
    help="Maximum negatives per list; default: all, or 5 with a view if every row needs the same number.",
)
@click.option("--scores", is_flag=True, help="Write scores, if the format has a place for them.")
@row_options("data", "split", "texts", "image_ids", "caption_ids", "image_root", older_texts=("--captions",))
@click.option("--caption-root", type=PATH, help="The folder of the captions' pictures, if both sides are images.")
@click.option("--pack", is_flag=True, help="Export the pictures themselves instead of their paths.")
@click.option("--image-texts", type=PATH, help="A text file with one line per image, to export instead of pictures.")
@click.option("--vectors", nargs=2, metavar="IMAGES CAPTIONS", help="The vectors that the table was mined from.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; leave out what it flags.")
@takes_tables("table")
@click.argument("output", type=PATH)
def export_command(
    table: NamedTable,
    output: Path,
    caption_root: Path | None,
    pack: bool,
    image_texts: Path | None,
    vectors: tuple[str, str] | None,
    view: Path | None,
    **options: Any,
) -> None:
    """Write a table for another trainer.

    Write TABLE to the new folder OUTPUT, with a README.md that says how to load it, in one of these formats:

    \b
    triplet, n-tuple,  Parquet for sentence-transformers,
    labeled-pair,        columns of its mine_hard_negatives;
    labeled-list         pictures by path
    ids                the same in ids, with tables of both
                         sides, for its util.resolve_ids
    tevatron,          Tevatron 2, colpali-engine, NeMo
    colpali, nemo        Automodel: ids and a corpus; queries
                         of the latter two are captions
    ms-swift, vlm2vec  a row per pair; pictures by path
    negclip            NegCLIP's TSV, both directions
    pylate,            texts only
    flagembedding
    trec               runs, both directions, with scores
    aoq                the 2020 code's lists, both directions

    Captions are written as texts, images as pictures: those that `aoq prepare` read for --data (if they were packed,
    give --pack), or the files below --image-root whose names are the images' ids, with or without an extension.
    Captions and ids come from the experiment, from a dataset folder (--data), or from text files. --image-ids,
    --image-texts or --image-root name the rows of one set.

    In formats with rows of one length, anchors with fewer negatives than --num-negatives are left out. A table keeps
    only the lowest score of an anchor's positives, so the scores of several (--scores; pylate) need --vectors.
    """
    from aoq.pipeline.tables.exchange.export import Content, export_table
    from aoq.pipeline.tables.exchange.formats import find_format

    name, manifest = options["name"], read_manifest(table.folder)
    form, is_one_set = find_format(name), len(table_directions(manifest)) == 1
    if form.directions != "one" and options["direction"] is not None:
        raise click.UsageError(f"{name} has both directions; leave out --direction")
    if form.directions == "one" and options["direction"] is None and not is_one_set:
        raise click.UsageError("choose --direction i2t (lists of images) or t2i (lists of captions)")
    if options["scores"] and form.scores in ("never", "of negatives"):
        raise click.UsageError(f"{name} cannot hold scores of positives; leave out --scores")
    if vectors and not (options["scores"] or form.scores == "always"):
        raise click.UsageError("--vectors give the positives' scores; ask for them with --scores")
    table.files.require_either(**{"caption-root": caption_root})
    if table.files.data is not None and is_one_set:
        instead = "give --image-texts, --image-ids or --image-root instead"
        raise click.UsageError(f"--data has images and captions, but the table has one set; {instead}")
    captions, image_ids, caption_ids = table.names
    texts = None if image_texts is None else read_text_lines(image_texts)
    pictures: Any = table.files.image_root
    teacher = manifest.get("teacher")
    divided = (teacher.get("normalised") if isinstance(teacher, dict) else None) or False
    with made_whole(output) as folder, show_progress("exporting") as report:
        if pictures is None and texts is None and form.images in ("path", "lookup"):
            pictures = table.photographs(folder.parent / "pictures" if pack else None)
        written = export_table(
            table.folder,
            folder,
            images=Content(image_ids, texts, pictures),
            captions=Content(caption_ids, captions, caption_root),
            packed=pack,
            vectors=open_sides(*vectors, folder.parent, normalise=divided) if vectors else None,
            view=table.read_view(view),
            progress=lambda done, total, part: report(done, total, f"anchors, {part}"),
            **options,
        )
    for part, (rows, left_out) in written.items():
        reason = "without a positive or with too few negatives (lower --num-negatives to keep more)"
        rest = f"; left out: {counted(left_out, 'anchor')} {reason}" if left_out else ""
        echo(f"{part}: {counted(rows, 'row')}{rest}")
    echo(f"{output}: {output / 'README.md'} has the lines that load it")


@click.command("import-table")
@click.argument("source", type=PATH)
@click.argument("output", type=PATH)
@pairing_options
@row_options("data", "split", "image_ids", "caption_ids")
@click.option("--vectors", nargs=2, metavar="IMAGES CAPTIONS", help="Vectors to score every pair exactly.")
@normalise
def import_table_command(
    source: Path, output: Path, files: RowFiles, vectors: tuple[str, str] | None, normalise: bool, **pairing: Any
) -> None:
    """Make a table from others' lists.

    SOURCE is the file of the images' lists: i2t_NAME.npy of AOQ's official code, or a TREC run whose name begins with
    i2t. The captions' lists lie beside it, with t2i instead of i2t. Runs and --pairs name rows by number, or by the ids
    in --image-ids (or --data) and --caption-ids; the two options also keep ids beside the lists.

    Each anchor's own positives are removed. With --vectors, scores are exact and sort the lists. Without, scores are
    those of the run, and lists of the official code have none.
    """
    from aoq.pipeline.tables.exchange.bare_lists import find_list_files, import_lists, open_lists_alone

    require_true_pairs(pairing, **{"--data FOLDER": files.data})
    if normalise and not vectors:
        raise click.UsageError("--normalise needs --vectors; give them, or leave it out")
    lists, per_image = find_list_files(source), pairing["per_image"]
    split = None if files.data is None else open_split(files.data, files.split)
    _, image_ids, caption_ids = files.read(split)
    ids_by_noun = {"image": image_ids, "caption": caption_ids}
    images, captions = (Known(noun, None if ids is None else len(ids), ids) for noun, ids in ids_by_noun.items())
    pairs: Integer[np.ndarray, "*shape"] | None = None if split is None else split.image_of
    if pairing["pairs"] is not None:
        pairs = read_pair_file(pairing["pairs"], images, captions, pairing["min_grade"])
    if captions.count is None:
        count = len(pairs) if pairs is not None and pairs.ndim == 1 else (images.count or 0) * (per_image or 0)
        captions = replace(captions, count=count or None)
    # Only the teacher's lists are known.
    teacher: dict[str, Any] = {"lists_sha256": {direction: file_sha256(path) for direction, path in lists.items()}}
    if vectors:
        hashes = (VectorFile.of(file).sha256 for file in vectors)
        teacher |= {"vectors_sha256": dict(zip(TWO_SIDES, hashes, strict=True)), "normalised": normalise}
    dataset = {} if files.data is None else {"dataset": split_fingerprint(files.data, files.split)}
    with made_whole(output) as folder:
        raw = open_lists_alone(lists, images, captions)
        if pairs is None:
            pairs = pair_in_order(len(raw["i2t"][1]), len(raw["t2i"][1]), per_image)
        opened = open_sides(*vectors, folder.parent, normalise=normalise) if vectors else None
        if opened and not normalise and any(abs(np.linalg.norm(one[0]) - 1) > 1e-3 for one in opened.values()):
            echo("the vectors' norms are not 1, and scores are dot products; --normalise makes them cosines", err=True)
        provenance = {**dataset, "teacher": teacher, "tool": "aoq", "tool_version": version("aoq")}
        manifest = import_lists(raw, pairs, opened, provenance=provenance, output=folder)
        ids = {"images": image_ids if files.image_ids else None, "captions": caption_ids}
        write_ids(folder, {side: own for side, own in ids.items() if own is not None})
    for direction, about in manifest["directions"].items():
        line = f"{direction}: {about['anchors']} lists of {about['h']}, {SCORES_ARE[about['scores']]}"
        if own := about["own_positives_left_out"]:
            line += f"; left out: {counted(own, 'own positive')}"
        if empty := about["anchors_without_negatives"]:
            line += f"; without a negative: {counted(empty, 'anchor')}"
        echo(line)
    echo_next(shlex.join(["aoq", "inspect", str(output), "--image", "0"]))


@click.command("publish")
@click.option("--view", type=PATH, help="A view made by `aoq screen`, published with the table.")
@row_options("data", "split", "image_ids", "caption_ids")
@click.option("--license", "licence", help="License for the data card, as the hub names it: cc-by-4.0, mit, …")
@takes_tables("table")
@click.argument("output", type=PATH)
def publish_command(table: NamedTable, output: Path, view: Path | None, licence: str | None) -> None:
    """Write a table with a data card.

    Audit TABLE and write it to the new folder OUTPUT, with flags (--view), ids and a README.md for the Hugging Face
    hub, without pictures and texts. OUTPUT is a table that all commands take.

    \b
    hf upload YOU/NAME OUTPUT --repo-type dataset
    """
    from aoq.pipeline.tables.exchange.export import publish_table

    table.files.require_either()
    _, image_ids, caption_ids = table.names
    ids = {side: own for side, own in (("images", image_ids), ("captions", caption_ids)) if own is not None}
    with made_whole(output) as folder:
        written = publish_table(table.folder, folder, view=view, ids=ids, licence=licence)
    echo(f"{output}: {', '.join(written)}")
    echo_next(f"hf upload YOU/NAME {shlex.quote(str(output))} --repo-type dataset")
