"""Metrics on the evaluation split."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from aoq.pipeline.artifact import Build
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
        image_of, place = pairs.split.image_of, parts / str(len(scores))
        files = sorted(member["second_round"].path.glob("*.safetensors"))  # two where they were co-taught
        models = [load_model(path).to(device) for path in files]
        scored = [similarity_matrix(model, pairs, device, Path(f"{place}.{n}.npy")) for n, model in enumerate(models)]
        scores.append(_mean(scored, None, Path(f"{place}.npy")))
        metrics.append(evaluate_similarity(scores[-1], image_of, folds=options.folds))
    similarity = _mean(scores, chain.weights, parts / "mean.npy")
    build.notes["metrics"] = evaluate_similarity(similarity, image_of, folds=options.folds)
    build.notes |= measure_annotations(similarity, pairs.split, chain.folder, folds=options.folds)
    build.notes["member_metrics"] = metrics if chain.members else []
    if not chain.members and len(models) == 1 and models[0].attends:
        phrases = find_phrases(chain.folder, pairs.split)
        curve = measure_attention(models[0], pairs, phrases, device) if phrases is not None else None
        build.notes |= {"attention": curve.summary()} if curve else {}
    np.save(build.directory / "similarity.npy", similarity)
    shutil.rmtree(parts)


def _mean(scores: list[np.ndarray], weights: tuple[float, ...] | None, file: Path) -> np.ndarray:
    """The mean of matrices that lie on disk, there too."""
    if len(scores) == 1:
        return scores[0]
    return ensemble(scores, weights, reserved_file(file, (len(scores[0]), scores[0].shape[1])))
