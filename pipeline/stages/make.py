"""What makes each stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aoq.pipeline.build import Build
from aoq.pipeline.engine import Engine
from aoq.pipeline.stages.data import make_dataset, make_prepared, make_world
from aoq.pipeline.stages.embeddings import make_embeddings
from aoq.pipeline.stages.evaluation import make_evaluation
from aoq.pipeline.stages.hard_negatives import make_hard_negatives
from aoq.pipeline.stages.report import make_report
from aoq.pipeline.stages.screen import make_screen
from aoq.pipeline.stages.study import make_study
from aoq.pipeline.stages.training import make_training

MAKERS: dict[str, Callable[[Any, Build, Engine], None]] = {
    "world": make_world,
    "prepared": make_prepared,
    "dataset": make_dataset,
    "first_round": partial(make_training, "first_round"),
    "embeddings": make_embeddings,
    "hard_negatives": make_hard_negatives,
    "screen": make_screen,
    "control": partial(make_training, "control"),
    "second_round": partial(make_training, "second_round"),
    "evaluation": make_evaluation,
    "report": make_report,
    "study": make_study,
}
"""Makers by stage; each takes the chain, a report's the planned report and a study's the planned study."""
