"""The negative table in Python: its lists, its true pairs, and operations on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32

from aoq.pipeline.search.lists import NegativeLists, to_arrow
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.files import (
    content_sha256,
    directions_of,
    read_lists,
    read_manifest,
    read_positives,
    said_of,
    sides_of,
    table_hashes,
)
from aoq.pipeline.tables.ids import read_ids, write_ids
from aoq.pipeline.tables.pairs import Pairs, positives_of
from aoq.pipeline.tables.writing import Made, made_whole, write_table

if TYPE_CHECKING:
    from aoq.pipeline.tables.screens.screened import ScreenedTable

RECALL = ("recall", "recall_interval", "recall_anchors", "index")
SAID = ("search", "guarantee", *RECALL, "searched_share", "scores", "sources")
"""The manifest's fields of a direction's search; figures of the lists are recomputed."""


@dataclass(frozen=True, repr=False)
class NegativeTable:
    """Each image's hardest captions (`i2t`) and each caption's hardest images (`t2i`).

    Images and captions stand for any two sides, named by `sides`. A direction that was not mined has lists of length
    0, one for each of its anchors. Of one set, searched among itself, `t2i` is `i2t`: both directions have the same
    lists, and `directions` names the first alone.
    """

    i2t: NegativeLists
    t2i: NegativeLists
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Teacher and data of the scores, and for each of `directions` how it was searched."""
    positives: Pairs | None = None
    """True pairs, rows (image, caption), which no list holds; of one set in both orders; None if they are unknown."""
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Ids of `images` and `captions`, one per row, if their vectors came with ids."""

    def __getitem__(self, direction: Direction) -> NegativeLists:
        return {"i2t": self.i2t, "t2i": self.t2i}[direction]

    def __repr__(self) -> str:
        held = [f"{direction}: {len(self[direction])} lists of {self[direction].h}" for direction in self.directions]
        return f"NegativeTable({', '.join([*held, 'one set'] if self.is_one_set else held)})"

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the rows: ("images", "captions") by default, one name for one set."""
        return sides_of(self.manifest)

    @property
    def is_one_set(self) -> bool:
        return len(self.sides) == 1

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Directions whose lists differ."""
        return directions_of(self.manifest)

    def own(self, direction: Direction) -> Positives:
        """Group the true pairs by anchor."""
        if self.positives is None:
            raise ValueError("the table does not say which pairs are true; give it `positives`.")
        return positives_of(direction, self.positives, len(self[direction]))

    @property
    def sha256(self) -> dict[str, str]:
        """Hash of each direction's lists, from the manifest if it has one."""
        if "sha256" in said_of(self.manifest, "i2t"):
            return table_hashes(self.manifest)
        return {direction: content_sha256(self[direction]) for direction in self.directions}

    def to_arrow(self, direction: Direction) -> pa.Table:
        """Make an Arrow table with one row per anchor and the columns of the table's files."""
        return to_arrow(replace(self[direction], bound=None))

    def to_pandas(self, direction: Direction) -> Any:
        """Make a DataFrame, one row per negative: anchor_id, rank (from 1), negative_id, score, positive_score."""
        return data_frame(self[direction])

    def screen(
        self,
        *,
        texts: Sequence[str] | None = None,
        images: Float32[np.ndarray, "images D"] | None = None,
        captions: Float32[np.ndarray, "captions D"] | None = None,
        positives: Path | str | Pairs | None = None,
        pair_probabilities: Path | str | Float32[np.ndarray, " captions"] | None = None,
        judgements: Path | str | pa.Table | None = None,
        **rules: Any,
    ) -> ScreenedTable:
        """Judge the negatives by the rules of [screen] (`aoq.pipeline.config.screen`), given the inputs they need.

        `texts` are the captions', `images` and `captions` vectors of one model, `positives` more pairs known to
        match and `pair_probabilities` those that each caption's own pair is right: files, or arrays. `judgements` are
        a judge's: a file, or an Arrow table of its columns.
        """
        from aoq.pipeline.tables.screens.screened import screen_table

        given = {"positives": positives, "pair_probabilities": pair_probabilities, "judgements": judgements}
        return screen_table(self, rules, texts=texts, images=images, captions=captions, **given)

    def save(self, folder: Path | str, *, overwrite: bool = False, **provenance: Any) -> None:
        """Write the table, whole or not at all, to the new folder `folder`; `read_table` reads it again.

        `provenance` goes into the manifest: `dataset` (a fingerprint), `teacher`, or any other facts.
        With `overwrite` an existing table is replaced. Lists are called exact only if their bounds, written
        beside them as certificates, prove it.
        """
        if self.positives is None:
            raise ValueError("a saved table says which pairs are true, and this one does not; give it `positives`.")
        made: dict[Direction, Made] = {}
        for direction in self.directions:
            lists, said = self[direction], said_of(self.manifest, direction)
            if not lists.h:
                raise ValueError(f"a table to save has both directions, and {direction} was not mined; mine both.")
            said = {"search": "in memory", "guarantee": "exact", **{key: said[key] for key in said if key in SAID}}
            is_proven = lists.bound is not None and bool((lists.scores[:, -1] > lists.bound).all())
            if said["guarantee"] == "exact" and not is_proven:
                said["guarantee"] = "unproven"
            made[direction] = {"h": lists.h, **said}, [lists]
        pairs = np.ascontiguousarray(self.positives, dtype="<i4")
        unnamed = {"dataset": sha256(pairs.tobytes()).hexdigest(), "teacher": {"vectors": "in memory"}, "tool": "aoq"}
        about = {**unnamed, **self.manifest, **provenance, "tool_version": version("aoq")}
        about = {key: value for key, value in about.items() if key not in ("format_version", "directions", "ids")}
        with made_whole(Path(folder), overwrite=overwrite) as output:
            write_table(output, about, made, self.positives)
            write_ids(output, self.ids)


def read_table(folder: Path | str, *, dataset: str | None = None) -> NegativeTable:
    """Read the table in a folder; its lists and positives must match the hashes in its manifest.

    With `dataset`, refuse a table mined on a training split of another fingerprint.
    """
    folder = Path(folder)
    manifest = read_manifest(folder, dataset=dataset)
    lists = [read_lists(folder, direction, manifest) for direction in directions_of(manifest)]
    positives, ids = read_positives(folder, manifest), read_ids(folder, manifest)
    return NegativeTable(lists[0], lists[-1], manifest, positives, ids)


def data_frame(lists: NegativeLists, **more: np.ndarray) -> Any:
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
