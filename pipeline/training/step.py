"""One training step: encode, compare, compute the loss, backward, clip, update; and its figures for the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.optim import Optimizer

from aoq.models.base import Code, MatchingModel
from aoq.models.packing import sent
from aoq.pipeline.config.losses import Loss
from aoq.pipeline.config.training import Constraints, Distillation
from aoq.pipeline.losses import LOSSES
from aoq.pipeline.losses.aoq import online_triplet
from aoq.pipeline.losses.companions import with_companions
from aoq.pipeline.losses.contrastive_content import content_similarities
from aoq.pipeline.losses.distillation import batch_distillation, list_distillation
from aoq.pipeline.losses.hinge import NO_NEGATIVE, hinge
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.similarities import LossValue, OfflineSimilarities, Similarities, positive_pairs
from aoq.pipeline.training.batches import Batch
from aoq.pipeline.training.chunks import UNCUT, AlignedLoss, BatchScores, Cut

Figure = float | Float[Tensor, ""]
"""A number, or a tensor on the device that computed it."""


@dataclass(frozen=True)
class Objective:
    loss: Callable[[Similarities], LossValue]
    mask_positives: bool
    """True if other captions of an anchor's image are not negatives."""
    aligned_loss: AlignedLoss | None = None
    """A further loss on the codes of the anchors, already weighted."""
    pace: Callable[[Similarities], Similarities] | None = None
    """Adapts the hardness of online negatives to the model."""
    is_sparse: Callable[[], bool] = lambda: False
    """Returns whether few entries of the matrix have a gradient from this loss in this step."""
    distillation: Distillation | None = None
    """How to learn from the teachers' scores in a batch."""


def make_objective(
    loss: Loss, pace: Pace | None = None, learnt: Callable[[], Mapping[str, Tensor]] = dict
) -> Objective:
    """Make the loss with its numbers; `learnt` returns the current values of those that are learnt.

    `pace` measures the loss of the online negatives alone.
    """
    kind = LOSSES[loss.name]
    function, online = kind.function, online_triplet
    if loss.makes_triples:
        function, online = with_companions(function), with_companions(online)
    return Objective(
        lambda pairs: function(pairs, **{**loss.numbers, **learnt()}),
        loss.mask_positives,
        pace=None if pace is None else partial(pace.follow, loss=partial(online, margin=loss.online_margin)),
        is_sparse=lambda: kind.is_sparse and (pace is None or pace.is_at_hardest),
    )


def take_step(
    model: MatchingModel, optimizer: Optimizer, batch: Batch, objective: Objective, clip: float, cut: Cut = UNCUT
) -> dict[str, Tensor]:
    """Train on a batch, with the gradient's norm clipped; return its figures without waiting for the device."""
    model.train()
    value, auxiliary, observe = forward(model, batch, objective, cut)
    total = value.total if auxiliary is None else value.total + auxiliary
    norm = descend(total, optimizer, clip, cut, batch.size)
    observe()
    figures = {"loss": total, "retrieval_loss": value.total, **value.figures, "gradient_norm": norm}
    if auxiliary is not None:
        figures["auxiliary_loss"] = auxiliary
    return {name: figure.detach() for name, figure in figures.items()}


def forward(
    model: MatchingModel, batch: Batch, objective: Objective, cut: Cut = UNCUT
) -> tuple[LossValue, Float[Tensor, ""] | None, Callable[[], None]]:
    """Compute the batch's loss, the auxiliary losses to add to it, and a function that shows the model the batch.

    Call that function after the backward pass, which may repeat the forward pass and must find the model unchanged.
    The figure `positive_gap` is the mean similarity of positives less that of the batch: 0 for a collapsed model.
    """
    scores = BatchScores(model, batch.images, batch.captions, batch.size, cut)
    matrix = scores.matrix(objective.is_sparse if batch.teacher_scores is None else lambda: False)
    is_positive = positive_pairs(batch.image_rows, mask_positives=objective.mask_positives)
    if batch.guided is not None:
        is_positive = is_positive | batch.guided
    listed = 0 if batch.listed_scores is None else batch.listed_scores.shape[2] - 1
    drawn = batch.images.groups - listed
    compare = _offline_similarities if batch.excluded is None else _offline_columns
    pairs = Similarities(matrix, is_positive, compare(scores, batch, drawn) if drawn > 1 else None)
    value = objective.loss(pairs if objective.pace is None else objective.pace(pairs))
    figures = {**value.figures, "positive_gap": (matrix.diagonal().mean() - matrix.mean()).detach()}
    auxiliary = scores.auxiliary()
    if objective.aligned_loss is not None:
        aligned = scores.aligned(objective.aligned_loss)
        figures |= aligned.figures
        auxiliary = aligned.total if auxiliary is None else auxiliary + aligned.total
    if objective.distillation is not None:
        taught = _distil(objective.distillation, scores, matrix, batch, range(drawn, batch.images.groups))
        figures["distillation"] = taught.detach()
        auxiliary = taught if auxiliary is None else auxiliary + taught
    return LossValue(value.total, figures), auxiliary, partial(scores.observe, matrix.detach())


