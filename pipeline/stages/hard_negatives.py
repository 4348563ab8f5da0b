"""The negative table: mined from embeddings, reranked, fused, or refreshed by the student."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import UNITS, Build
from aoq.pipeline.config.tables import Fusion, Mining, Refresh, Rerank
from aoq.pipeline.console import show_progress
from aoq.pipeline.data.folder import Split
from aoq.pipeline.digests import known_sha256
from aoq.pipeline.engine import Engine
from aoq.pipeline.mining.sizes import fit_depths
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.stages.chain import Chain, Depths
from aoq.pipeline.stages.key import Roots
from aoq.pipeline.stages.splits import fingerprint, open_train_split
from aoq.pipeline.tables.files import read_lists, read_manifest, table_hashes

if TYPE_CHECKING:
    from aoq.pipeline.search.units import Backend

logger = logging.getLogger(__name__)


def plan_mined_table(roots: Roots, mining: Mining, embeddings: Artifact, dataset: Artifact) -> Artifact:
    """Plan a mined table; every exact search finds the same one."""
    exact = {} if mining.is_approximate else {"search": "exact", "recall_floor": 1.0}
    recipe = mining.model_dump(mode="json") | exact
    return roots.artifact("hard_negatives", recipe, embeddings, reads=[dataset], version=2)


def plan_combined_table(
    roots: Roots, way: str, recipe: Mapping[str, Any], made_of: Sequence[Artifact], dataset: Artifact
) -> Artifact:
    """Plan a table made from others, or by a student: by `rerank`, `fusion` or `refresh`."""
    return roots.artifact("hard_negatives", {way: recipe}, *made_of, reads=[dataset])


def make_hard_negatives(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the table."""
    if isinstance(chain.table, Rerank):
        _rerank(chain, chain.table, build, engine)
    elif isinstance(chain.table, Fusion):
        _fuse(chain, chain.table, build, engine)
    elif isinstance(chain.table, Refresh):
        _refresh(chain, chain.table, build, engine)
    else:
        mining = chain.experiment.mining
        assert mining is not None  # else the chain lacks this stage
        vectors, manifest = chain["embeddings"].opened(), chain["embeddings"].manifest()
        weights = manifest.get("weights_sha256") or known_sha256(_weights(chain, "first_round"))
        teacher = _teacher(chain, weights)
        if chain.experiment.teacher_encoder is not None:
            teacher["model"] = chain.experiment.teacher_encoder
        provenance = _provenance(chain, build, teacher)
        how = {"search": mining.search, "recall_floor": mining.recall_floor}
        _mine(chain, vectors, Depths.of(mining), build, engine, provenance=provenance, **how)


def _mine(chain: Chain, vectors: Path, depths: Depths, build: Build, engine: Engine, **how: Any) -> None:
    from aoq.pipeline.embedding import EmbeddingStore
    from aoq.pipeline.mining.mine import mine
    from aoq.pipeline.on_ray import choose_runner, ship_problem
    from aoq.pipeline.search.problem import Problem

    engine.torch_device()
    store, split = EmbeddingStore.open(vectors), open_train_split(chain, engine.verify)
    lengths, memory = shortened(split, depths), engine.mining_memory_mb * 1_000_000
    sides = store.images, store.captions, split.positives
    with show_progress("mining") as report:
        mine(
            Problem(*sides, lengths["i2t"], lengths["t2i"], memory, device=engine.device),
            work=build.directory / UNITS,
            output=build.directory / "table",
            indexes=chain["hard_negatives"].root,
            run=choose_runner(engine, ship_problem),
            progress=lambda done, total: report(done, total, "shards"),
            **how,
        )


def shortened(split: Split, depths: Depths) -> dict[Direction, int]:
    """Shorten lists to the negatives that the data has, and log it."""
    fitting, note = fit_depths(split.positives, split.image_count, split.caption_count, **depths.named("h"))
    if note:
        logger.warning("%s", note)
    return fitting


def _refresh(chain: Chain, options: Refresh, build: Build, engine: Engine) -> None:
    """Search the student's own vectors, which are not kept."""
    from aoq.pipeline.mining.mine import refresh
    from aoq.pipeline.stages.encoding import embed_train_split

    (student,), vectors = (member.chain for member in chain.members), build.directory / "vectors"
    vectors.mkdir(exist_ok=True)
    weights = embed_train_split(student, "second_round", vectors, engine)
    provenance = _provenance(chain, build, _teacher(student, weights))
    search: str | Backend = "auto"
    if options.drifted_below is not None:
        earlier = student["hard_negatives"].opened() / "table"
        hashes = table_hashes(read_manifest(earlier, dataset=fingerprint(chain)))
        provenance["kept"] = {"tables": hashes, "drifted_below": options.drifted_below}
        search = refresh(earlier, options.drifted_below)
    _mine(chain, vectors, Depths.of(options), build, engine, provenance=provenance, search=search)
    shutil.rmtree(vectors)


def _rerank(chain: Chain, options: Rerank, build: Build, engine: Engine) -> None:
    """Order the shortlist by the scores of a teacher, which may compare fragments."""
    from aoq.pipeline.mining.rerank import Rescoring, Shortlist, rerank
    from aoq.pipeline.stages.pairs import open_pairs
    from aoq.pipeline.training.checkpoint import load_model

    device = engine.torch_device()
    shortlist, teacher = (member.chain for member in chain.members)
    pairs, weights = open_pairs(teacher, "train", engine.verify), _weights(teacher, "second_round")
    folder = shortlist["hard_negatives"].opened() / "table"
    manifest = read_manifest(folder, dataset=fingerprint(chain))
    captions = read_lists(folder, "i2t", manifest).negative_ids[:, : options.depth_captions].copy()
    images = read_lists(folder, "t2i", manifest).negative_ids[:, : options.depth_images].copy()
    depths = {"captions": captions.shape[1], "images": images.shape[1]}
    about = {"experiment": options.shortlist, "depths": depths, "tables": table_hashes(manifest)}
    provenance = _provenance(chain, build, _teacher(teacher, known_sha256(weights)), shortlist=about)
    listed = Shortlist(captions, images, pairs.split.positives)
    lengths, model = shortened(pairs.split, Depths.of(options)), load_model(weights).to(device)
    with show_progress("rescoring") as report:
        rerank(
            Rescoring(model, pairs, listed, lengths, options.checked_anchors, device),
            provenance=provenance,
            work=build.directory / UNITS,
            output=build.directory / "table",
            progress=lambda done, total: report(done, total, "units"),
        )


def _fuse(chain: Chain, options: Fusion, build: Build, engine: Engine) -> None:
    from aoq.pipeline.tables.fusion import fuse_tables

    build.clear()
    split = open_train_split(chain, engine.verify)
    folders = [member.artifact.opened() / "table" for member in chain.members]
    members = []
    for member, folder in zip(chain.members, folders, strict=True):
        manifest = read_manifest(folder, dataset=fingerprint(chain))
        asked = {"experiment": member.asked}  # a table's manifest names the experiment that mined it first
        members.append({**asked, "teacher": manifest["teacher"] | asked, "tables": table_hashes(manifest)})
    how = {"method": options.method, "weights": options.weights and list(options.weights), "members": members}
    fuse_tables(
        folders,
        [member.run for member in chain.members],
        method=options.method,
        weights=options.weights,
        depths=shortened(split, Depths.of(options)),
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
