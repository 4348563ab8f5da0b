"""The evaluation: metrics of a second round, or of an ensemble, on the split of [evaluation] and its annotations."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aoq.pipeline.build import Build, planned_file
from aoq.pipeline.data.annotations import annotation_files
from aoq.pipeline.data.folder import Split, split_fingerprint
from aoq.pipeline.data.phrases import annotation_path, find_phrases
from aoq.pipeline.engine import Engine
from aoq.pipeline.files import file_sha256
from aoq.pipeline.prepare.photographs import photographs_fingerprint
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.data import check_feature_size
from aoq.pipeline.stages.splits import open_checked, open_named_pairs, take_in_split


def plan_evaluation(chain: Chain, **mean: Any) -> None:
    """Plan metrics of a training, or of an ensemble's; `mean` says how the similarities of several are averaged."""
    data, evaluation = chain.experiment.dataset, chain.experiment.evaluation
    ingredients = {**evaluation.model_dump(mode="json", exclude_none=True), "content": None, **mean}
    if data.demo is not None:
        ingredients["truth"] = 1
    if data.folder is not None:  # else it need not exist yet
        if evaluation.split not in (data.train, data.dev):  # else the dataset's key covers the split
            ingredients["content"] = split_fingerprint(chain.folder, evaluation.split)
            if chain.image_tower is not None:
                ingredients["photographs"] = photographs_fingerprint(chain.folder, evaluation.split)
        hashes = {name: file_sha256(path) for name, path in _annotations(chain).items()}
        if phrases := hashes.pop("phrases", None):
            ingredients["phrases"] = phrases
        if hashes:
            ingredients["annotations"] = hashes
    scored, datasets = ([one[stage] for one in _evaluated(chain)] for stage in ("second_round", "dataset"))
    chain.add("evaluation", ingredients, *scored, reads=datasets)


def _evaluated(chain: Chain) -> list[Chain]:
    return [member.chain for member in chain.members] or [chain]


def _annotations(chain: Chain) -> dict[str, Path]:
    """Return the files that annotate the split; phrases only for a single model that attends."""
    split, files = chain.experiment.evaluation.split, annotation_files(chain.folder, chain.experiment.evaluation.split)
    phrases = annotation_path(chain.folder, split) if not chain.members and chain.experiment.model.attends else None
    return files if phrases is None else {**files, "phrases": phrases}


def make_evaluation(chain: Chain, build: Build, engine: Engine) -> None:
    """Write metrics on the split and its annotations: of the second round, or of an ensemble and its members."""
    from aoq.pipeline.embedding import reserved_file, similarity_matrix
    from aoq.pipeline.evaluation.annotated import measure_annotations
    from aoq.pipeline.evaluation.attention import measure_attention
    from aoq.pipeline.evaluation.hubness import corrected
    from aoq.pipeline.evaluation.retrieval import ensemble, evaluate_similarity
    from aoq.pipeline.training.checkpoint import load_model

    def mean(scores: list[np.ndarray], weights: Sequence[float] | None, name: str) -> np.ndarray:
        """Average matrices on disk into another on disk."""
        if len(scores) == 1:
            return scores[0]
        return ensemble(scores, weights, reserved_file(parts / name, (len(scores[0]), scores[0].shape[1])))

    build.clear()
    device, folds, parts = engine.torch_device(), chain.experiment.evaluation.folds, build.directory / "parts"
    parts.mkdir()
    split = _open_annotated(chain, build, engine)
    truth = split.image_of, split.identity
    scores: list[np.ndarray] = []
    metrics: list[dict[str, float]] = []
    for member in _evaluated(chain):
        check_feature_size(member, split, member["dataset"].manifest()["feature_size"])
        pairs, place = open_named_pairs(member, split), str(len(scores))
        files = sorted(member["second_round"].opened().glob("*.safetensors"))  # two if they were co-taught
        models = [load_model(path, **member.experiment.model.towers).to(device) for path in files]
        scored = [similarity_matrix(model, pairs, device, parts / f"{place}.{n}.npy") for n, model in enumerate(models)]
        scores.append(mean(scored, None, f"{place}.npy"))
        metrics.append(evaluate_similarity(scores[-1], *truth, folds=folds))
    similarity = mean(scores, chain["evaluation"].ingredients.get("weights"), "mean.npy")
    build.notes["metrics"] = evaluate_similarity(similarity, *truth, folds=folds)
    if (temperature := chain.experiment.evaluation.hubness) is not None:
        matrix = corrected(similarity, temperature, reserved_file(parts / "corrected.npy", similarity.shape))
        build.notes["without_hubs"] = evaluate_similarity(matrix, *truth, folds=folds)
    build.notes |= measure_annotations(similarity, split, chain.folder, folds=folds)
    build.notes["member_metrics"] = metrics if chain.members else []
    # Phrases are annotated in words and regions, not in word pieces and patches.
    if not chain.members and len(models) == 1 and models[0].attends and not models[0].towers:
        phrases = find_phrases(chain.folder, split)
        curve = measure_attention(models[0], pairs, phrases, device) if phrases is not None else None
        build.notes |= {"attention": curve} if curve else {}
    np.save(build.directory / "similarity.npy", similarity)
    shutil.rmtree(parts)


def _open_annotated(chain: Chain, build: Build, engine: Engine) -> Split:
    """Open the evaluation split with its annotations; files that no dataset stage has hashed are hashed here."""
    name, planned = chain.experiment.evaluation.split, chain["evaluation"].ingredients
    if planned.get("content") is not None:
        build.notes["folder_sha256"] = take_in_split(chain, name)
    if (below := chain.experiment.dataset.folder) is not None:
        hashes = planned.get("annotations", {}) | {kind: planned[kind] for kind in ("phrases",) if kind in planned}
        files = _annotations(chain)
        if files.keys() != hashes.keys():
            changed = f"annotations of {name!r} were added or removed"
            raise ValueError(f"{chain.folder}: {changed} after the run was planned; run again.")
        for kind, path in files.items():
            planned_file(chain.data_root, f"{below}/{path.name}", hashes[kind])
    return open_checked(chain, name, engine.verify)
