"""The negative table as one uses it from Python: its lists, its true pairs, and what may be made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32

from aoq.pipeline.search.lists import NegativeLists, to_arrow
from aoq.pipeline.search.problem import DIRECTIONS, Direction, Positives
from aoq.pipeline.tables.files import content_sha256, read_lists, read_manifest, read_positives, said_of, table_hashes
from aoq.pipeline.tables.pairs import Pairs, positives_of
from aoq.pipeline.tables.writing import save_lists

if TYPE_CHECKING:
    from aoq.pipeline.tables.screens.screened import ScreenedTable


@dataclass(frozen=True, repr=False)
class NegativeTable:
    """For every image its hardest captions (`i2t`), for every caption its hardest images (`t2i`).

    A direction that was not mined has lists of length 0, one for each of its anchors.
    """

    i2t: NegativeLists
    t2i: NegativeLists
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Whose scores these are, on which data, and of each of its `directions` how it was searched."""
    positives: Pairs | None = None
    """The true pairs, rows (image, caption), which no list holds; None where nobody said."""

    def __getitem__(self, direction: Direction) -> NegativeLists:
        return {"i2t": self.i2t, "t2i": self.t2i}[direction]

    def __repr__(self) -> str:
        held = (f"{direction}: {len(self[direction])} lists of {self[direction].h}" for direction in DIRECTIONS)
        return f"NegativeTable({', '.join(held)})"

    def own(self, direction: Direction) -> Positives:
        """Group the true pairs by anchor."""
        if self.positives is None:
            raise ValueError("the table does not say which pairs are true; give it `positives`.")
        return positives_of(direction, self.positives, len(self[direction]))

    @property
    def sha256(self) -> dict[str, str]:
        """The hash of each direction's lists, from the manifest where it has one."""
        if "sha256" in said_of(self.manifest, "i2t"):
            return table_hashes(self.manifest)
        return {"i2t": content_sha256(self.i2t), "t2i": content_sha256(self.t2i)}

    def to_arrow(self, direction: Direction) -> pa.Table:
        """Make a row an anchor, with the columns of the table's files."""
        lists = to_arrow(self[direction])
        return lists.drop_columns("bound") if self[direction].bound is not None else lists

    def to_pandas(self, direction: Direction) -> Any:
        """Make a pandas.DataFrame, a row a negative: anchor_id, rank (from 1), negative_id, score, positive_score."""
        return data_frame(negatives_of(self[direction]))

    def screen(
        self,
        *,
        texts: Sequence[str] | None = None,
        images: Float32[np.ndarray, "images D"] | None = None,
        captions: Float32[np.ndarray, "captions D"] | None = None,
        positives: Path | str | Pairs | None = None,
        pair_probabilities: Path | str | Float32[np.ndarray, " captions"] | None = None,
        **rules: Any,
    ) -> ScreenedTable:
        """Judge the negatives by the rules of [screen] (`aoq.pipeline.config.screen`), given what these have to know.

        `texts` are the captions', `images` and `captions` unit vectors of one model, `positives` more pairs known to
        match and `pair_probabilities` how probably each caption's own pair is right: files, or arrays.
        """
        from aoq.pipeline.tables.screens.screened import screen_table

        given = {"positives": positives, "pair_probabilities": pair_probabilities}
        return screen_table(self, rules, texts=texts, images=images, captions=captions, **given)

    def save(self, folder: Path | str, *, overwrite: bool = False, **provenance: Any) -> None:
        """Write the table, whole or not at all, as the new folder `folder`; `read_table` reads it again.

        `provenance` goes into the manifest: `dataset` (a fingerprint), `teacher`, or whatever else is to be told.
        With `overwrite` a table that is there is replaced.
        """
        if self.positives is None:
            raise ValueError("a saved table says which pairs are true, and this one does not; give it `positives`.")
        for direction in DIRECTIONS:
            if not self[direction].h:
                raise ValueError(f"a table to save has both directions, and {direction} was not mined; mine both.")
        lists = {direction: self[direction] for direction in DIRECTIONS}
        save_lists(Path(folder), lists, self.positives, {**self.manifest, **provenance}, overwrite=overwrite)


def read_table(folder: Path | str, *, dataset: str | None = None) -> NegativeTable:
    """Read the table in a folder; with `dataset`, refuse one mined on a training split of another fingerprint."""
    folder = Path(folder)
    manifest = read_manifest(folder, dataset=dataset)
    i2t, t2i = (read_lists(folder / f"{direction}.parquet") for direction in DIRECTIONS)
    return NegativeTable(i2t, t2i, manifest, read_positives(folder))


def negatives_of(lists: NegativeLists) -> dict[str, np.ndarray]:
    """Columns with a row a negative, list by list."""
    anchors, places = np.nonzero(lists.negative_ids >= 0)
    return {
        "anchor_id": anchors.astype(np.int32),
        "rank": (places + 1).astype(np.int32),
        "negative_id": lists.negative_ids[anchors, places],
        "score": lists.scores[anchors, places],
        "positive_score": lists.positive_score[anchors],
    }


def data_frame(columns: Mapping[str, np.ndarray]) -> Any:
    """The columns as a pandas.DataFrame."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ImportError("a data frame needs pandas, which is not installed: `pip install pandas`.") from None
    return pandas.DataFrame(columns)
