"""Export a table to another trainer's format, with a README that loads it, or publish it as a table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables import files
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.card import VIEW, describe_tables, write_card
from aoq.pipeline.tables.exchange.formats import FORMATS, find_format
from aoq.pipeline.tables.exchange.outgoing import BLOCK_ANCHORS, Names, Outgoing, find_pictures
from aoq.pipeline.tables.exchange.writers import Format
from aoq.pipeline.tables.pairs import SIDES, group_positives, require_one_each, rows_by_id
from aoq.pipeline.tables.screens.view import View, read_view, write_view
from aoq.pipeline.tables.writing import write_ids


class Content(NamedTuple):
    """The ids, texts or pictures of one side's rows, as far as a format needs them."""

    ids: Sequence[str] | None = None
    """Ids; by default the table's own, else row numbers."""
    texts: Sequence[str] | None = None
    pictures: Path | Sequence[str] | None = None
    """The folder in which a row's id is the name of its file; or each row's file."""


def export_table(
    table: Path,
    output: Path,
    name: str,
    *,
    images: Content,
    captions: Content,
    packed: bool = False,
    direction: Direction | None = None,
    num_negatives: int | None = None,
    scores: bool = False,
    vectors: Mapping[str, Float32[np.ndarray, "_ D"]] | None = None,
    view: View | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> dict[Direction, tuple[int, int]]:
    """Write the lists of one direction, or both if the format has both, and a README to the new folder `output`.

    For a table of one set, whose rows are `images`, each item's lists are written once. `vectors` of `images` and
    `captions`, from which the table was mined, give the scores of positives that the table does not keep. Pairs that
    `view` flags are left out, and pictures are written as the content of their files if `packed`. `progress` is called
    with the number of anchors read, the number of all anchors, and the direction. Return the numbers of rows written
    and of anchors left out.
    """
    form, manifest = find_format(name), files.read_manifest(table)
    mined = files.table_directions(manifest)
    _require_content(name, form, images, captions, packed, direction or mined[0], is_one_set=len(mined) == 1)
    captions = captions if len(mined) > 1 else images
    names = _name_rows(table, manifest, {"images": images, "captions": captions}, packed=packed)
    pairs = files.read_positives(table, manifest) if form.has_texts else np.empty((0, 2), np.int32)
    if form.has_texts and not len(pairs):
        raise ValueError(f"{table} has no positives, which this format needs.")
    is_scored, outgoing = scores or form.scores == "always", {}

    def lists(one: Direction) -> Iterator[NegativeLists]:
        start, (total, _) = 0, files.count_lists(table / f"{one}.parquet")
        for block in files.read_chunks(table, one, manifest, BLOCK_ANCHORS):
            yield block if view is None else block.keep(view[one].flags[start : start + len(block)] == 0)
            start += len(block)
            progress(start, total, one)

    for one in mined if direction is None else (direction,):
        known = files.search_facts(manifest, one).get("scores", "exact")
        if (is_scored and known != "exact") or (form.scores == "of negatives" and known == "none"):
            lacking = "scores" if known == "none" else "scores of positives"
            raise ValueError(f"{table} was imported without {lacking}; import it with --vectors to have them.")
        anchors, candidates = SIDES[one]
        own = group_positives(one, pairs, len(names[anchors].ids))
        for side, given in (vectors or {}).items():
            require_one_each(given, f"vectors of {side}", len(names[side].ids))
        both = None if vectors is None else (vectors[anchors], vectors[candidates])
        # Most lists of a view are too short for rows that all need as many negatives as the table's lists have.
        most = 5 if view is not None and form.full else None
        depth, sides = _export_depth(table, one, num_negatives, form, most), (names[anchors], names[candidates])
        outgoing[one] = Outgoing(one, lists(one), *sides, own, depth, is_scored, both)
    if form.directions == "joined":
        outgoing = {"t2i": replace(outgoing["t2i"], other=outgoing["i2t"])}
    written, counts = {}, []
    for one, each in outgoing.items():
        rows, _ = written[one] = form.write(each, output)
        if not rows:
            raise ValueError(
                f"no anchor of the {one} lists of {table} has a positive and the negatives that {name} needs, up to "
                f"{each.depth}; choose fewer (--num-negatives), or mine more."
            )
        counts.append(f"{rows} rows, {one}, up to {each.depth} each")
    _write_readme(output, name, form, list(outgoing.values()), ", ".join(counts))
    return written


def _require_content(
    name: str, form: Format, images: Content, captions: Content, packed: bool, direction: Direction, *, is_one_set: bool
) -> None:
    """Refuse ids that a reader would take for texts, and content that the format has no place for."""
    with_pictures = ", ".join(one for one, other in FORMATS.items() if other.images in ("path", "lookup"))
    with_packed = ", ".join(one for one, other in FORMATS.items() if other.images == "lookup")
    image_pictures, caption_pictures = (content.pictures is not None for content in (images, captions))
    has_pictures, is_joined = image_pictures or caption_pictures, form.directions == "joined"
    queries, kind, other = (captions, "pictures", "i2t") if direction == "t2i" else (images, "images", "t2i")
    limit = "exports only ids" if form.images == "id" else "reads only texts"
    option, a_text = "--image-root" if image_pictures else "--caption-root", "--image-texts FILE, a text for each image"
    need = "needs the images' pictures; give --image-root FOLDER, where the id of an image names its file"
    need += "" if is_joined else f" (or {a_text})"
    if form.images == "text":
        need = f"reads only texts, and image ids are not texts; give {a_text}, or choose {with_pictures}"
    refusals = {
        f"{name} joins images and captions, but this table holds one set; choose another format.": (
            is_one_set and is_joined
        ),
        "both directions of one set have the same lists, stored as i2t; leave out --direction.": (
            is_one_set and direction == "t2i"
        ),
        "this table holds one set, described by --image-ids, --image-texts and --image-root; leave out options about "
        "captions.": is_one_set and captions != Content(),
        "a row is exported as its picture or as a text; leave out --image-root or --image-texts "
        "(--caption-root or --texts).": any(
            content.pictures is not None and content.texts is not None for content in (images, captions)
        ),
        f"{name} needs the captions' texts; give --texts FILE or --data FOLDER.": (
            form.has_texts and not is_one_set and captions.texts is None and not caption_pictures
        ),
        f"{name} {limit}; leave out {option}, or choose {with_pictures}.": (
            has_pictures and form.images not in ("path", "lookup")
        ),
        f"{name} has no place for texts of images; leave out --image-texts.": (
            images.texts is not None and (not form.has_texts or is_joined)
        ),
        f"{name} needs captions as texts; give --texts FILE instead of --caption-root.": is_joined and caption_pictures,
        f"{name} {need}.": form.has_texts and not image_pictures and images.texts is None,
        f"--pack puts the pictures of --image-root into an export of {with_packed}; leave it out.": (
            packed and (form.images != "lookup" or not has_pictures)
        ),
        f"{name} reads its queries as text, but those of {direction} are {kind}; give --direction {other}.": (
            form.queries == "text" and queries.texts is None
        ),
    }
    for message, is_refused in refusals.items():
        if is_refused:
            raise ValueError(message)


def _export_depth(table: Path, direction: Direction, requested: int | None, form: Format, default: int | None) -> int:
    _, h = files.count_lists(table / f"{direction}.parquet")
    if requested is not None and requested > h and form.directions == "one":
        option = "h-captions" if direction == "i2t" else "h-images"
        raise ValueError(
            f"{requested} negatives are requested, but the {direction} lists of {table} have {h}; choose at most {h}, "
            f"or mine with --{option} {requested} (mining.{option.replace('-', '_')} in an experiment)."
        )
    return min(requested or default or h, h)


def _name_rows(
    table: Path, manifest: Mapping[str, Any], contents: Mapping[str, Content], *, packed: bool
) -> dict[str, Names]:
    """Name and show the rows of both sides; those of one set are the same."""
    counts, own, names = files.count_rows(table, manifest), files.read_ids(table, manifest), {}
    for side, noun in files.row_nouns(manifest).items():
        (ids, texts, pictures), count = contents[side], counts[side]
        ids = own.get(side) if ids is None else ids
        require_one_each(ids, f"{noun} ids", count)
        ids = [str(row) for row in range(count)] if ids is None else ids
        rows_by_id(ids, noun)
        require_one_each(texts, "captions" if noun == "caption" else f"texts of {noun}s", count)
        values = find_pictures(pictures, ids) if isinstance(pictures, Path) else pictures or texts or ()
        if pictures is not None:
            require_one_each(values, "pictures", count)
            if (missing := next((path for path in values if not os.path.isfile(path)), None)) is not None:
                raise FileNotFoundError(f"{missing} is not a file; prepare the folder again, or give --image-root.")
        names[side] = Names(ids, values, pictures is not None, noun, packed and pictures is not None)
    return {side: names.get(side, names["images"]) for side in contents}


def _write_readme(folder: Path, name: str, form: Format, outgoing: Sequence[Outgoing], rows: str) -> None:
    """Write the YAML by which `datasets` finds the tables, if any, then the lines that load them."""
    sides = [side for one in outgoing for side in (one.anchors, one.candidates)]
    paths = sorted(path for kind in ("parquet", "jsonl") for path in folder.glob(f"*.{kind}"))
    tables = {path.stem if len(paths) > 1 else "default": path.name for path in paths}
    lookups = sorted({f"{side.noun}s" for side in sides}, reverse=True)
    load = Template(form.load.strip()).substitute(
        folder=folder.name,
        queries=f"{sides[0].noun}s",
        documents=f"{sides[1].noun}s",
        tables=", ".join(lookups),
        names=", ".join(f'"{lookup}"' for lookup in lookups),
    )
    by_path = any(side.are_pictures and not side.packed for side in sides)
    more = ", with pictures by their paths on this machine" if by_path else ""
    more += f", with the teacher's scores for {form.scores_are_for}" if outgoing[0].scored else ""
    text = f"Hard negatives in the format {name}, mined by aoq {version('aoq')}: {rows}{more}."
    front_matter = f"---\n{describe_tables(folder, tables)}---\n" if tables else ""
    (folder / "README.md").write_text(f"{front_matter}{text}\n\n```{form.language}\n{load}\n```\n", encoding="utf-8")


def publish_table(
    table: Path, output: Path, *, ids: Mapping[str, Sequence[str]], view: Path | None = None, licence: str | None = None
) -> list[str]:
    """Audit a table, write it with its view, ids and a data card to the new folder `output`, and name the files.

    It reads back as the table, without pictures and texts, and nothing in it describes this machine.
    """
    if findings := audit(table):
        more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise ValueError(f"{table} does not pass `aoq audit`: {findings[0]}{more}; mine it again.")
    manifest = files.read_manifest(table)
    judged, directions = None if view is None else read_view(view, manifest), files.table_directions(manifest)
    if len(directions) == 1 and "captions" in ids:
        raise ValueError("the table holds one set, whose ids are --image-ids; leave out --caption-ids.")
    output.mkdir()
    lists = [f"{direction}{ending}" for direction in directions for ending in (".parquet", ".certificates.parquet")]
    for name in (*lists, files.POSITIVES, files.MANIFEST):
        if (table / name).is_file():
            shutil.copyfile(table / name, output / name)
    write_ids(output, {**files.read_ids(table, manifest), **ids})
    if judged is not None:
        screen = {
            rule: Path(value).name if isinstance(value, str) else value
            for rule, value in judged.manifest["screen"].items()
        }
        write_view(replace(judged, manifest={**judged.manifest, "screen": screen}), output / VIEW)
    write_card(output, name=output.name, licence=licence)
    return sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
