"""VLM2Vec's data, in MMEB's layout: qry, qry_image_path, pos_text, pos_image_path, neg_text, neg_image_path.

A row per pair, with lists of negatives, as the parser `mmeb_neg` of VLM2Vec's branch b3 reads them. (Its main branch
reads one negative per row, and trains on none.) The text of a picture has a token in the picture's place, and MMEB's
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Integer

from aoq.pipeline.tables.exchange.outgoing import Chunk, Names, Outgoing, Written
from aoq.pipeline.tables.exchange.parquet import Anchors, lists_of, pair_rows, write_chunks

QUERY = "<|image_1|> Find an image caption describing the given image."
QUESTION = "Find me an everyday image that matches the given caption: "
DOCUMENT = "<|image_1|> Represent the given image."
LOAD = """
$folder:  # in the trainer's dataset config: branch b3, as the main branch trains on no negatives
  {dataset_parser: mmeb_neg, dataset_name: $folder, subset_name: default, dataset_split: train, image_dir: "",
   num_hardneg: 4, weight: 1}
"""


def write_vlm2vec(outgoing: Outgoing, folder: Path) -> Written:
    """Write the rows; an anchor without positives or negatives is left out."""
    folder.mkdir()
    queries, documents = _columns(outgoing.anchors, QUERY), _columns(outgoing.candidates, DOCUMENT)
    if outgoing.candidates.are_pictures and not outgoing.anchors.are_pictures:
        queries = _columns(outgoing.anchors, QUERY, before=QUESTION)

    def table(chunk: Chunk) -> tuple[Anchors, pa.Table]:
        anchors, rows, _ = pair_rows(chunk, needed=1)
        negatives = rows[:, 1:][rows[:, 1:] >= 0]
        lengths = (rows[:, 1:] >= 0).sum(axis=1)
        columns = {
            **_take(("qry", "qry_image_path"), queries, anchors),
            **_take(("pos_text", "pos_image_path"), documents, rows[:, 0]),
            **{
                name: lists_of(values, lengths)
                for name, values in _take(("neg_text", "neg_image_path"), documents, negatives).items()
            },
        }
        return anchors, pa.table(columns)

    return write_chunks(table, outgoing, folder / "train.parquet")


def _columns(side: Names, instruction: str, before: str = "") -> tuple[pa.Array, pa.Array]:
    """Make each row's text and path; a picture has both, a text no path."""
    texts = [instruction] * len(side.values) if side.are_pictures else [before + text for text in side.values]
    paths = side.values if side.are_pictures else [""] * len(side.values)
    return pa.array(texts, pa.large_string()), pa.array(paths, pa.large_string())


def _take(
    names: Sequence[str], columns: tuple[pa.Array, pa.Array], rows: Integer[np.ndarray, " some"]
) -> dict[str, pa.Array]:
    return {name: column.take(pa.array(rows)) for name, column in zip(names, columns, strict=True)}
