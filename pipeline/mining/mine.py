"""Mine vectors in memory (`aoq.hard_negatives`), or into the folder of a table, in units of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np
from jaxtyping import Integer
from numpy.typing import ArrayLike

from aoq.pipeline.files import digest
from aoq.pipeline.reading import host_array
from aoq.pipeline.search import units
from aoq.pipeline.search.backends import choose_backend, run_search, search_problem
from aoq.pipeline.search.lists import NegativeLists, from_arrow
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.tables.files import table_directions
from aoq.pipeline.tables.table import NegativeTable
from aoq.pipeline.tables.writing import write_table
from aoq.pipeline.vectors import Vectors, in_float32

if TYPE_CHECKING:
    import torch

Array: TypeAlias = "ArrayLike | torch.Tensor"
"""numpy, a tensor on any device, or nested lists."""


def hard_negatives(
    images: Array | None = None,
    captions: Array | None = None,
    image_of: Array | None = None,
    *,
    queries: Array | None = None,
    documents: Array | None = None,
    positives: Array | None = None,
    h: SupportsIndex | Sequence[SupportsIndex] = 50,
    metric: str = "cosine",
    search: str = "auto",
) -> NegativeTable:
    """Find the h hardest negatives of every row of both sides, exactly.

    Give `images` (I, D), `captions` (C, D) and `image_of` (C,), the image row of each caption, -1 for none. Without
    `image_of`, caption n belongs to image n. Or give any corpus: `queries` (Q, D), `documents` (N, D) and `positives`:
    pairs (query, document), as an (n, 2) array or a list of tuples, or the document rows of each query, as a list of
    arrays or lists. A query may have several positives, a document none. Without `documents` the queries are one set:
    none is its own negative, positives count both ways, and both directions have the same lists: `t2i` is `i2t`.

    `h` is the length of the lists, or a pair: for lists of images (queries), and for lists of captions
    (documents); 0 leaves a direction out. `metric="cosine"` divides vectors by their norms, "dot" leaves them
    unchanged. `search` is a backend of `aoq mine`; all but `ivf`, `hnsw` and `faiss:…` are exact. Tensors may lie on
    any device; the search runs on a GPU if torch sees one, else on the CPU.

    In the result `i2t` holds the lists of images (queries), `t2i` those of captions (documents): `negative_ids` and
    `scores` (rows, h), score falling, then id rising, padded with -1 and NaN where an anchor has fewer negatives;
    `positive_score` (rows,) is that of a row's lowest positive, NaN if it has none. The lists equal those that
    `aoq mine` writes for the same vectors.

    Raises ValueError if vectors are not finite (for cosines, or zero), sides do not fit each other, or no anchor has h
    negatives.

    >>> table = hard_negatives([[1.0, 0.0], [0.0, 1.0]], [[0.8, 0.6], [0.0, 1.0], [1.0, 0.0]], [0, 1, 1], h=1)
    >>> table.i2t.negative_ids.tolist(), table.t2i.negative_ids.tolist()
    ([[2], [0]], [[1], [0], [0]])
    """
    if metric not in ("cosine", "dot"):
        raise ValueError(f"metric is {metric!r}; known are 'cosine' and 'dot'.")
    if (images is None) == (queries is None):
        raise ValueError("give images with captions and image_of, or queries with documents and positives.")
    if queries is None:
        if documents is not None or positives is not None or captions is None:
            raise ValueError("images go with captions and image_of; documents and positives go with queries.")
        one, other = _vectors(images, "images", metric), _vectors(captions, "captions", metric)
        pairs = _caption_images(image_of, len(one.rows), len(other.rows))
        sides = ["images", "captions"]
    else:
        if captions is not None or image_of is not None:
            raise ValueError("queries go with documents and positives; captions and image_of go with images.")
        one = _vectors(queries, "queries", metric)
        other = one if documents is None else _vectors(documents, "documents", metric)
        pairs = _document_pairs(positives, len(one.rows), len(other.rows), alone=documents is None)
        sides = ["queries"] if documents is None else ["queries", "documents"]
    alone = len(sides) == 1
    depths = _depths(h, both=not alone)
    problem = Problem(one.rows, other.rows, pairs, *depths, one_set=alone, known_norms=(one.norms, other.norms))
    result = search_problem(problem, search=search)
    lists = {d: result.lists.get(d) or _empty_lists(problem.size(d).anchors) for d in DIRECTIONS}
    about = {d: {"h": lists[d].h, "search": result.search, **result.guarantees[d]} for d in problem.directions}
    teacher = {"vectors": "in memory", "metric": metric, "normalised": metric == "cosine"}
    manifest = {"teacher": teacher, "directions": about}
    manifest |= {"sides": sides} if queries is not None else {}
    return NegativeTable(lists["i2t"], lists["i2t" if alone else "t2i"], manifest, problem.positives)


def _vectors(values: Any, name: str, metric: str) -> Vectors:
    """Convert to float32 in memory, of norm 1 for a cosine."""
    array = host_array(values, name)
    if array.ndim != 2 or 0 in array.shape or not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{name} are {array.dtype} of shape {array.shape}; a row of floats for each item is needed.")
    return in_float32(array, name, normalise=metric == "cosine")


def _depths(h: Any, *, both: bool) -> tuple[int, int]:
    lengths = host_array(h, "h")
    two = lengths if lengths.ndim else np.array([h, h if both else 0])
    if two.shape != (2,) or two.dtype.kind not in "iu" or two.min() < 0 or not two.any():
        raise ValueError(
            f"h is {h!r}; give a positive number, or two, one for the lists of each side; one of them may be 0."
        )
    if two[1] and not both:
        raise ValueError(f"h is {h!r}, but queries alone have one side; give one number.")
    return int(two[0]), int(two[1])


def _caption_images(image_of: Any, images: int, captions: int) -> Integer[np.ndarray, " captions"]:
    if image_of is None:
        if images != captions:
            raise ValueError(f"{captions} captions and {images} images do not form pairs; give image_of.")
        return np.arange(captions)
    rows = host_array(image_of, "image_of")
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"image_of is {rows.dtype} of shape {rows.shape}; an image row for each caption is needed.")
    return rows


def _document_pairs(positives: Any, queries: int, documents: int, *, alone: bool) -> Integer[np.ndarray, "pairs 2"]:
    """Return rows (query, document); queries without documents (`alone`) need no positives."""
    if positives is None and not alone:
        raise ValueError("give the true documents of each query as positives; [] if there are none.")
    values: Any = [] if positives is None else positives
    if hasattr(values, "__array__"):  # an array of numpy, torch or pandas
        values = host_array(values, "positives")
    if not isinstance(values, np.ndarray) or values.dtype == object:
        values = [list(one) if isinstance(one, set) else one for one in values]
        if all(isinstance(one, tuple) and len(one) == 2 for one in values):
            values = np.array(values)
    if isinstance(values, np.ndarray):
        pairs = values if values.size else np.empty((0, 2), np.int64)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
            raise ValueError(
                f"positives are {pairs.dtype} of shape {pairs.shape}; give integer rows (query, document)."
            )
    else:
        lists = [host_array(rows, "positives") for rows in values]
        if len(lists) != queries or any(one.ndim != 1 or (one.size and one.dtype.kind not in "iu") for one in lists):
            raise ValueError(
                f"positives are {len(lists)} items and there are {queries} queries; give a list of document rows for "
                "each query, or an (n, 2) array of rows (query, document)."
            )
        if all(isinstance(rows, list) and len(rows) == 2 and rows[0] < queries for rows in values):
            raise ValueError(
                f"positives are {queries} lists of two numbers for {queries} queries: pairs, or two documents of each "
                "query. Give pairs as tuples or an (n, 2) array, and documents as a list of arrays."
            )
        rows = np.repeat(np.arange(queries), [*map(len, lists)])
        pairs = np.column_stack([rows, np.concatenate(lists).astype(np.int64)])
    for side, rows, count in zip(("queries", "documents"), pairs.T, (queries, documents), strict=True):
        if len(outside := rows[(rows < 0) | (rows >= count)]):
            raise ValueError(f"positives name row {outside[0]} of the {side}, whose rows are 0 to {count - 1}.")
    return pairs


def _empty_lists(rows: int) -> NegativeLists:
    """Return lists of length 0, for a direction that was left out."""
    empty = np.empty((rows, 0), np.float32)
    return NegativeLists(empty.astype(np.int32), empty, np.full(rows, np.nan, np.float32))


def mine(
    problem: Problem,
    *,
    search: str | units.Backend,
    provenance: Mapping[str, Any],
    work: Path,
    output: Path,
    of: str = "",
    recall_floor: float = units.RECALL_FLOOR,
    indexes: Path | None = None,
    run: units.Runner[Problem] = units.run_in_process,
    progress: units.Progress = lambda done, total: None,
) -> None:
    """Write the table to the folder `output`; finished units of the same search in `work` are reused.

    The caller deletes the units once the table is published, so a kill before then repeats no search. An
    approximate search keeps its indexes, as artefacts, below `indexes`, by default in `work`.
    `search`, `recall_floor` and `run` are those of `aoq.pipeline.search.backends.run_search`. `provenance` (dataset
    fingerprint, teacher, ...) goes into every footer and the manifest. `of` identifies the problem if its vectors were
    hashed already.
    """
    provenance = {"sides": ["items"], **provenance} if problem.one_set else provenance
    if problem.directions != table_directions(provenance):
        raise ValueError("a table has lists of both directions; h_captions and h_images must be at least 1.")
    backend = choose_backend(search, recall_floor, indexes) if isinstance(search, str) else search
    store = units.Folder.opened(work, digest([backend.name, provenance, of or problem.sha256]))
    result = run_search(problem, backend, store, recall_floor=recall_floor, run=run, progress=progress)
    lists = {
        direction: (
            {"h": problem.size(direction).h, "search": result.search, **result.guarantees[direction]},
            map(from_arrow, result.lists[direction]),
        )
        for direction in problem.directions
    }
    write_table(output, provenance, lists, problem.positives)
