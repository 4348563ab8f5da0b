"""The negative table in Python: its lists, true pairs and ids, and a screen's judgement of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Float64, UInt32
from pydantic import ValidationError

from aoq.pipeline.config.screen import ScreenSection, Suspected
from aoq.pipeline.config.section import explain_refusal
from aoq.pipeline.reading import host_array
from aoq.pipeline.search.lists import NegativeLists, to_arrow
from aoq.pipeline.search.positives import both_ways, unique_pairs
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables import files
from aoq.pipeline.tables.contents import TableContents
from aoq.pipeline.tables.pairs import Pairs, pairs_sha256, require_one_each
from aoq.pipeline.tables.screens.view import View, flagged_rules, write_view
from aoq.pipeline.tables.writing import are_certified, made_whole, write_ids, write_table

SEARCH_FIELDS = (
    *("search", "guarantee", "recall", "recall_interval", "recall_anchors", "index"),
    *("searched_share", "scores", "sources"),
)
"""The manifest's fields of a direction's search; figures of the lists are recomputed."""


@dataclass(frozen=True, repr=False)
class NegativeTable(TableContents):
    """Each image's hardest captions (`i2t`) and each caption's hardest images (`t2i`).

    Images and captions stand for any two sides, named by `sides`. A direction that was not mined has lists of length
    0, one for each of its anchors. In a table of one set, searched among itself, `t2i` is `i2t`: both directions have
    the same lists, and `directions` names only the first.
    """

    def __post_init__(self) -> None:
        pairs = self.positives
        if pairs is not None and (getattr(pairs, "dtype", None) != np.int32 or pairs.ndim != 2):
            object.__setattr__(self, "positives", _host_pairs(pairs, len(self.i2t), len(self.t2i)))

    def __repr__(self) -> str:
        lists = [f"{direction}: {len(self[direction])} lists of {self[direction].h}" for direction in self.directions]
        return f"NegativeTable({', '.join([*lists, 'one set'] if self.is_one_set else lists)})"

    def to_arrow(self, direction: Direction) -> pa.Table:
        """Make an Arrow table with one row per anchor and the columns of the table's files."""
        return to_arrow(replace(self[direction], bound=None))

    def to_pandas(self, direction: Direction) -> Any:
        """Make a DataFrame, one row per negative: anchor_id, rank (from 1), negative_id, score, positive_score."""
        return _data_frame(self[direction])

    def screen(
        self,
        *,
        texts: Sequence[str] | None = None,
        images: Float32[np.ndarray, "images D"] | None = None,
        captions: Float32[np.ndarray, "captions D"] | None = None,
        positives: Path | str | Pairs | None = None,
        pair_probabilities: Path | str | Float32[np.ndarray, " captions"] | None = None,
        judgements: Path | str | pa.Table | None = None,
        allow_empty: bool = False,
        **rules: Any,
    ) -> ScreenedTable:
        """Judge the negatives by the rules of [screen] (`aoq.pipeline.config.screen`), given the inputs they need.

        `texts` are the captions' texts, `images` and `captions` the vectors of one model, `positives` further pairs
        known to match, and `pair_probabilities` the probability that each caption's own pair is right.
        These may be files or arrays; `judgements` is a judge's file, or an Arrow table of its columns. Rules that flag
        every negative are refused, unless `allow_empty` is true or `suspected` does not drop them.
        """
        from aoq.pipeline.tables.screens.judge import judge  # loads torch and numba
        from aoq.pipeline.tables.screens.knowledge import read_known

        if unknown := [rule for rule in rules if rule not in ScreenSection.model_fields]:
            raise ValueError(f"there is no rule {unknown[0]!r}; the rules are {', '.join(ScreenSection.model_fields)}.")
        images, captions = _on_host(images, "images"), _on_host(captions, "captions")
        given = {"positives": positives, "pair_probabilities": pair_probabilities}
        given = {option: _on_host(value, option) for option, value in given.items()}
        given["judgements"] = Path(judgements) if isinstance(judgements, str) else judgements
        options = {**rules, **{option: _name(value) for option, value in given.items()}}
        try:
            screen = ScreenSection(**{option: value for option, value in options.items() if value is not None})
        except ValidationError as error:
            raise ValueError(explain_refusal(ScreenSection, error)) from None
        sizes = len(self.i2t), len(self.t2i)
        require_one_each(texts, "texts", sizes[1])
        require_one_each(images, "vectors of images", sizes[0])
        require_one_each(captions, "vectors of captions", sizes[1])
        if isinstance(given["positives"], np.ndarray):
            given["positives"] = _host_pairs(given["positives"], *sizes)
        view = judge(self, screen, read_known(self, screen, given, texts=texts, images=images, captions=captions))
        if not allow_empty and screen.suspected == "drop":
            view.require_some("loosen them, or give --allow-empty (in Python allow_empty=True)")
        return ScreenedTable(self, view, screen.suspected)

    def save(self, folder: Path | str, *, overwrite: bool = False, **provenance: Any) -> None:
        """Write the table, whole or not at all, to the new folder `folder`; `read_table` reads it again.

        `provenance` goes into the manifest: `dataset` (a fingerprint), `teacher`, or any other facts.
        With `overwrite` an existing table is replaced. Lists are called exact only if their bounds, written
        beside them as certificates, prove it.
        """
        pairs, contents = self.true_pairs, {}
        for direction in self.directions:
            lists, known = self[direction], files.search_facts(self.manifest, direction)
            if not lists.h:
                raise ValueError(f"a saved table has both directions, but {direction} was not mined; mine both.")
            about = {"h": lists.h, "search": "in memory", "guarantee": "exact"}
            about |= {key: value for key, value in known.items() if key in SEARCH_FIELDS}
            is_proven = lists.bound is not None and bool(are_certified(lists.scores[:, -1], lists.bound).all())
            if about["guarantee"] == "exact" and not is_proven:
                about["guarantee"] = "unproven"
            contents[direction] = about, [lists]
        unnamed = {"dataset": pairs_sha256(pairs), "teacher": {"vectors": "in memory"}, "tool": "aoq"}
        facts = {**unnamed, **self.manifest, **provenance, "tool_version": version("aoq")}
        facts = {key: value for key, value in facts.items() if key not in ("format_version", "directions", "ids")}
        with made_whole(Path(folder), overwrite=overwrite) as output:
            write_table(output, facts, contents, pairs)
            write_ids(output, self.ids)


