"""Produce the metrics on the evaluation split."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from aoq.pipeline.build import Build
from aoq.pipeline.data.annotations import annotation_files
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.phrases import annotation_path, find_phrases
from aoq.pipeline.embedding import reserved_file, similarity_matrix
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.annotated import measure_annotations
from aoq.pipeline.evaluation.attended import measure_attention
from aoq.pipeline.evaluation.retrieval import ensemble, evaluate_similarity
from aoq.pipeline.inputs import planned_file
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.opening import open_checked, take_in_files
from aoq.pipeline.produce.data import as_pairs, check_feature_size
from aoq.pipeline.training.checkpoint import load_model


def produce_evaluation(chain: Chain, build: Build, engine: Engine) -> None:
    """Write metrics on the evaluation split: of the second round, or of an ensemble and each of its members.

    Annotations of the split beyond its pairs add metrics; annotated phrases add the accuracy of a model's
    attention (`attention`).
    """
    build.clear()
    device, options, parts = engine.torch_device(), chain.experiment.evaluation, build.directory / "parts"
    parts.mkdir()
    split = _open(chain, build, engine)
    truth = split.image_of, split.identity
    scores: list[np.ndarray] = []
    metrics: list[dict[str, float]] = []
    for member in [member.chain for member in chain.members] or [chain]:
        check_feature_size(member, split, member["dataset"].manifest()["feature_size"])
        pairs, place = as_pairs(member, split), parts / str(len(scores))
        files = sorted(member["second_round"].opened().glob("*.safetensors"))  # two if they were co-taught
        models = [load_model(path).to(device) for path in files]
        scored = [similarity_matrix(model, pairs, device, Path(f"{place}.{n}.npy")) for n, model in enumerate(models)]
        scores.append(_mean(scored, None, Path(f"{place}.npy")))
        metrics.append(evaluate_similarity(scores[-1], *truth, folds=options.folds))
    similarity = _mean(scores, chain.weights, parts / "mean.npy")
    build.notes["metrics"] = evaluate_similarity(similarity, *truth, folds=options.folds)
    build.notes |= measure_annotations(similarity, split, chain.folder, folds=options.folds)
    build.notes["member_metrics"] = metrics if chain.members else []
    # Phrases are annotated in words and regions, not in word pieces and patches.
    if not chain.members and len(models) == 1 and models[0].attends and not models[0].towers:
        phrases = find_phrases(chain.folder, split)
        curve = measure_attention(models[0], pairs, phrases, device) if phrases is not None else None
        build.notes |= {"attention": curve} if curve else {}
    np.save(build.directory / "similarity.npy", similarity)
    shutil.rmtree(parts)


def _open(chain: Chain, build: Build, engine: Engine) -> Split:
    """Open the evaluation split with its annotations; files that no dataset stage has hashed are hashed here."""
    name, made, folder = chain.experiment.evaluation.split, chain["evaluation"].ingredients, chain.folder
    below = chain.experiment.dataset.folder
    if made.get("content") is not None:
        build.notes["folder_sha256"] = take_in_files(chain, name)
    if below is not None:
        planned = made.get("annotations", {}) | {kind: made[kind] for kind in ("phrases",) if kind in made}
        files = annotation_files(folder, name)
        if not chain.members and chain.experiment.model.attends and (phrases := annotation_path(folder, name)):
            files["phrases"] = phrases
        if files.keys() != planned.keys():
            raise ValueError(
                f"{folder}: annotations of {name!r} were added or removed after the run was planned; run again."
            )
        for kind, path in files.items():
            planned_file(chain.data_root, f"{below}/{path.name}", planned[kind])
    return open_checked(chain, name, engine.verify)


def _mean(scores: list[np.ndarray], weights: tuple[float, ...] | None, file: Path) -> np.ndarray:
    """Average matrices on disk into another on disk."""
    if len(scores) == 1:
        return scores[0]
    return ensemble(scores, weights, reserved_file(file, (len(scores[0]), scores[0].shape[1])))