def _distil(
    distillation: Distillation, scores: BatchScores, matrix: Float[Tensor, "batch batch"], batch: Batch, listed: range
) -> Float[Tensor, ""]:
    """Compute the weighted loss on the scores of teachers, and on those of the table for the `listed` groups."""
    total, theirs, table = matrix.new_zeros(()), batch.teacher_scores, batch.listed_scores
    numbers = {name: getattr(distillation, name) for name in ("temperature", "student_temperature")}
    if table is not None:
        lists = scores.pair_lists([pair for group in listed for pair in ((0, group), (group, 0))])
        ours = torch.cat([torch.stack([matrix.diagonal(), *lists[side::2]], dim=1) for side in (0, 1)])
    if theirs is not None:
        if distillation.positives == "one":
            theirs = theirs.masked_fill(positive_pairs(batch.image_rows, mask_positives=True), 1.0)
        total = total + batch_distillation(matrix, theirs, average=distillation.average, **numbers)
    if table is not None:
        total = total + list_distillation(ours, table.flatten(0, 1), kind=distillation.list_loss, **numbers)
    return distillation.weight * total


def _offline_similarities(scores: BatchScores, batch: Batch, groups: int) -> OfflineSimilarities:
    """Score the aligned pairs of AOQ eqs. (3) to (5); derived pairs that are true pairs are not negatives."""
    anchor, offline, companion = range(3)
    wanted = [(anchor, offline), (offline, anchor), (offline, offline), (companion, companion)]
    to_caption, to_image, *derived = scores.pair_lists(wanted[: 2 if groups == 2 else 4])
    if batch.corresponding is not None:
        derived = [similarity.masked_fill(batch.corresponding, NO_NEGATIVE) for similarity in derived]
    return replace(OfflineSimilarities(to_caption, to_image, *derived), match_probability=batch.match_probability)


def _offline_columns(scores: BatchScores, batch: Batch, groups: int) -> OfflineSimilarities:
    """Score the drawn groups with all anchors, or each with its own where `excluded` has a column per group."""
    drawn, excluded = range(1, groups), batch.excluded
    assert excluded is not None
    if excluded.shape[2] == len(drawn):
        lists = scores.pair_lists([*((0, group) for group in drawn), *((group, 0) for group in drawn)])
        columns = [torch.stack([*side], dim=1) for side in (lists[: len(drawn)], lists[len(drawn) :])]
    else:
        to_captions, to_images = zip(*((scores.between(0, n), scores.between(n, 0).T) for n in drawn), strict=True)
        columns = [torch.cat(to_captions, dim=1), torch.cat(to_images, dim=1)]
    captions, images = (side.masked_fill(mask, NO_NEGATIVE) for side, mask in zip(columns, excluded, strict=True))
    return OfflineSimilarities.of_columns(captions, images, len(drawn))


def descend(total: Tensor, optimizer: Optimizer, clip: float, cut: Cut, size: int) -> Float[Tensor, ""]:
    """Backward, add up the gradients of all processes, clip, update; return the gradient's norm before clipping."""
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    parameters: list[nn.Parameter] = [one for group in optimizer.param_groups for one in group["params"]]
    # Where each process computed the whole batch, the leader's gradients count.
    cut.processes.add_up_gradients(parameters, counts=cut.sharing(size).are_several or cut.processes.leads)
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    return norm


def constrain(
    model: MatchingModel,
    images: Code,
    captions: Code,
    rows: slice,
    *,
    constraints: Constraints,
    uniform: Float64[np.ndarray, "directions 2 batch"],
) -> LossValue:
    """Sum the weighted terms over matched pairs and directions; the figures `ccr` and `ccs` are not weighted.

    Each direction of attention draws by two `uniform` numbers per pair of the batch, the same in every part of it.
    """
    total = images.vectors.new_zeros(())
    figures = dict.fromkeys(constraints.names, total)
    for direction, attention in enumerate(model.fragment_attention(images, captions)):
        drawn = sent(torch.from_numpy(uniform[direction][:, rows]), total.device)
        attended, others = content_similarities(attention, drawn)
        for name in constraints.names:
            numbers = getattr(constraints, name)
            value = hinge(attended, others[name], margin=numbers.margin).sum()
            total = total + numbers.weight * value
            figures[name] = figures[name] + value.detach()
    return LossValue(total, figures)


class Window:
    """Means of figures over some steps. Those on a device stay there until they are read: one transfer per figure."""

    def __init__(self) -> None:
        self._figures: dict[str, list[Figure]] = {}
        self._started, self.steps = time.perf_counter(), 0

    def add(self, figures: Mapping[str, Figure]) -> None:
        self.steps += 1
        for name, value in figures.items():  # copied: learnt numbers keep changing
            self._figures.setdefault(name, []).append(value.clone() if isinstance(value, Tensor) else value)

    def means(self) -> dict[str, float]:
        means = {}
        for name, values in self._figures.items():
            tensors = [value for value in values if isinstance(value, Tensor)]
            numbers = torch.stack(tensors).tolist() if tensors else [*map(float, values)]
            means[name] = round(sum(numbers) / self.steps, 6)
        return means

    @property
    def steps_per_second(self) -> float:
        return self.steps / (time.perf_counter() - self._started)
