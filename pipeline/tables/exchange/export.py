"""A table on disk in another trainer's format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.exchange.formats import FORMATS, Format, find_format
from aoq.pipeline.tables.exchange.outgoing import ROWS, Names, Outgoing, Written, rows_by_id
from aoq.pipeline.tables.exchange.pictures import find_pictures, require_pictures
from aoq.pipeline.tables.exchange.readme import write_readme
from aoq.pipeline.tables.files import count_lists, read_chunks, read_manifest, read_positives, said_of
from aoq.pipeline.tables.ids import read_ids
from aoq.pipeline.tables.pairs import SIDES, Pairs, positives_of
from aoq.pipeline.tables.screens.view import View

Matrices = Mapping[str, Float32[np.ndarray, "_ D"]]
"""The vectors of `images` and of `captions`."""


@dataclass(frozen=True)
class Said:
    """What stands for a table's rows: nothing, for what a format does not need."""

    captions: Sequence[str] | None = None
    image_ids: Sequence[str] | None = None
    """By default the table's own, else their row numbers."""
    pictures: Path | Sequence[str] | None = None
    """The folder in which an image's id is the name of its file; or each image's file."""
    image_texts: Sequence[str] | None = None
    """A text in each image's place."""
    packed: bool = False
    """Pictures go as the content of their files."""


def export_table(
    table: Path,
    output: Path,
    name: str,
    *,
    said: Said,
    direction: Direction | None = None,
    num_negatives: int | None = None,
    scores: bool = False,
    vectors: Matrices | None = None,
    view: View | None = None,
) -> dict[Direction, Written]:
    """Write the lists of one direction, or of both where the format has both, and a README to the new folder `output`.

    `vectors`, what the table was mined from, give the scores of positives that the table does not keep. What `view`
    flags is left out.
    """
    form, manifest = find_format(name), read_manifest(table)
    require_stand_ins(name, form, said, direction)
    names = _names(table, said, read_ids(table, manifest))
    pairs = _true_pairs(table, manifest) if form.has_texts else np.empty((0, 2), np.int32)
    outgoing: dict[Direction, Outgoing] = {}
    for one in DIRECTIONS if direction is None else (direction,):
        depth = _depth(table, one, num_negatives, strict=form.directions == "one")
        _require_scores(table, said_of(manifest, one).get("scores", "exact"), form, scores)
        anchors, candidates = SIDES[one]
        outgoing[one] = Outgoing(
            one,
            _Lists(table, one, manifest, view),
            names[anchors],
            names[candidates],
            positives_of(one, pairs, len(names[anchors].ids)),
            depth,
            scores or form.scores == "always",
            None if vectors is None else (vectors[anchors], vectors[candidates]),
            said.packed,
        )
    if form.directions == "joined":
        outgoing = {"t2i": replace(outgoing["t2i"], other=outgoing["i2t"])}
    written = {one: form.write(each, output) for one, each in outgoing.items()}
    for one, about in written.items():
        if not about.rows:
            raise ValueError(
                f"no anchor of the {one} lists of {table} has a positive and what {name} needs of negatives, up to "
                f"{outgoing[one].depth}; ask for fewer (--num-negatives), or mine more."
            )
    write_readme(output, name, form, outgoing, written)
    return written


@dataclass(frozen=True)
class _Lists:
    """A direction's lists without what a view flags, some at a time."""

    table: Path
    direction: Direction
    manifest: Mapping[str, Any]
    view: View | None

    def __iter__(self) -> Iterator[NegativeLists]:
        start = 0
        for lists in read_chunks(self.table, self.direction, self.manifest, ROWS):
            flagged = None if self.view is None else self.view[self.direction].flags[start : start + len(lists)]
            yield lists if flagged is None else lists.keep(flagged == 0)
            start += len(lists)


