"""The negative table: mined from the teacher's embeddings, reranked, fused or refreshed; and its screen."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aoq.pipeline.build import UNITS, Build, planned_file
from aoq.pipeline.config.screen import ScreenSection
from aoq.pipeline.config.tables import Fusion, Lengths, Mining, Refresh, Rerank
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.folder import Split
from aoq.pipeline.engine import Engine
from aoq.pipeline.files import known_sha256
from aoq.pipeline.mining.sizes import fit_depths
from aoq.pipeline.prepare.photographs import photographs_fingerprint
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.stages.chain import Chain, pretrained
from aoq.pipeline.stages.splits import fingerprint, open_pairs, open_train_split
from aoq.pipeline.tables.files import read_lists, read_manifest, table_hashes

logger = logging.getLogger(__name__)


def plan_embeddings(chain: Chain, model: str = "first_round", use: str = "embeddings") -> None:
    """Plan the embeddings of the training split, by a trained model or by a pretrained encoder."""
    if use == "embeddings" and (encoder := chain.experiment.teacher_encoder) is not None:
        data, read = chain.experiment.dataset, {}
        if data.folder is not None and chain.image_tower is None:  # else the data set's key covers the photographs
            read = {"photographs": photographs_fingerprint(chain.folder, data.train)}
        chain.add("embeddings", pretrained(encoder) | read, chain["dataset"])
    else:
        chain.add("embeddings", {}, chain[model], reads=[chain["dataset"]], use=use)


def plan_mined_table(chain: Chain, mining: Mining) -> None:
    """Plan a mined table; every exact search finds the same one."""
    exact = {"search": "exact", "recall_floor": 1.0} if mining.is_exact else {}
    recipe = mining.model_dump(mode="json", exclude_none=True) | exact
    chain.add("hard_negatives", recipe, chain["embeddings"], reads=[chain["dataset"]], version=2)


def plan_screen(chain: Chain, screen: ScreenSection) -> None:
    """Plan the view of the table; the treatment of suspects belongs to the student."""
    hashes = {option: chain.sha256(f"[screen] {option}", file) for option, file in screen.files.items()}
    reads = [chain["dataset"], *([chain["embeddings"]] if screen.needs_vectors else [])]
    chain.add("screen", screen.recipe | hashes, chain["hard_negatives"], reads=reads)


def make_embeddings(model: str, chain: Chain, build: Build, engine: Engine) -> None:
    """Write the vectors of a trained model, or of the encoder that takes its place, with the hash of its weights."""
    from aoq.pipeline.stages.encoding import embed_train_split, encode_train_split

    if model == "first_round" and (encoder := chain.experiment.teacher_encoder) is not None:
        weights = encode_train_split(chain, encoder, build.directory, engine)
    else:
        weights = embed_train_split(chain, model, build.directory, engine)
    build.notes["weights_sha256"] = weights


def make_hard_negatives(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the table, as its recipe says."""
    recipe = chain.table or chain.experiment.mining
    ways: dict[Any, Callable[..., None]]
    ways = {Mining: _make_mined, Rerank: _make_reranked, Fusion: _make_fused, Refresh: _make_refreshed}
    ways[type(recipe)](chain, recipe, build, engine)


def _make_mined(chain: Chain, mining: Mining, build: Build, engine: Engine) -> None:
    vectors, weights = chain["embeddings"].opened(), chain["embeddings"].manifest()["weights_sha256"]
    teacher = _teacher(chain, weights)
    if chain.experiment.teacher_encoder is not None:
        teacher["model"] = chain.experiment.teacher_encoder
    if mining.hubness is not None:
        teacher["hubness"] = mining.hubness
    how = {"search": mining.search, "recall_floor": mining.recall_floor}
    _search_vectors(chain, vectors, mining, build, engine, provenance=_provenance(chain, teacher), **how)


def _make_refreshed(chain: Chain, options: Refresh, build: Build, engine: Engine) -> None:
    """Search the student's own vectors, which are not kept."""
    from aoq.pipeline.stages.encoding import embed_train_split

    (student,), vectors = (member.chain for member in chain.members), build.directory / "vectors"
    vectors.mkdir(exist_ok=True)
    teacher = _teacher(student, embed_train_split(student, "second_round", vectors, engine))
    _search_vectors(chain, vectors, options, build, engine, provenance=_provenance(chain, teacher), search="auto")
    shutil.rmtree(vectors)


def _search_vectors(chain: Chain, vectors: Path, depths: Lengths, build: Build, engine: Engine, **how: Any) -> None:
    from aoq.pipeline.embedding import EmbeddingStore
    from aoq.pipeline.evaluation.hubness import correct_problem
    from aoq.pipeline.mining.mine import mine
    from aoq.pipeline.on_ray import choose_runner, ship_problem
    from aoq.pipeline.search.problem import Problem

    engine.torch_device()
    store, split = EmbeddingStore.open(vectors), open_train_split(chain, engine.verify)
    lengths, memory = shortened(split, depths), engine.mining_memory_mb * 1_000_000
    sides = store.images, store.captions, split.positives
    problem = Problem(*sides, lengths["i2t"], lengths["t2i"], memory, device=engine.device)
    if isinstance(depths, Mining) and depths.hubness is not None:
        problem = correct_problem(problem, depths.hubness, build.directory / UNITS / "corrected")
    with show_progress("mining") as report:
        mine(
            problem,
            work=build.directory / UNITS,
            output=build.directory / "table",
            indexes=chain["hard_negatives"].root,
            run=choose_runner(engine, ship_problem),
            progress=lambda done, total: report(done, total, "shards"),
            **how,
        )


