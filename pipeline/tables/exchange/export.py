"""Export a table on disk to another trainer's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.exchange.formats import FORMATS, Format, find_format
from aoq.pipeline.tables.exchange.outgoing import ROWS, Names, Outgoing, Written
from aoq.pipeline.tables.exchange.pictures import find_pictures, require_pictures
from aoq.pipeline.tables.exchange.readme import write_readme
from aoq.pipeline.tables.files import (
    count_lists,
    count_rows,
    directions_of,
    read_chunks,
    read_manifest,
    read_positives,
    said_of,
)
from aoq.pipeline.tables.ids import ITEM, NOUNS, read_ids
from aoq.pipeline.tables.pairs import SIDES, Pairs, positives_of
from aoq.pipeline.tables.rows import rows_by_id
from aoq.pipeline.tables.screens.view import View

Matrices = Mapping[str, Float32[np.ndarray, "_ D"]]
"""Vectors of `images` and of `captions`."""


@dataclass(frozen=True)
class Stand:
    """Stand-ins for the rows of one side: none if a format does not need them."""

    ids: Sequence[str] | None = None
    """Ids; by default the table's own, else row numbers."""
    texts: Sequence[str] | None = None
    pictures: Path | Sequence[str] | None = None
    """The folder in which a row's id is the name of its file; or each row's file."""

    @property
    def is_given(self) -> bool:
        return any(given is not None for given in (self.ids, self.texts, self.pictures))


