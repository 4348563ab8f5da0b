"""The report as a page of its own."""

from __future__ import annotations

from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import Build
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.engine import Engine
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.report import PlannedReport
from aoq.pipeline.produce.inputs import open_named_pairs, open_train_split
from aoq.pipeline.training.checkpoint import load_model


def produce_report(planned: PlannedReport, build: Build, engine: Engine) -> None:
    """`report.html`."""
    build.clear()
    engine.torch_device()
    (build.directory / "report.html").write_text(render_report(planned), encoding="utf-8")


def render_report(planned: PlannedReport) -> str:
    """The page, of what is there; runs that are not evaluated yet have gaps."""
    from aoq.pipeline.report.page import render  # brings matplotlib, which no other stage needs

    return render(planned.named, open_train=open_train_split, open_model=_open_model)


def _open_model(chain: Chain) -> tuple[MatchingModel, PairData]:
    pairs = open_named_pairs(chain, chain.folder, chain.experiment.evaluation.split)
    return load_model(chain["second_round"].path / "model.safetensors"), pairs
