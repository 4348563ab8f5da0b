"""Two networks trained on pairs of which some may be wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int32

from aoq.models import MODELS, build_model
from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import Build
from aoq.pipeline.config.co_teaching import CoTeaching
from aoq.pipeline.data.clean_pairs import CLEAN_PAIRS, read_clean_pairs
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.retrieval import ensemble, evaluate_similarity
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.produce.inputs import check_inputs, model_options, open_pairs, open_true_train_split
from aoq.pipeline.progress import show_progress
from aoq.pipeline.training.co_teaching.loop import co_teach
from aoq.pipeline.training.loop import Run


def co_teach_networks(chain: Chain, section: CoTeaching, build: Build, engine: Engine) -> None:
    """Both networks and what they hold clean; where the wrong pairs are known, how many of them were found."""
    device, seed = engine.torch_device(), chain.experiment.seed
    torch.manual_seed(seed)  # the initial weights of one, then of the other, and all dropout follow from it
    train_pairs, dev_pairs = open_pairs(chain, "train"), open_pairs(chain, "dev")
    name, options = chain.experiment.model.name, model_options(chain)
    for pairs in (train_pairs, dev_pairs):
        check_inputs(MODELS[name], pairs)

    def validate(models: Sequence[MatchingModel]) -> dict[str, float]:
        similarities = [similarity_matrix(model, dev_pairs, device) for model in models]
        return evaluate_similarity(ensemble(similarities), dev_pairs.split.image_of)

    with show_progress(f"{chain.experiment.name} co-teaching") as report:
        build.notes |= co_teach(
            (build_model(name, **options), build_model(name, **options)),
            {"name": name, "options": options},
            train_pairs,
            section,
            validate,
            seed=seed,
            run=Run(build.directory, device, engine.checkpoint_steps, engine.tensorboard, report),
        )
    true = open_true_train_split(chain).image_of
    if (train_pairs.split.image_of != true).any():
        build.notes["suspected"] = _suspected(build, section, train_pairs.split.image_of, true)


def _suspected(
    build: Build, section: CoTeaching, seen: Int32[np.ndarray, " captions"], true: Int32[np.ndarray, " captions"]
) -> dict[str, float]:
    """Of the wrong pairs, and of the right ones, the share that is not held clean."""
    suspected = read_clean_pairs(build.directory / CLEAN_PAIRS, len(seen)) <= section.threshold
    wrong = seen != true
    return {"of_wrong_pairs": float(suspected[wrong].mean()), "of_right_pairs": float(suspected[~wrong].mean())}
