"""What people said of pairs of images and captions, beside a model's scores of the same pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from jaxtyping import Float, Float64, Int, Int64
from scipy.stats import kendalltau, spearmanr

COLUMNS = ("image_id", "caption_id", "score")
Judgements = tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"], Float64[np.ndarray, " pairs"]]


def read_judgements(path: Path, images: int, captions: int) -> Judgements:
    """Image rows, caption rows and scores: a .csv with these three columns, or a .parquet; a pair may come again."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a .csv or .parquet with columns {', '.join(COLUMNS)}.")
    try:
        table = pq.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
        types = (pa.int64(), pa.int64(), pa.float64())
        columns = [table[name].cast(kind).to_numpy() for name, kind in zip(COLUMNS, types, strict=True)]
    except (pa.ArrowException, KeyError) as error:
        raise ValueError(f"{path}: {error}; it needs columns {', '.join(COLUMNS)}: two rows and a number.") from None
    for name, rows, count in zip(COLUMNS, columns, (images, captions), strict=False):
        if len(rows) and not 0 <= rows.min() <= rows.max() < count:
            raise ValueError(f"{path} names {name} {rows.min()} to {rows.max()}, and the split has 0 to {count - 1}.")
    if not np.isfinite(columns[2]).all():
        raise ValueError(f"{path}: line {int(np.flatnonzero(~np.isfinite(columns[2]))[0]) + 2} has no finite score.")
    return columns[0], columns[1], columns[2]


def agreement(
    similarity: Float[np.ndarray, "images captions"],
    image_of: Int[np.ndarray, " captions"],
    judgements: Judgements,
    *,
    right_from: float,
) -> dict[str, float]:
    """Rank correlation of the model's scores with people's mean ones, in percent, and what they say of its errors.

    spearman, kendall   over all judged pairs (tau-b)
    judged              how many pairs
    false_hits          captions whose first image is another's, where people judged that pair
    right_share         of these the share that people score at least `right_from`
    """
    image, caption, given = judgements
    keys, place = np.unique(image * similarity.shape[1] + caption, return_inverse=True)
    people = np.bincount(place, weights=given) / np.bincount(place)
    scores = similarity[keys // similarity.shape[1], keys % similarity.shape[1]]
    if len(np.unique(people)) < 2 or len(np.unique(scores)) < 2:
        raise ValueError(f"{len(keys)} judged pairs, and all have one score; there is nothing to correlate.")
    first = similarity.argmax(axis=0)
    false = np.flatnonzero(first != image_of)
    wanted = first[false] * similarity.shape[1] + false
    there = np.isin(wanted, keys)
    said = people[np.searchsorted(keys, wanted[there])]
    return {
        "spearman": 100.0 * float(spearmanr(scores, people).statistic),
        "kendall": 100.0 * float(kendalltau(scores, people).statistic),
        "judged": len(keys),
        "false_hits": int(there.sum()),
        "right_share": 100.0 * float((said >= right_from).mean()) if len(said) else float("nan"),
    }
