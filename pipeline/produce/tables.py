"""Produce embeddings, the negative table (mined, reranked, fused or refreshed) and its screen."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from aoq.models.base import EmbeddingModel
from aoq.pipeline.build import UNITS, Build
from aoq.pipeline.config.screen import FILES
from aoq.pipeline.config.tables import Fusion, Refresh, Rerank
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.clean_pairs import read_clean_pairs
from aoq.pipeline.data.folder import Split
from aoq.pipeline.digests import known_sha256
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.embedding_blocks import finish_embeddings, sides_of, write_embeddings
from aoq.pipeline.engine import Engine
from aoq.pipeline.inputs import planned_file, take_in
from aoq.pipeline.mining.depths import Fitting
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.mining.refresh import refresh
from aoq.pipeline.mining.rerank import Rescoring, rerank
from aoq.pipeline.mining.shortlist import Shortlist
from aoq.pipeline.on_ray import choose_runner, ship_problem
from aoq.pipeline.planning.chain import Chain, Depths
from aoq.pipeline.planning.opening import open_checked
from aoq.pipeline.prepare.encoders import open_encoder
from aoq.pipeline.prepare.photographs import open_photographs
from aoq.pipeline.produce.data import check_inputs, fingerprint, open_pairs, open_train_split, open_true_train_split
from aoq.pipeline.produce.encoding import Encoding, write_encoded
from aoq.pipeline.produce.photographs import encoding_of
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.units import Backend
from aoq.pipeline.tables.files import read_lists, read_manifest, table_hashes
from aoq.pipeline.tables.fusion import fuse_tables
from aoq.pipeline.tables.screens.judgements import read_judgements
from aoq.pipeline.tables.screens.knowledge import Knowledge
from aoq.pipeline.tables.screens.matches import read_matches
from aoq.pipeline.tables.screens.screened import judge
from aoq.pipeline.tables.screens.view import write_view
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.checkpoint import load_model

logger = logging.getLogger(__name__)


def produce_embeddings(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the vectors, with the hash of the weights that made them: a first round's, or a pretrained encoder's."""
    if chain.experiment.teacher_encoder is None:
        build.notes["weights_sha256"] = _embed(chain, "first_round", build.directory, engine)
    else:
        build.notes["weights_sha256"] = _encode(chain, chain.experiment.teacher_encoder, build.directory, engine)
    finish_embeddings(build.directory)


def _encode(chain: Chain, encoder_name: str, folder: Path, engine: Engine) -> str:
    """Write an encoder's vectors of the training split's photographs and captions; return its weights' sha256."""
    name, split = chain.experiment.dataset.train, open_true_train_split(chain, engine.verify)
    encoder = open_encoder(encoder_name)
    photographs = open_photographs(chain.folder, name, open_checked(chain, name, engine.verify).image_count)
    take_in("encoder", lambda: encoding_of(chain.folder, name, encoder))
    encoding = Encoding(encoder_name, encoder, chain.folder, name, photographs, split.image_count, split.captions)
    with show_progress("embeddings") as report:
        write_encoded(encoding, folder, folder / UNITS, engine, report)
    return encoder.images.fingerprint


def _embed(chain: Chain, stage: str, folder: Path, engine: Engine) -> str:
    """Write the vectors of the training split by the stage's model; return its weights' sha256."""
    device = engine.torch_device()
    weights = _weights(chain, stage)
    model = load_model(weights).to(device)
    assert isinstance(model, EmbeddingModel)  # the configuration allows only these to search
    with show_progress("embeddings") as report:
        write_embeddings(sides_of(model, open_pairs(chain, "train", engine.verify), device), folder, report)
    return known_sha256(weights)