def read_table(folder: Path | str, *, dataset: str | None = None) -> NegativeTable:
    """Read the table in a folder; its lists and positives must match the hashes in its manifest.

    With `dataset`, refuse a table mined on a training split of another fingerprint.
    """
    folder = Path(folder)
    manifest = files.read_manifest(folder, dataset=dataset)
    lists = [files.read_lists(folder, direction, manifest) for direction in files.table_directions(manifest)]
    positives, ids = files.read_positives(folder, manifest), files.read_ids(folder, manifest)
    return NegativeTable(lists[0], lists[-1], manifest, positives, ids)


@dataclass(frozen=True, repr=False)
class ScreenedTable:
    """A table and a screen's judgement of it; the table itself stays unchanged."""

    table: NegativeTable
    view: View
    suspected: Suspected = "drop"
    """Treatment of suspected negatives, unless `weights` names another."""

    def __repr__(self) -> str:
        flagged = ", ".join(f"{d}: {int((self.flags(d) > 0).sum())} flagged" for d in self.table.directions)
        return f"ScreenedTable({self.table!r}, {flagged})"

    def flags(self, direction: Direction) -> UInt32[np.ndarray, "anchors h"]:
        """Bits of the rules that each negative meets; `flagged_rules` names them."""
        return self.view[direction].flags

    def suspicion(self, direction: Direction) -> Float32[np.ndarray, "anchors h"]:
        """Suspicion that each negative is a false negative, from 0 to 1."""
        return self.view[direction].suspicion

    def weights(self, direction: Direction, suspected: Suspected | None = None) -> Float32[np.ndarray, "anchors h"]:
        """Sampling weight of each negative; 0 for padding."""
        weights = self.view[direction].weights(suspected or self.suspected)
        return np.where(self.table[direction].negative_ids >= 0, weights, np.float32(0))

    def left(self, direction: Direction) -> NegativeLists:
        """Lists without flagged negatives, moved up and padded."""
        return self.table[direction].keep(self.flags(direction) == 0)

    def to_pandas(self, direction: Direction) -> Any:
        """Make a pandas.DataFrame like the table's own, with the names of the rules met (`flags`) and `suspicion`."""
        listed = self.table[direction].negative_ids >= 0
        names = [",".join(flagged_rules(bits)) for bits in self.flags(direction)[listed].tolist()]
        suspicion = self.suspicion(direction)[listed]
        return _data_frame(self.table[direction], flags=np.array(names, dtype=object), suspicion=suspicion)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the view, as `aoq screen` does, to the new folder `folder`; the table is not saved with it."""
        with made_whole(Path(folder), overwrite=overwrite) as output:
            write_view(self.view, output)


class Parts(NamedTuple):
    """A table, and a screen's judgement of it, if there is one."""

    table: NegativeTable
    view: View | None
    suspected: Suspected

    @property
    def matches(self) -> Pairs | None:
        """Listed pairs that the screen makes positives, rows (image, caption); None unless it does."""
        if self.view is None or self.suspected != "positive":
            return None
        found = []
        for direction in self.table.directions:
            ids = self.table[direction].negative_ids
            anchors, places = np.nonzero((ids >= 0) & self.view[direction].matches)
            pairs = np.column_stack([anchors, ids[anchors, places]])
            found.append(pairs if direction == "i2t" else pairs[:, ::-1])
        pairs = np.unique(np.concatenate(found), axis=0).astype(np.int32)
        return both_ways(pairs) if self.table.is_one_set else pairs

    @property
    def highest_scores(self) -> Float64[np.ndarray, " captions"] | None:
        """Highest score of a negative to be drawn for each caption's image, with `margin_positive = "own"`."""
        screen = {} if self.view is None else self.view.manifest["screen"]
        if screen.get("margin_positive") != "own":
            return None
        own = self.table.t2i.positive_score.astype(np.float64)
        return own - np.maximum(screen.get("absolute_margin", 0.0), screen.get("relative_margin", 0.0) * np.abs(own))


