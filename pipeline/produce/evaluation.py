"""Metrics on the evaluation split."""

from __future__ import annotations

import numpy as np

from pipeline.artifact import Build
from pipeline.chain import Chain
from pipeline.embedding import similarity_matrix
from pipeline.engine import Engine
from pipeline.evaluation.retrieval import ensemble, evaluate_similarity
from pipeline.produce.inputs import open_named_pairs
from pipeline.training.checkpoint import load_model


def produce_evaluation(chain: Chain, build: Build, engine: Engine) -> None:
    """Metrics on the evaluation split, of the second round or of an ensemble's second rounds, with each member's."""
    device = engine.torch_device()
    options = chain.experiment.evaluation
    scores, metrics = [], []
    for member in chain.members or (chain,):
        pairs = open_named_pairs(member, chain.folder, options.split)
        networks = sorted(member["second_round"].path.glob("*.safetensors"))  # two where they were co-taught
        models = (load_model(path).to(device) for path in networks)
        scores.append(ensemble([similarity_matrix(model, pairs, device) for model in models]))
        metrics.append(evaluate_similarity(scores[-1], pairs.split.image_of, folds=options.folds))
    similarity = ensemble(scores, chain.weights)
    build.notes["metrics"] = evaluate_similarity(similarity, pairs.split.image_of, folds=options.folds)
    build.notes["member_metrics"] = metrics if chain.members else []
    np.save(build.directory / "similarity.npy", similarity)
