"""The tables of a study whose every cell is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.artifact import Build
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.retrieval import Ranks, folded_ranks
from aoq.pipeline.evaluation.significance import rsum_intervals
from aoq.pipeline.planning.study import Cell, StudyPlan
from aoq.pipeline.report.study_results import Row, read_cell, summarise_study
from aoq.pipeline.report.study_table import markdown


def produce_study(plan: StudyPlan, build: Build, engine: Engine) -> None:
    """`results.parquet` (a row a training), `ranks.parquet` (a row a query), `summary.parquet` and `table.md`."""
    build.clear()
    rows = [read_cell(cell) for cell in plan.cells]
    _write(build.directory / "results.parquet", rows)
    ranks = _ranks(plan, build.directory / "ranks.parquet")
    summary = summarise_study(plan, rows)
    for model in plan.study.models:
        _add_intervals(plan, model, ranks, [line for line in summary if line["model"] == model])
    _write(build.directory / "summary.parquet", summary)
    (build.directory / "table.md").write_text(markdown(plan.study, summary), encoding="utf-8")
    build.notes["study"] = plan.study.name
    build.notes["cells"] = len(rows)


def _ranks(plan: StudyPlan, path: Path) -> dict[tuple[str, str, int], Ranks]:
    """The rank of every query in every cell, kept and written."""
    kept = {}
    with pq.ParquetWriter(path, RANKS, compression="zstd") as writer:
        for cell in plan.cells:
            similarity = np.load(cell.evaluation.path / "similarity.npy", mmap_mode="r")
            ranks = folded_ranks(similarity, _image_of(cell), folds=cell.evaluation.ingredients["folds"])
            for direction, values in (("i2t", ranks.i2t), ("t2i", ranks.t2i)):
                about = [pa.array([value] * len(values)) for value in (cell.model, cell.arm, cell.seed, direction)]
                queries = pa.array(np.arange(len(values))), pa.array(values)
                writer.write_table(pa.Table.from_arrays([*about, *queries], names=RANKS.names).cast(RANKS))
            kept[cell.model, cell.arm, cell.seed] = ranks
    return kept


RANKS = pa.schema(
    [
        ("model", pa.string()),
        ("arm", pa.string()),
        ("seed", pa.int64()),
        ("direction", pa.string()),
        ("query", pa.int32()),
        ("rank", pa.int32()),
    ]
)


def _add_intervals(plan: StudyPlan, model: str, ranks: dict[tuple[str, str, int], Ranks], lines: list[Row]) -> None:
    def of(arm: str) -> list[Ranks]:
        return [ranks[model, arm, seed] for seed in plan.study.seeds]

    baseline = plan.study.baseline
    others = {line["arm"]: of(line["arm"]) for line in lines if line["arm"] != baseline}
    image_of = _image_of(next(cell for cell in plan.cells if cell.model == model))
    found = rsum_intervals(others, of(baseline), image_of, rng=np.random.default_rng(0))
    for line in lines:
        line["rsum_gain_low"], line["rsum_gain_high"] = found.get(line["arm"], (None, None))


def _image_of(cell: Cell) -> np.ndarray:
    return open_split(cell.chain.folder, cell.chain.experiment.evaluation.split).image_of


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows with all columns that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    arrays = [pa.array([row.get(name) for row in rows]) for name in columns]
    filled = [array.cast(pa.float64()) if pa.types.is_null(array.type) else array for array in arrays]
    pq.write_table(pa.table(filled, names=columns), path, compression="zstd", write_page_checksum=True)