def table_parts(table: NegativeTable | ScreenedTable) -> Parts:
    if isinstance(table, ScreenedTable):
        return Parts(table.table, table.view, table.suspected)
    return Parts(table, None, "drop")


def _on_host(value: Any, name: str) -> Any:
    """Convert to an array, unless it is None, or to the path of a file."""
    return Path(value) if isinstance(value, (str, Path)) else value if value is None else host_array(value, name)


def _host_pairs(pairs: Any, images: int, captions: int) -> Pairs:
    """Convert pairs of any integer type, or the image of each caption, to rows (image, caption)."""
    rows = host_array(pairs, "positives")
    if rows.size and rows.dtype.kind not in "iu":
        raise ValueError(f"positives are {rows.dtype} of shape {rows.shape}; give integer rows (image, caption).")
    return unique_pairs(rows if rows.size else np.empty((0, 2), np.int32), images, captions)


def _data_frame(lists: NegativeLists, **more: np.ndarray) -> Any:
    """Make a pandas.DataFrame with one row per negative, list by list."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ImportError("a data frame needs pandas, which is not installed: `pip install pandas`.") from None
    anchors, places = np.nonzero(lists.negative_ids >= 0)
    columns = {
        "anchor_id": anchors.astype(np.int32),
        "rank": (places + 1).astype(np.int32),
        "negative_id": lists.negative_ids[anchors, places],
        "score": lists.scores[anchors, places],
        "positive_score": lists.positive_score[anchors],
    }
    return pandas.DataFrame({**columns, **more})


def _name(value: Path | str | np.ndarray | pa.Table | None) -> str | None:
    if isinstance(value, pa.Table):
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, value.schema) as stream:
            stream.write_table(value.combine_chunks())
        return f"sha256:{sha256(content.getvalue()).hexdigest()}"
    if isinstance(value, np.ndarray):
        return f"sha256:{sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    return None if value is None else str(value)