def produce_hard_negatives(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the table: mined from embeddings, fused from other experiments' tables, or refreshed by the student."""
    if isinstance(chain.table, Rerank):
        _rerank(chain, chain.table, build, engine)
    elif isinstance(chain.table, Fusion):
        _fuse(chain, chain.table, build, engine)
    elif isinstance(chain.table, Refresh):
        _refresh(chain, chain.table, build, engine)
    else:
        mining = chain.experiment.mining
        assert mining is not None  # the planner gave the chain this stage
        vectors = chain["embeddings"].opened()
        weights = chain["embeddings"].manifest().get("weights_sha256") or known_sha256(_weights(chain, "first_round"))
        teacher = _teacher(chain, weights)
        if chain.experiment.teacher_encoder is not None:
            teacher["model"] = chain.experiment.teacher_encoder
        provenance = _provenance(chain, build, teacher)
        how = {"search": mining.search, "recall_floor": mining.recall_floor}
        _mine(chain, vectors, Depths.of(mining), build, engine, provenance=provenance, **how)


def _mine(chain: Chain, vectors: Path, depths: Depths, build: Build, engine: Engine, **how: Any) -> None:
    engine.torch_device()
    store, split = EmbeddingStore.open(vectors), open_train_split(chain, engine.verify)
    fitting = _fitted(split, depths)
    run, memory = choose_runner(engine, ship_problem), engine.mining_memory_mb * 1_000_000
    with show_progress("mining") as report:
        mine(
            Problem(
                store.images,
                store.captions,
                split.positives,
                fitting.captions,
                fitting.images,
                memory,
                device=engine.device,
            ),
            work=build.directory / UNITS,
            output=build.directory / "table",
            indexes=chain["hard_negatives"].root,
            run=run,
            progress=lambda done, total: report(done, total, "shards"),
            **how,
        )


def _fitted(split: Split, depths: Depths) -> Fitting:
    """Shorten lists to the negatives that the data has, and say so."""
    fitting = Fitting.to(split.positives, split.image_count, split.caption_count, **depths.named("h"))
    if fitting.said:
        logger.warning("%s", fitting.said)
    return fitting


def _refresh(chain: Chain, options: Refresh, build: Build, engine: Engine) -> None:
    """Search the student's own vectors, which are not kept."""
    (student,), vectors = (member.chain for member in chain.members), build.directory / "vectors"
    vectors.mkdir(exist_ok=True)
    weights_sha256 = _embed(student, "second_round", vectors, engine)
    provenance = _provenance(chain, build, _teacher(student, weights_sha256))
    search: str | Backend = "auto"
    if options.drifted_below is not None:
        earlier = student["hard_negatives"].opened() / "table"
        kept = {"tables": table_hashes(read_manifest(earlier, dataset=fingerprint(chain)))}
        provenance["kept"] = {**kept, "drifted_below": options.drifted_below}
        search = refresh(earlier, options.drifted_below)
    _mine(chain, vectors, Depths.of(options), build, engine, provenance=provenance, search=search)
    shutil.rmtree(vectors)


def _rerank(chain: Chain, options: Rerank, build: Build, engine: Engine) -> None:
    device = engine.torch_device()
    shortlist, teacher = (member.chain for member in chain.members)
    pairs, weights = open_pairs(teacher, "train", engine.verify), _weights(teacher, "second_round")
    model = load_model(weights)
    check_inputs(type(model), pairs)
    folder = shortlist["hard_negatives"].opened() / "table"
    manifest = read_manifest(folder, dataset=fingerprint(chain))
    captions = read_lists(folder, "i2t", manifest).negative_ids[:, : options.depth_captions].copy()
    images = read_lists(folder, "t2i", manifest).negative_ids[:, : options.depth_images].copy()
    depths = {"captions": captions.shape[1], "images": images.shape[1]}
    about = {"experiment": options.shortlist, "depths": depths, "tables": table_hashes(manifest)}
    provenance = _provenance(chain, build, _teacher(teacher, known_sha256(weights)), shortlist=about)
    listed = Shortlist(captions, images, pairs.split.positives)
    kept = _fitted(pairs.split, Depths.of(options)).by_direction
    with show_progress("rescoring") as report:
        rerank(
            Rescoring(model.to(device), pairs, listed, kept, options.checked_anchors, device),
            provenance=provenance,
            work=build.directory / UNITS,
            output=build.directory / "table",
            progress=lambda done, total: report(done, total, "units"),
        )


def _fuse(chain: Chain, options: Fusion, build: Build, engine: Engine) -> None:
    build.clear()
    split = open_train_split(chain, engine.verify)
    folders = [member.artifact.opened() / "table" for member in chain.members]
    made = [read_manifest(folder, dataset=fingerprint(chain)) for folder in folders]
    members = []
    for member, about in zip(chain.members, made, strict=True):
        asked = {"experiment": member.asked}  # a table's manifest names the experiment that mined it first
        members.append({**asked, "teacher": about["teacher"] | asked, "tables": table_hashes(about)})
    how = {"method": options.method, "weights": options.weights and list(options.weights), "members": members}
    fuse_tables(
        folders,
        [member.run for member in chain.members],
        method=options.method,
        weights=options.weights,
        depths=_fitted(split, Depths.of(options)).by_direction,
        provenance=_provenance(chain, build, {"experiment": chain.experiment.name, "fusion": how}),
        positives=split.positives,
        output=build.directory / "table",
    )


def _weights(chain: Chain, stage: str) -> Path:
    return chain[stage].opened() / "model.safetensors"


def _teacher(chain: Chain, weights: str) -> dict[str, Any]:
    """Describe the teacher whose scores the table has; `weights` is the sha256 of the loaded ones."""
    return {"experiment": chain.experiment.name, "model": chain.experiment.model.name, "weights_sha256": weights}


def _provenance(chain: Chain, build: Build, teacher: dict[str, Any], **more: Any) -> dict[str, Any]:
    dataset = fingerprint(chain)
    return {"dataset": dataset, "teacher": teacher, **more, "tool": "aoq", "tool_version": build.tool_version}


def produce_screen(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the table as the experiment's screen sees it."""
    engine.torch_device()
    build.clear()
    screen = chain.experiment.screen
    assert screen is not None  # the planner gave the chain this stage
    split, root, made = open_train_split(chain, engine.verify), chain.data_root, chain["screen"].ingredients
    images, captions = split.image_count, split.caption_count
    files = {
        option: planned_file(root, name, made[option])
        for option in FILES
        if (name := getattr(screen, option)) is not None
    }
    store = EmbeddingStore.open(chain["embeddings"].opened()) if screen.needs_vectors else None
    knowledge = Knowledge(
        split.captions,
        images=None if store is None else store.images,
        captions=None if store is None else store.captions,
        matches=read_matches(files["positives"], images, captions) if "positives" in files else None,
        pair_probabilities=(
            read_clean_pairs(files["pair_probabilities"], captions) if "pair_probabilities" in files else None
        ),
        judgements=(
            read_judgements(files["judgements"], images, captions, grades=screen.judged_grades)
            if "judgements" in files
            else None
        ),
    )
    view = judge(read_table(chain["hard_negatives"].opened() / "table", dataset=fingerprint(chain)), screen, knowledge)
    write_view(view, build.directory / "view")
    build.notes["directions"] = view.manifest["directions"]
    for direction, counts in view.manifest["directions"].items():
        taken = ", ".join(f"{rule} {count}" for rule, count in counts["takes"].items())
        logger.info("%s: %d of %d negatives left (%s)", direction, counts["left"], counts["listed"], taken)