@dataclass(frozen=True)
class Said:
    """Stand-ins for a table's rows; of one set, `images` alone."""

    images: Stand = Stand()
    captions: Stand = Stand()
    packed: bool = False
    """True if pictures are written as the content of their files."""


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
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> dict[Direction, Written]:
    """Write the lists of one direction, or both if the format has both, and a README to the new folder `output`.

    In one set the lists of both directions are equal, and each item's are written once. `vectors`, from which the table
    was mined, give the scores of positives that the table does not keep. Pairs that `view` flags are left out.
    `progress` is called with the number of a direction's anchors that are read, of all, and the direction.
    """
    form, manifest = find_format(name), read_manifest(table)
    mined = directions_of(manifest)
    if len(mined) == 1:
        said = _of_one_set(name, form, said, direction)
    require_stand_ins(name, form, said, direction or mined[0])
    names = _names(table, manifest, said)
    pairs = _true_pairs(table, manifest) if form.has_texts else np.empty((0, 2), np.int32)
    outgoing: dict[Direction, Outgoing] = {}
    for one in mined if direction is None else (direction,):
        depth = _depth(table, one, num_negatives, strict=form.directions == "one")
        _require_scores(table, said_of(manifest, one).get("scores", "exact"), form, scores)
        anchors, candidates = SIDES[one]
        outgoing[one] = Outgoing(
            one,
            _Lists(table, one, manifest, view, progress),
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
    """A direction's lists without negatives that a view flags, in blocks of lists."""

    table: Path
    direction: Direction
    manifest: Mapping[str, Any]
    view: View | None
    progress: Callable[[int, int, str], None]

    def __iter__(self) -> Iterator[NegativeLists]:
        start, (total, _) = 0, count_lists(self.table / f"{self.direction}.parquet")
        for lists in read_chunks(self.table, self.direction, self.manifest, ROWS):
            flagged = None if self.view is None else self.view[self.direction].flags[start : start + len(lists)]
            yield lists if flagged is None else lists.keep(flagged == 0)
            start += len(lists)
            self.progress(start, total, self.direction)


def _of_one_set(name: str, form: Format, said: Said, direction: Direction | None) -> Said:
    """Use the same stand-ins for both sides, which are one."""
    if form.directions == "joined":
        raise ValueError(f"{name} joins images and captions, and this table is of one set; choose another format.")
    if direction == "t2i":
        raise ValueError(
            "of one set both directions have the same lists, which are kept as i2t; leave out --direction."
        )
    if said.captions.is_given:
        raise ValueError(
            "this table is of one set, whose rows go by --image-ids, --image-texts and --image-root; leave out what is "
            "about captions."
        )
    return replace(said, captions=said.images)


def require_stand_ins(name: str, form: Format, said: Said, direction: Direction) -> None:
    """Refuse ids that a reader would take for texts, and stand-ins that the format has no place for."""
    images, captions = said.images, said.captions
    for stand, text, root in ((images, "--image-texts", "--image-root"), (captions, "--texts", "--caption-root")):
        if stand.pictures is not None and stand.texts is not None:
            what = "an image" if stand is images else "a caption"
            raise ValueError(f"{what} goes as its picture or as a text; give {root} or {text}, not both.")
    if form.has_texts and captions is not images and captions.texts is None and captions.pictures is None:
        raise ValueError(f"{name} has the captions' texts, and none are given; give --texts FILE or --data FOLDER.")
    pictures = [stand for stand in (images, captions) if stand.pictures is not None]
    if pictures and form.images not in ("path", "lookup"):
        why = "has ids alone" if form.images == "id" else "is read as text alone"
        root = "--image-root" if pictures[0] is images else "--caption-root"
        raise ValueError(
            f"{name} {why}, and has no place for pictures; leave out {root}, or choose {_with_pictures()}."
        )
    if images.texts is not None and (not form.has_texts or form.directions == "joined"):
        raise ValueError(f"{name} has no place for a text of an image; leave out --image-texts.")
    if form.directions == "joined" and captions.pictures is not None:
        raise ValueError(f"{name} has captions as texts; give --texts FILE in place of --caption-root.")
    if form.has_texts and images.pictures is None and images.texts is None:
        raise ValueError(f"{_would_be_text(name, form)}; give {_remedy(form)}.")
    if said.packed and (form.images != "lookup" or not pictures):
        others = ", ".join(one for one, other in FORMATS.items() if other.images == "lookup")
        raise ValueError(f"--pack puts the pictures of --image-root into an export of {others}; leave it out.")
    if form.queries == "text" and (images if direction == "i2t" else captions).texts is None:
        side, other = ("images", "t2i") if direction == "i2t" else ("pictures", "i2t")
        raise ValueError(
            f"{name} reads its queries as text, and {direction} has {side} there; give --direction {other}."
        )


def _with_pictures() -> str:
    return ", ".join(one for one, other in FORMATS.items() if other.images in ("path", "lookup"))


def _would_be_text(name: str, form: Format) -> str:
    if form.images == "text":
        return f"{name} is read as text alone, and an image's id is none"
    return f"{name} has the images' pictures, and none are given"


def _remedy(form: Format) -> str:
    texts = "--image-texts FILE, a text in each image's place"
    pictures = "--image-root FOLDER, where the file of an image is its id"
    if form.images == "text":
        return f"{texts}, or choose a format with pictures: {_with_pictures()}"
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


def _names(table: Path, manifest: Mapping[str, Any], said: Said) -> dict[str, Names]:
    """Ids and values of images and captions."""
    counts, own = count_rows(table, manifest), read_ids(table, manifest)
    if said.captions is said.images:
        return dict.fromkeys(counts, _names_of(_with_ids(said.images, own.get("images")), counts["images"], ITEM))
    sides = {"images": said.images, "captions": said.captions}
    return {
        side: _names_of(_with_ids(stand, own.get(side)), counts[side], NOUNS[side]) for side, stand in sides.items()
    }


def _with_ids(stand: Stand, own: Sequence[str] | None) -> Stand:
    return stand if stand.ids is not None else replace(stand, ids=own)


def _names_of(stand: Stand, count: int, noun: str) -> Names:
    texts = "captions" if noun == "caption" else f"texts of {noun}s"
    listed = None if isinstance(stand.pictures, Path) else stand.pictures
    for given, what in ((stand.ids, f"{noun} ids"), (stand.texts, texts), (listed, "pictures")):
        if given is not None and len(given) != count:
            raise ValueError(f"{len(given)} {what} are given for a table of {count}; they are of other data.")
    ids = [str(row) for row in range(count)] if stand.ids is None else stand.ids
    rows_by_id(ids, noun)
    if stand.pictures is None:
        return Names(ids, stand.texts or (), noun=noun)
    files = find_pictures(stand.pictures, ids) if isinstance(stand.pictures, Path) else stand.pictures
    require_pictures(files)
    return Names(ids, files, are_pictures=True, noun=noun)


def _true_pairs(table: Path, manifest: Mapping[str, Any]) -> Pairs:
    pairs = read_positives(table, manifest)
    if not len(pairs):
        raise ValueError(f"in {table} no caption belongs to any image, and this format needs positives.")
    return pairs
