"""Producers, one function per stage: read the upstream artefacts, compute, and fill the work directory."""

from collections.abc import Callable
from typing import Any

from aoq.pipeline.build import Build
from aoq.pipeline.engine import Engine
from aoq.pipeline.produce.comparisons import produce_report, produce_study
from aoq.pipeline.produce.data import produce_dataset, produce_prepared, produce_world
from aoq.pipeline.produce.evaluation import produce_evaluation
from aoq.pipeline.produce.tables import produce_embeddings, produce_hard_negatives, produce_screen
from aoq.pipeline.produce.training import produce_control, produce_first_round, produce_second_round

PRODUCERS: dict[str, Callable[[Any, Build, Engine], None]] = {
    "world": produce_world,
    "prepared": produce_prepared,
    "dataset": produce_dataset,
    "first_round": produce_first_round,
    "embeddings": produce_embeddings,
    "hard_negatives": produce_hard_negatives,
    "screen": produce_screen,
    "control": produce_control,
    "second_round": produce_second_round,
    "evaluation": produce_evaluation,
    "report": produce_report,
    "study": produce_study,
}
"""Producers by stage; each takes the chain, a report the planned report and a study the planned study."""