def shortened(split: Split, depths: Lengths) -> dict[Direction, int]:
    """Shorten lists to the negatives that the data has, and log it."""
    counts = split.image_count, split.caption_count
    fitting, note = fit_depths(split.positives, *counts, h_captions=depths.h_captions, h_images=depths.h_images)
    if note:
        logger.warning("%s", note)
    return fitting


def _make_reranked(chain: Chain, options: Rerank, build: Build, engine: Engine) -> None:
    """Order the shortlist by the scores of a teacher, which may compare fragments."""
    from aoq.pipeline.mining.rerank import Rescoring, Shortlist, rerank
    from aoq.pipeline.training.checkpoint import load_model

    device = engine.torch_device()
    shortlist, teacher = (member.chain for member in chain.members)
    pairs = open_pairs(teacher, "train", engine.verify)
    weights = teacher["second_round"].opened() / "model.safetensors"
    folder = shortlist["hard_negatives"].opened() / "table"
    manifest = read_manifest(folder, dataset=fingerprint(chain))
    captions, images = (read_lists(folder, direction, manifest).negative_ids.copy() for direction in DIRECTIONS)
    depths = {"captions": captions.shape[1], "images": images.shape[1]}
    about = {"experiment": options.shortlist, "depths": depths, "tables": table_hashes(manifest)}
    provenance = _provenance(chain, _teacher(teacher, known_sha256(weights)), shortlist=about)
    listed = Shortlist(captions, images, pairs.split.positives)
    lengths, model = shortened(pairs.split, options), load_model(weights, **teacher.experiment.model.towers).to(device)
    with show_progress("rescoring") as report:
        rerank(
            Rescoring(model, pairs, listed, lengths, options.checked_anchors, device),
            provenance=provenance,
            work=build.directory / UNITS,
            output=build.directory / "table",
            progress=lambda done, total: report(done, total, "units"),
        )


def _make_fused(chain: Chain, options: Fusion, build: Build, engine: Engine) -> None:
    from aoq.pipeline.tables.fusion import fuse_tables

    build.clear()
    split = open_train_split(chain, engine.verify)
    folders = [member.artifact.opened() / "table" for member in chain.members]
    members = []
    for member, folder in zip(chain.members, folders, strict=True):
        manifest = read_manifest(folder, dataset=fingerprint(chain))
        named = {"experiment": member.reference}  # a table's manifest names the experiment that mined it first
        members.append({**named, "teacher": manifest["teacher"] | named, "tables": table_hashes(manifest)})
    how = {"method": options.method, "weights": options.weights and list(options.weights), "members": members}
    fuse_tables(
        folders,
        [member.run for member in chain.members],
        method=options.method,
        weights=options.weights,
        depths=shortened(split, options),
        provenance=_provenance(chain, {"experiment": chain.experiment.name, "fusion": how}),
        positives=split.positives,
        output=build.directory / "table",
    )


def make_screen(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the table as the experiment's screen sees it."""
    from aoq.pipeline.embedding import EmbeddingStore
    from aoq.pipeline.tables.screens.judge import judge
    from aoq.pipeline.tables.screens.knowledge import read_known
    from aoq.pipeline.tables.screens.view import write_view
    from aoq.pipeline.tables.table import read_table

    engine.torch_device()
    build.clear()
    screen = chain.experiment.screen
    assert screen is not None  # else the chain lacks this stage
    split, planned = open_train_split(chain, engine.verify), chain["screen"].ingredients
    files = {option: planned_file(chain.data_root, name, planned[option]) for option, name in screen.files.items()}
    store = EmbeddingStore.open(chain["embeddings"].opened()) if screen.needs_vectors else None
    vectors = {} if store is None else {"images": store.images, "captions": store.captions}
    table = read_table(chain["hard_negatives"].opened() / "table", dataset=fingerprint(chain))
    view = judge(table, screen, read_known(table, screen, files, texts=split.captions, **vectors))
    if screen.suspected == "drop" and screen.margin_positive != "own":  # then each drawn pair decides
        view.require_some("loosen those of [screen]")
    write_view(view, build.directory / "view")
    build.notes["directions"] = view.manifest["directions"]
    for direction, about in view.manifest["directions"].items():
        taken = ", ".join(f"{rule} {count}" for rule, count in about["takes"].items())
        logger.info("%s: %d of %d negatives left (%s)", direction, about["left"], about["listed"], taken)


def _teacher(chain: Chain, weights: str) -> dict[str, Any]:
    """Describe the teacher whose scores the table has; `weights` is the sha256 of the loaded ones."""
    return {"experiment": chain.experiment.name, "model": chain.experiment.model.name, "weights_sha256": weights}


def _provenance(chain: Chain, teacher: dict[str, Any], **more: Any) -> dict[str, Any]:
    dataset = fingerprint(chain)
    return {"dataset": dataset, "teacher": teacher, **more, "tool": "aoq", "tool_version": version("aoq")}
