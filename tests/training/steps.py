"""One step in float64, at once or in parts: what it yields, to compare."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import distributed as dist

from aoq.models import MODELS, build_model, naaf
from aoq.models.layers import has_batch_norm
from aoq.pipeline.config.losses import AdaptiveLoss, LossSection, OnlineLoss
from aoq.pipeline.config.training import Constraints, Distillation
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.losses.info_nce import LearntTemperature
from aoq.pipeline.training.batches import matched, read_batch, score_all
from aoq.pipeline.training.chunks import UNCUT, Cut
from aoq.pipeline.training.processes import Processes
from aoq.pipeline.training.step import constrain, make_objective, take_step
from tests.training.conftest import CPU, SMALL, sampler_of

LOSSES = {
    "online": OnlineLoss(name="online"),
    "table": AdaptiveLoss(name="adapoffquin"),
    "companions": AdaptiveLoss(name="adapoffquin", companions="anchors"),
    "learnt": LossSection.model_validate({"name": "infonce"}),
    "columns": AdaptiveLoss(name="adapofftri"),
    "taught": AdaptiveLoss(name="adapoffquin"),
}
TAUGHT = Distillation(kind="both", negatives=2)
BOTH = Constraints.model_validate({"ccr": {"weight": 0.1, "margin": 0.2}, "ccs": {"weight": 1.0, "margin": 0.1}})
WITHOUT_DRAWS = {
    "vsrn": {"caption_dropout": 0.0},
    "sgr": {"regions": 4, "dropout": 0.0},
    "saf": {"regions": 4, "dropout": 0.0},
    "vse_infinity": {"size_augmentation": 0.0},
    "imram": {"steps": 2},
}
"""What models need, and that leaves nothing to chance, which differs by process."""
ROWS = np.arange(0, 48, 5, dtype=np.int32)


class Described(MODELS["vsepp"]):
    """An auxiliary loss on what the encoder keeps for it."""

    def __init__(self):
        super().__init__(**SMALL)
        self.describe = torch.nn.Linear(8, 24)

    def encode_images(self, images):
        code = super().encode_images(images)
        return replace(code, context=code.vectors.tanh())

    def auxiliary_loss(self, images, captions):
        return torch.nn.functional.cross_entropy(self.describe(images.context), captions.words[:, 1])


def fresh(name):
    torch.manual_seed(0)
    if name == "described":
        return Described().double().train()
    return build_model(name, **SMALL, **WITHOUT_DRAWS.get(name, {})).double().train()


NORMED = [name for name in MODELS if has_batch_norm(build_model(name, **SMALL))]
NAMES = [*(name for name in MODELS if name not in NORMED), "described"]
CASES = [(name, loss) for name in NAMES for loss in LOSSES]


def let_thresholds_wait(monkeypatch, waiting):
    """The one exception: NAAF computes its thresholds on the CPU, after the backward pass."""
    observe = naaf.NAAF.observe

    def wait(*given):
        with waiting():
            observe(*given)

    monkeypatch.setattr(naaf.NAAF, "observe", wait)


def drawn(pairs, sampler, loss, rows=ROWS):
    rng = np.random.default_rng(3)
    if sampler is None:
        return matched(pairs, rows)
    if loss == "columns":
        sampler = sampler_of(pairs, negatives=2)
    draw = sampler.draw_for(LOSSES[loss].draws, rows, rng, 0)
    return sampler.with_lists(draw, TAUGHT.listed, rng) if loss == "taught" else draw


def read(pairs, draw, part=slice(None), dtype=torch.float64):
    """The batch, in float64 unless told otherwise."""
    batch = read_batch(pairs, draw, part)
    if draw.listed_scores is not None:
        vectors = np.random.default_rng(5).random((2, len(pairs.split.captions), 7), "f4")
        stores = EmbeddingStore(*vectors), EmbeddingStore(*vectors[::-1])
        scores = torch.stack([score_all(store, draw.groups[0]) for store in stores])
        batch = replace(batch, teacher_scores=scores.double(), listed_scores=batch.listed_scores.double())
    return replace(batch, images=replace(batch.images, features=batch.images.features.to(dtype)))


def step(
    pairs, draw, name, loss, cut=UNCUT, *, device=CPU, dtype=torch.float64, pace=None, lr=0.0, unwaited=nullcontext
):
    """The figures and gradients of one step and the state after it; the process reads its part of the batch."""
    model = fresh(name).to(device, dtype)
    learnt = LearntTemperature().double().to(device) if loss == "learnt" else None
    numbers = learnt or dict
    if learnt is not None and not cut.processes.leads:
        numbers = lambda: {name: number.detach() for name, number in learnt().items()}  # noqa: E731
    objective, size = make_objective(LOSSES[loss], pace, numbers), draw.groups.shape[1]
    objective = replace(objective, distillation=TAUGHT if loss == "taught" else None)
    batch = read(pairs, draw, cut.rows(size), dtype).to(device)
    if model.attends:
        uniform = np.random.default_rng(4).random((2, 2, size))
        objective = replace(objective, aligned_loss=partial(constrain, constraints=BOTH, uniform=uniform))
    parameters = dict(model.named_parameters()) | dict([] if learnt is None else learnt.named_parameters())
    torch.manual_seed(1)
    with unwaited():
        figures = take_step(model, torch.optim.Adam(parameters.values(), lr=lr), batch, objective, 2.0, cut)
    figures = {name: one if isinstance(one, torch.Tensor) else torch.tensor(one) for name, one in figures.items()}
    gradients = {name: one.grad for name, one in parameters.items() if one.grad is not None}
    return {"figures": figures, "gradients": gradients, "state": model.state_dict()}


def one_of_several(rank, count, folder, pairs, cases):
    """Take these steps with the others, the first one also alone, and leave what they yield."""
    torch.set_num_threads(1)
    naaf.FEWEST_WORDS = 4
    if rank == 0:
        torch.save([step(pairs, *case) for *case, _ in cases], folder / "alone.pt")
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=count)
    processes = Processes(rank, count)
    results = [step(pairs, *case, cut=Cut(chunk, processes)) for *case, chunk in cases]
    try:
        processes.check_same({"code": "same", "data": str(rank)})
    except ValueError as error:
        results.append(str(error))
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()
