"""One function a stage: read the upstream artefacts, call what computes, fill the work directory."""

from aoq.pipeline.produce.data import produce_dataset, produce_world
from aoq.pipeline.produce.evaluation import produce_evaluation
from aoq.pipeline.produce.report import produce_report
from aoq.pipeline.produce.study import produce_study
from aoq.pipeline.produce.tables import produce_embeddings, produce_hard_negatives, produce_screen
from aoq.pipeline.produce.training import produce_control, produce_first_round, produce_second_round

__all__ = [
    "produce_control",
    "produce_dataset",
    "produce_embeddings",
    "produce_evaluation",
    "produce_first_round",
    "produce_hard_negatives",
    "produce_report",
    "produce_screen",
    "produce_second_round",
    "produce_study",
    "produce_world",
]
