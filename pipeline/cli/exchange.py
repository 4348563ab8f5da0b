"""`aoq export` and `aoq import-table`: negative tables in other programs' formats, and lists that these mined."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
from jaxtyping import Integer

from aoq.pipeline.cli.ids import read_ids
from aoq.pipeline.cli.looking import Looked, takes_tables, texts_of
from aoq.pipeline.cli.options import (
    COUNT,
    PATH,
    caption_ids,
    data,
    image_ids,
    image_root,
    normalise,
    pairing_options,
    refuse_beside_data,
    roots,
    split,
    texts_or_captions,
)
from aoq.pipeline.cli.output import counted, echo, echo_next
from aoq.pipeline.cli.vectors import open_sides, pair_in_order, require_true_pairs
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.data.folder import open_split, split_fingerprint
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.progress import show_progress
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.pair_files import Known, read_pairs
from aoq.pipeline.vector_files import Given

SCORES = {"exact": "exact scores", "source": "the source's scores", "none": "no scores"}


@click.command()
@takes_tables("table")
@click.argument("output", type=PATH)
@click.option("--format", "name", required=True, metavar="FORMAT", help="One of the formats above.")
@click.option("--direction", type=click.Choice(["i2t", "t2i"]), help="Anchors are images (i2t) or captions (t2i).")
@click.option("--num-negatives", type=COUNT, help="At most this many of each list; default: all.")
@click.option("--scores", is_flag=True, help="Write scores, if the format has a place for them.")
@data
@split
@texts_or_captions
@image_ids
@caption_ids
@image_root
@click.option("--caption-root", type=PATH, help="Pictures in the captions' place, where both sides are images.")
@click.option("--pack", is_flag=True, help="Put the pictures into the export, not their paths.")
@click.option("--image-texts", type=PATH, help="A text file with a line in place of each image.")
@click.option("--vectors", nargs=2, metavar="IMAGES CAPTIONS", help="The vectors that the table was mined from.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; leave out what it flags.")
@roots
def export(
    table: Looked,
    output: Path,
    name: str,
    direction: Direction | None,
    num_negatives: int | None,
    scores: bool,
    data: Path | None,
    split: str,
    texts: Path | None,
    image_ids: str | None,
    caption_ids: str | None,
    image_root: Path | None,
    caption_root: Path | None,
    pack: bool,
    image_texts: Path | None,
    vectors: tuple[str, str] | None,
    view: Path | None,
) -> None:
    """Write a table for another trainer.

    TABLE is an experiment or a table's folder. It is written to the new folder OUTPUT, with a README.md that says how
    to load it, in one of these formats:

    \b
    triplet, n-tuple,  Parquet for sentence-transformers,
    labeled-pair,        columns of its mine_hard_negatives;
    labeled-list         pictures by path
    ids                the same in ids, with tables of both
                         sides, for its util.resolve_ids
    tevatron,          Tevatron 2, colpali-engine, NeMo
    colpali, nemo        Automodel: ids and a corpus; queries
                         of the latter two are captions
    ms-swift, vlm2vec  a line or row a pair; pictures by path
    negclip            NegCLIP's TSV, of both directions
    pylate,            texts alone
    flagembedding
    trec               runs of both directions, with scores
    aoq                the 2020 code's lists, both directions

    Captions are written as texts, images as pictures. A picture is the one that `aoq prepare` read for DATA (if it was
    packed, give --pack), or the file below --image-root whose name is the image's id, with or without an ending.
    --image-texts puts texts in place of images, --caption-root pictures in place of captions. An id is never written in
    place of either. Captions and ids come from the experiment, from a dataset folder (--data), or from text files
    (--texts, --image-ids, --caption-ids). Rows of one set are named by --image-ids, --image-texts or --image-root.
    --data is compared with the table: other data, or another order, is refused.

    If all rows of a format must be of one length, anchors with fewer negatives than --num-negatives are left out. A
    table keeps the lowest score of an anchor's positives alone, so the scores of several positives (--scores; pylate)
    need --vectors.
    """
    from aoq.pipeline.produce.photographs import photograph_files
    from aoq.pipeline.tables.exchange.export import Said, Stand, export_table
    from aoq.pipeline.tables.exchange.formats import find_format
    from aoq.pipeline.tables.files import directions_of, read_manifest
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.writing import made_whole

    form = find_format(name)
    if form.directions != "one" and direction is not None:
        raise click.UsageError(f"{name} has both directions; leave out --direction")
    manifest = read_manifest(table.folder)
    if form.directions == "one" and direction is None and len(directions_of(manifest)) > 1:
        raise click.UsageError("say whose lists: --direction i2t (of images) or t2i (of captions)")
    if scores and form.scores in ("never", "of negatives"):
        raise click.UsageError(f"{name} has no place for positives' scores; leave out --scores")
    if vectors and not (scores or form.scores == "always"):
        raise click.UsageError("--vectors give the positives' scores; ask for them with --scores")
    refuse_beside_data(data, texts=texts, image_ids=image_ids, caption_root=caption_root)
    if data is not None and len(directions_of(manifest)) == 1:
        raise click.UsageError(
            "--data has images and captions, and the table is of one set; give --image-texts, --image-ids or "
            "--image-root in its place"
        )
    opened = table.captioned(data, split)
    lines, stand_ins = texts_of(texts, opened), None if image_texts is None else read_lines(image_texts)
    ids, other_ids = (None if file is None else read_ids(file) for file in (image_ids, caption_ids))
    pictures: Path | Sequence[str] | None = image_root
    ids = opened.ids if opened is not None and ids is None else ids
    folder = table.data_folder(data)
    with made_whole(output) as made:
        if opened and folder and image_root is None and image_texts is None and form.images in ("path", "lookup"):
            unpacked = made.parent / "pictures" if pack else None
            pictures = photograph_files(folder, opened.name, opened.image_count, unpacked)
        teacher = manifest.get("teacher")
        said = teacher.get("normalised") if isinstance(teacher, dict) else False
        normalised = [str(side) for side in said] if isinstance(said, list) else bool(said)
        with show_progress("exporting") as report:
            written = export_table(
                table.folder,
                made,
                name,
                said=Said(Stand(ids, stand_ins, pictures), Stand(other_ids, lines, caption_root), pack),
                direction=direction,
                num_negatives=num_negatives,
                scores=scores,
                vectors=open_sides(*vectors, made.parent, normalise=normalised) if vectors else None,
                view=read_view(view, manifest) if view else None,
                progress=lambda done, total, what: report(done, total, f"anchors, {what}"),
            )
    for one, about in written.items():
        lacking = "without a positive or with too few negatives"
        left_out = (
            f"; left out: {counted(about.anchors_left_out, 'anchor')} {lacking}" if about.anchors_left_out else ""
        )
        echo(f"{one}: {counted(about.rows, 'row')}{left_out}")
    echo(f"{output}: {output / 'README.md'} has the lines that load it")


@click.command("import-table")
@click.argument("source", type=PATH)
@click.argument("output", type=PATH)
@pairing_options
@click.option("--data", type=PATH, help="The dataset folder that has the true pairs.")
@split
@image_ids
@caption_ids
@click.option("--vectors", nargs=2, metavar="IMAGES CAPTIONS", help="To score every pair exactly, as `aoq mine` does.")
@normalise
def import_table(
    source: Path,
    output: Path,
    pairs: Path | None,
    min_grade: float | None,
    per_image: int | None,
    unpaired: bool,
    data: Path | None,
    split: str,
    image_ids: str | None,
    caption_ids: str | None,
    vectors: tuple[str, str] | None,
    normalise: bool,
) -> None:
    """Make a table of others' lists.

    The lists become a negative table, the new folder OUTPUT. SOURCE is the file of the images' lists: i2t_NAME.npy of
    AOQ's official code, or a TREC run with a name that begins with i2t. The captions' lists lie beside it, with t2i in
    place of i2t. Runs and --pairs name rows by number, or by the ids that --image-ids (or --data) and --caption-ids
    give. These two options also keep the ids beside the lists, and exports name rows by them.

    Own positives are taken out. With --vectors, scores are exact and lists are sorted by them. Without, scores are
    those of the run, and lists of the official code have none.
    """
    require_true_pairs(pairs, per_image, unpaired, min_grade, **{"--data FOLDER": data})
    if normalise and not vectors:
        raise click.UsageError("--normalise is about --vectors; give them, or leave it out")
    from aoq.pipeline.tables.exchange.incoming import find_files, import_lists, open_foreign_lists
    from aoq.pipeline.tables.ids import write_ids
    from aoq.pipeline.tables.writing import made_whole

    files = find_files(source)
    ids, other_ids = (None if given is None else read_ids(given) for given in (image_ids, caption_ids))
    positives: Integer[np.ndarray, "*shape"] | None = None
    if data is not None:
        opened = open_split(data, split)
        ids, positives = ids or opened.ids, opened.image_of
    images, captions = (
        Known(noun, None if given is None else len(given), given)
        for noun, given in (("image", ids), ("caption", other_ids))
    )
    if pairs is not None:
        positives = read_pairs(pairs, images, captions, min_grade)
    if captions.count is None and positives is not None and positives.ndim == 1:
        captions = replace(captions, count=len(positives))
    elif captions.count is None and ids and per_image:
        captions = replace(captions, count=len(ids) * per_image)
    # Whose lists these are: all that is known is what they look like.
    teacher: dict[str, Any] = {"lists_sha256": {direction: file_sha256(path) for direction, path in files.items()}}
    if vectors:
        hashes = [Given.of(given).sha256 for given in vectors]
        teacher |= {"vectors_sha256": dict(zip(("images", "captions"), hashes, strict=True)), "normalised": normalise}
    with made_whole(output) as made:
        raw = open_foreign_lists(files, images, captions, made.parent)
        if positives is None:
            positives = pair_in_order(len(raw["i2t"].ids), len(raw["t2i"].ids), per_image)
        named = {} if data is None else {"dataset": split_fingerprint(data, split)}
        manifest = import_lists(
            raw,
            positives,
            open_sides(*vectors, made.parent, normalise=normalise) if vectors else None,
            provenance={**named, "teacher": teacher, "tool": "aoq", "tool_version": version("aoq")},
            output=made,
        )
        given_ids = {"images": ids if image_ids else None, "captions": other_ids}
        write_ids(made, {side: names for side, names in given_ids.items() if names is not None})
    for direction, found in manifest["directions"].items():
        own, empty = found["own_positives_left_out"], found["anchors_without_negatives"]
        said = f"{found['anchors']} lists of {found['h']}, {SCORES[found['scores']]}"
        left_out = f"; left out: {counted(own, 'own positive')}" if own else ""
        without = f"; without a negative: {counted(empty, 'anchor')}" if empty else ""
        echo(f"{direction}: {said}{left_out}{without}")
    echo_next(shlex.join(["aoq", "inspect", str(output), "--image", "0"]))
