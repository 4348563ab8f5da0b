"""Metrics on the evaluation split."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aoq.models.base import MatchingModel
from aoq.pipeline.artifact import Build
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.embedding import reserved_file, similarity_matrix
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.annotated import measure_annotations
from aoq.pipeline.evaluation.attended import find_phrases, measure_attention
from aoq.pipeline.evaluation.retrieval import ensemble, evaluate_similarity
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.produce.inputs import open_named_pairs
from aoq.pipeline.training.checkpoint import load_model


def produce_evaluation(chain: Chain, build: Build, engine: Engine) -> None:
    """Metrics on the evaluation split, of the second round or of an ensemble's second rounds, with each member's.

    Where more is known of the split than its pairs, that too, and how well a model attends, where it is known what the
    phrases speak of (`attention`).
    """
    build.clear()
    device, options, parts = engine.torch_device(), chain.experiment.evaluation, build.directory / "parts"
    parts.mkdir()
    scores: list[np.ndarray] = []
    metrics = []
    for member in [member.chain for member in chain.members] or [chain]:
        pairs = open_named_pairs(member, chain.folder, options.split)
        files = sorted(member["second_round"].path.glob("*.safetensors"))  # two where they were co-taught
        models = [load_model(path).to(device) for path in files]
        place = parts / str(len(scores))
        scored = [similarity_matrix(model, pairs, device, Path(f"{place}.{n}.npy")) for n, model in enumerate(models)]
        scores.append(_mean(scored, None, Path(f"{place}.npy")))
        metrics.append(evaluate_similarity(scores[-1], pairs.split.image_of, folds=options.folds))
    similarity = _mean(scores, chain.weights, parts / "mean.npy")
    build.notes["metrics"] = evaluate_similarity(similarity, pairs.split.image_of, folds=options.folds)
    build.notes |= measure_annotations(similarity, pairs.split, chain.folder, folds=options.folds)
    build.notes["member_metrics"] = metrics if chain.members else []
    if not chain.members and len(models) == 1 and models[0].attends:
        curve = _attention(models[0], pairs, chain.folder, device)
        build.notes |= {"attention": curve} if curve else {}
    np.save(build.directory / "similarity.npy", similarity)
    shutil.rmtree(parts)


def _mean(scores: list[np.ndarray], weights: tuple[float, ...] | None, file: Path) -> np.ndarray:
    """Of matrices that lie on disk, there too."""
    if len(scores) == 1:
        return scores[0]
    return ensemble(scores, weights, reserved_file(file, (len(scores[0]), scores[0].shape[1])))


def _attention(model: MatchingModel, pairs: PairData, folder: Path, device: torch.device) -> dict[str, Any] | None:
    phrases = find_phrases(folder, pairs.split)
    return measure_attention(model, pairs, phrases, device) if phrases is not None else None
