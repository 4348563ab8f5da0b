"""Train one model in a round: its loss of each epoch, the pace of its negatives, and the collapse detector."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor

from aoq.models.base import Captions, Images, MatchingModel
from aoq.pipeline.config.losses import Offline, online_version
from aoq.pipeline.data.batches import PairData, epoch_order, step_rng
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.losses import collapsed_cost
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.similarities import duplicate_matches, guided_matches
from aoq.pipeline.training.batches import Batch, matched, read_batch, read_items, score_all, score_batch
from aoq.pipeline.training.loop import Loop
from aoq.pipeline.training.metrics import CollapseDetector, means_by_epoch, read_metrics
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.step import Figure, Objective, constrain, make_objective, take_step

logger = logging.getLogger(__name__)

_Drawn = tuple[Batch, list[tuple[Images, Captions]], np.random.Generator, dict[str, float]]
"""A batch, its anchors as each teacher's model reads them, its generator after drawing, and figures about the draw."""


@dataclass(kw_only=True, eq=False, repr=False)
class Trainer(Loop):
    """Trains one model through the epochs of a round."""

    sampler: Sampler | None
    mined: Callable[[int], Int32[np.ndarray, " pairs"]] | None = None
    """Orders the captions of an epoch that draws; by default they come at random."""
    guide: EmbeddingStore | None = None
    """A teacher's embeddings, which exclude in-batch negatives in every epoch."""
    guiding: tuple[float | None, float | None] = (None, None)
    """The margin of `guided_matches`, and the least cosine of `duplicate_matches`."""
    teacher_embeddings: Sequence[EmbeddingStore] = ()
    """Embeddings that score the pairs of every batch, also in a warm-up."""
    teacher_models: Sequence[tuple[MatchingModel, PairData]] = ()
    """Teachers without embeddings, in eval mode, with the split as each reads it; they score by a forward pass."""
    collapse: CollapseDetector = field(default_factory=CollapseDetector)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pace = Pace(self.schedule.loss.online_margin) if self.schedule.is_paced else None
        # Steps ask for the order of each pass again.
        self._mined_order = None if self.mined is None else lru_cache(maxsize=2)(self.mined)
        if self.schedule.start_up is not None and self.pace is None:
            logger.info("start_up is ignored with loss %r, which has no hardest negatives", self.schedule.loss.name)

    def train_epoch(self) -> None:
        state, training = self.state, self.schedule
        loss = training.loss
        if state.epoch < len(training.warmup):
            loss = online_version(loss, training.warmup[state.epoch])
        if loss.needs_table and self.sampler is None:
            raise ValueError(f"loss {loss.name!r} draws from a negative table, but there is none")
        learns = self.learnt is not None and loss is training.loss  # a warm-up has numbers of its own
        objective = make_objective(loss, self.pace, self._loss_numbers if learns else dict)
        objective = replace(objective, distillation=training.distillation)
        self._captions(state.epoch, state.step)  # orders them before threads ask for it together
        make = partial(self._make, state.epoch, loss.draws)
        with closing(self.windows(0, self.steps, make, partial(self._step, objective))) as windows:
            for window in windows:
                means = window.means()
                can_pace = loss.takes_pace and self.pace is None
                has_collapsed = self.collapse.observe(loss.name, means, steps=window.steps, can_pace=can_pace)
                self.record(window, {"loss_name": loss.name, "collapsed": has_collapsed})
        if self.pace is not None:
            state.hardness.append(round(self.pace.share, 2))
            if loss.takes_pace:  # not a warm-up on all negatives
                logger.info("epoch %d: online negatives are %s", state.epoch + 1, self.pace)
        if self.learnt is not None:
            state.learnt.append(self.learnt.values())
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in state.learnt[-1].items())
            logger.info("epoch %d: learnt %s", state.epoch + 1, numbers)

    def _captions(self, epoch: int, step: int) -> Int32[np.ndarray, " batch"]:
        """Return the captions of a step. After the warm-up the captions are ordered anew."""
        warm, size = len(self.schedule.warmup), self.schedule.batch_size
        begun = 0 if epoch < warm else warm  # the epoch in which this run of passes began
        number, place = divmod((epoch - begun) * self.steps + step, self.pass_steps)
        if self._mined_order is None or epoch < warm:
            passes = -(-begun * self.steps // self.pass_steps)
            order = epoch_order(self.pairs.split.caption_count, seed=self.seed, epoch=passes + number)
        else:
            order = self._mined_order(number)
        return order[place * size :][:size]

    def _make(self, epoch: int, offline: Offline, step: int) -> _Drawn:
        """Make the batch of a step, as a pure function of (seed, epoch, step)."""
        training, pairs = self.schedule, self.pairs
        rng = step_rng(seed=self.seed, epoch=epoch, step=step)
        captions = self._captions(epoch, step)
        draw = matched(pairs, captions)
        if self.sampler is not None:
            # Epochs of the sampler count from the first after the warm-up, which draws for lists alone.
            drawing = epoch - len(training.warmup)
            draw = self.sampler.draw_for(offline, captions, rng, drawing)
            if training.distillation is not None and training.distillation.listed:
                draw = self.sampler.with_lists(draw, training.distillation.listed, rng, drawing)
        anchors, size = draw.groups[0], draw.groups.shape[1]
        batch = read_batch(pairs.augmented(training.augment, self.seed, epoch), draw, self.cut.rows(size))
        figures = {"collision_rate": draw.collision_rate}
        if self.sampler is not None and (matching := self.sampler.matching(anchors)) is not None:
            batch = replace(batch, guided=torch.from_numpy(matching))
        if self.guide is not None:
            guided, (margin, least) = torch.eye(size, dtype=torch.bool), self.guiding
            if margin is not None:
                guided |= guided_matches(score_all(self.guide, anchors), margin=margin)
            if least is not None:
                vectors = self.guide.images[anchors[:, 0]], self.guide.captions[anchors[:, 1]]
                guided |= duplicate_matches(*map(torch.from_numpy, vectors), least=least)
            if offline == "triples":  # their negatives are the table's; the guide is for in-batch negatives
                triple = torch.arange(size) % (size // 3)
                guided &= torch.eye(size, dtype=torch.bool) | (triple[:, None] != triple)
            guided = guided if batch.guided is None else guided | batch.guided
            share = (int(guided.sum()) - size) / max(1, size * (size - 1))  # off the diagonal, all of which is marked
            batch, figures = replace(batch, guided=guided), {"guided_share": share, **figures}
        if self.teacher_embeddings:
            scores = torch.stack([score_all(one, anchors) for one in self.teacher_embeddings])
            batch = replace(batch, teacher_scores=scores)
        items = [read_items(pairs, anchors, self.cut.rows(size)) for _, pairs in self.teacher_models]
        if self.run.device.type == "cuda":  # pinned, so that no step waits for the copy
            batch, items = batch.pin_memory(), [(one.pin_memory(), other.pin_memory()) for one, other in items]
        return batch, items, rng, figures

    def _loss_numbers(self) -> dict[str, Tensor]:
        """Return the learnt numbers of the loss; every process computes the same loss, so only the leader learns."""
        assert self.learnt is not None
        numbers: dict[str, Tensor] = self.learnt()
        return numbers if self.run.processes.leads else {name: number.detach() for name, number in numbers.items()}

    def _step(self, objective: Objective, drawn: _Drawn) -> Mapping[str, Figure]:
        (batch, items, rng, of_draw), schedule, device = drawn, self.schedule, self.run.device
        batch, sharing = batch.to(device), self.cut.sharing(batch.size)
        scores = [] if batch.teacher_scores is None else [*batch.teacher_scores]
        for (model, _), (images, captions) in zip(self.teacher_models, items, strict=True):
            own = score_batch(model, images.to(device), captions.to(device))
            scores.append(sharing.gather_for_loss(own, batch.size))
        batch = replace(batch, teacher_scores=torch.stack(scores) if scores else None)
        # The rank is 0 for all that compute the whole batch.
        self.run.processes.seed(self.seed, self.state.epoch, self.state.step, sharing.rank)
        if schedule.constraints is not None:
            uniform = rng.random((2, 2, batch.size))
            aligned = partial(constrain, constraints=schedule.constraints, uniform=uniform)
            objective = replace(objective, aligned_loss=aligned)
        figures: dict[str, Figure] = {}
        figures |= take_step(self.models[0], self.optimizers[0], batch, objective, schedule.gradient_clip, self.cut)
        if self.pace is not None:
            figures["hardness"] = self.pace.figure
        if "plateau" not in figures:
            figures["plateau"] = collapsed_cost(objective.loss, batch.size, batch.match_probability, device)
        return figures | of_draw

    def content(self) -> dict[str, Any]:
        return {"collapse": vars(self.collapse), "pace": self.pace and self.pace.kept()}

    def restore(self, content: Mapping[str, Any]) -> None:
        self.collapse = CollapseDetector(**content["collapse"])
        self.pace = content["pace"] and Pace(**content["pace"])

    def notes(self) -> dict[str, Any]:
        notes, lines = super().notes(), read_metrics(self.run.work / "metrics.jsonl")
        (notes["final_weights_sha256"],) = notes["final_weights_sha256"]
        figures = ("offline_harder", "offline_harder_share"), ("offline_match_probability", "offline_match_probability")
        by_epoch = {f"{name}_by_epoch": means_by_epoch(lines, figure) for name, figure in figures}
        return notes | {name: values for name, values in by_epoch.items() if values}
