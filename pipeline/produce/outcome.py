"""Say what a training has reached: dev recalls above chance or near it, and what its table gave."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.folder import Split
from aoq.pipeline.evaluation.chance import chance_of
from aoq.pipeline.planning.chain import Chain

logger = logging.getLogger(__name__)

EASY = 0.2
"""Least fraction of offline negatives harder than their batch's hardest. Gains were seen from 0.38 on, none at 0.14."""


def say_outcome(chain: Chain, training: Training, notes: Mapping[str, Any], dev: Split) -> None:
    """Warn of a best epoch near chance; else say what the table gave, and how it could give more."""
    chance, reached = chance_of(dev.image_of, dev.identity), notes["metrics"]["rsum"]
    if at_chance := chance.explains(reached):
        remedy = "" if training.start_up or not training.loss.takes_pace else ' with start_up = "auto", or'
        logger.warning(
            "dev rsum %.1f is near chance (%.1f): nothing was learnt that holds for dev. Check that each line of "
            "captions belongs to its image (`aoq data check %s` finds missing lines, not exchanged ones); if so, "
            "train%s longer.",
            reached,
            chance.rsum,
            chain.folder,
            remedy,
        )
    if harder := notes.get("offline_harder_by_epoch"):
        _say_what_the_table_gave(chain.experiment, harder[-1], advise=not at_chance)


def _say_what_the_table_gave(experiment: Experiment, harder: float, *, advise: bool) -> None:
    text = f"{harder:.0%} of the offline negatives were harder to this model than the hardest of their batch"
    if advise and harder < EASY:
        text += f": the table adds little to its batches. What may help: {', or '.join(remedies(experiment))}"
    logger.info("in the last epoch, %s", text)


def remedies(experiment: Experiment) -> Iterator[str]:
    """Ways to harder offline negatives that the model can take and the experiment does not take yet."""
    if experiment.model.attends and experiment.sampling.hardness is None:
        yield 'harder ones ([sampling] hardness = "auto") if the lists hold any'
    if experiment.model.makes_embeddings and experiment.refresh is None:
        yield "those that this model finds itself ([refresh])"
    yield "a smaller batch"