def require_stand_ins(name: str, form: Format, said: Said, direction: Direction | None) -> None:
    """Refuse what would make a reader take an id for a text, and what the format has no place for."""
    takes_pictures = form.images in ("path", "lookup")
    if said.pictures is not None and said.image_texts is not None:
        raise ValueError("an image goes as its picture or as a text; give --image-root or --image-texts, not both.")
    if form.has_texts and said.captions is None:
        raise ValueError(f"{name} has the captions' texts, and none are given; give --captions FILE or --data FOLDER.")
    if said.pictures is not None and not takes_pictures:
        why = "has ids alone" if form.images == "id" else "is read as text alone"
        others = ", ".join(one for one, other in FORMATS.items() if other.images in ("path", "lookup"))
        raise ValueError(f"{name} {why}, and has no place for pictures; leave out --image-root, or choose {others}.")
    if said.image_texts is not None and (not form.has_texts or form.directions == "joined"):
        raise ValueError(f"{name} has no place for a text of an image; leave out --image-texts.")
    if form.has_texts and said.pictures is None and said.image_texts is None:
        raise ValueError(f"{_would_be_text(name, form)}; give {_remedy(form)}.")
    if said.packed and (form.images != "lookup" or said.pictures is None):
        others = ", ".join(one for one, other in FORMATS.items() if other.images == "lookup")
        raise ValueError(f"--pack puts the pictures of --image-root into an export of {others}; leave it out.")
    if form.queries == "text" and direction == "i2t" and said.image_texts is None:
        raise ValueError(f"{name} reads its queries as text, and i2t has images there; give --direction t2i.")


def _would_be_text(name: str, form: Format) -> str:
    if form.images == "text":
        return f"{name} is read as text alone, and an image's id is none"
    return f"{name} has the images' pictures, and none are given"


def _remedy(form: Format) -> str:
    texts = "--image-texts FILE, a text in each image's place"
    pictures = "--image-root FOLDER, where the file of an image is its id"
    if form.images == "text":
        others = ", ".join(one for one, other in FORMATS.items() if other.images in ("path", "lookup"))
        return f"{texts}, or choose a format with pictures: {others}"
    return pictures if form.directions == "joined" else f"{pictures} (or {texts})"


def _depth(table: Path, direction: Direction, asked: int | None, *, strict: bool) -> int:
    _, h = count_lists(table / f"{direction}.parquet")
    if asked is not None and asked > h and strict:
        mined = "h-captions" if direction == "i2t" else "h-images"
        raise ValueError(
            f"{asked} negatives are asked for, and the {direction} lists of {table} have {h}; ask for at most {h}, or "
            f"mine with --{mined} {asked} (mining.{mined.replace('-', '_')} in an experiment)."
        )
    return min(asked or h, h)


def _require_scores(table: Path, known: str, form: Format, asked: bool) -> None:
    if ((asked or form.scores == "always") and known != "exact") or (form.scores == "of negatives" and known == "none"):
        lacking = "scores" if known == "none" else "scores of positives"
        raise ValueError(f"{table} was imported without {lacking}; import it with --vectors to have them.")


def _names(table: Path, said: Said, own: Mapping[str, Sequence[str]]) -> dict[str, Names]:
    """What images and captions go by; by default the table's `own` ids."""
    images, rows = ([str(row) for row in range(count_lists(table / f"{one}.parquet")[0])] for one in DIRECTIONS)
    listed = None if isinstance(said.pictures, Path) else said.pictures
    counts = ((said.image_ids, images, "image ids"), (said.captions, rows, "captions"))
    for given, numbers, what in (*counts, (said.image_texts, images, "texts of images"), (listed, images, "pictures")):
        if given is not None and len(given) != len(numbers):
            raise ValueError(f"{len(given)} {what} are given for a table of {len(numbers)}; they are of other data.")
    ids = own.get("images", images) if said.image_ids is None else said.image_ids
    rows_by_id(ids)
    if said.pictures is None:
        pictured = Names(ids, said.image_texts or (), noun="image")
    else:
        files = said.pictures if not isinstance(said.pictures, Path) else find_pictures(said.pictures, ids)
        require_pictures(files)
        pictured = Names(ids, files, are_pictures=True, noun="image")
    return {"images": pictured, "captions": Names(own.get("captions", rows), said.captions or ())}


def _true_pairs(table: Path, manifest: Mapping[str, Any]) -> Pairs:
    pairs = read_positives(table, manifest)
    if not len(pairs):
        raise ValueError(f"in {table} no caption belongs to any image, and this format needs positives.")
    return pairs
