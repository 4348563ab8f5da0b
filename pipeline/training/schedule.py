"""What each epoch trains on, and how fast."""

from __future__ import annotations

from aoq.pipeline.config.losses import Loss, online_version
from aoq.pipeline.config.training import Training


def epoch_loss(training: Training, epoch: int | None) -> Loss:
    """The warm-up loss of the first epochs, then the round's own; every negative in a protected start-up (None).

    A warm-up keeps the online margin and the treatment of positives of the loss it stands in for.
    """
    if epoch is None:
        return online_version(training.loss, "sum")
    if epoch >= len(training.warmup):
        return training.loss
    return online_version(training.loss, training.warmup[epoch])


def learning_rate(training: Training, epoch: int) -> float:
    return training.learning_rate * training.decay ** sum(epoch >= after for after in training.decay_epochs)
