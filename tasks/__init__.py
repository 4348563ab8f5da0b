"""The Luigi tasks: `luigi --module tasks SecondRound --experiment demo`."""

from aoq.pipeline.settings import log_to_console, read_shipped_settings
from aoq.tasks.comparisons import Ablation, Report
from aoq.tasks.stages import (
    Control,
    Dataset,
    DemoWorld,
    Embeddings,
    Evaluation,
    FirstRound,
    HardNegatives,
    Screen,
    SecondRound,
)

read_shipped_settings()
log_to_console()

__all__ = [
    "Ablation",
    "Control",
    "Dataset",
    "DemoWorld",
    "Embeddings",
    "Evaluation",
    "FirstRound",
    "HardNegatives",
    "Report",
    "Screen",
    "SecondRound",
]
