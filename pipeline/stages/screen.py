"""The screen: which listed negatives the student may draw, and how much each is suspected of matching."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.screen import FILES, Screen
from aoq.pipeline.data.clean_pairs import read_clean_pairs
from aoq.pipeline.engine import Engine
from aoq.pipeline.inputs import planned_file
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.key import Roots
from aoq.pipeline.stages.splits import fingerprint, open_train_split

logger = logging.getLogger(__name__)


def plan_screen(roots: Roots, screen: Screen, chain: Chain) -> Artifact:
    ingredients = screen.recipe
    for option in FILES:
        if (file := getattr(screen, option)) is not None:
            ingredients[option] = roots.sha256(f"[screen] {option}", file)
    reads = [chain["dataset"], *([chain["embeddings"]] if screen.needs_vectors else [])]
    return roots.artifact("screen", ingredients, chain["hard_negatives"], reads=reads)


def make_screen(chain: Chain, build: Build, engine: Engine) -> None:
    """Write the table as the experiment's screen sees it."""
    from aoq.pipeline.embedding import EmbeddingStore
    from aoq.pipeline.tables.screens.judge import judge
    from aoq.pipeline.tables.screens.judgements import read_judgements, read_matches
    from aoq.pipeline.tables.screens.knowledge import Knowledge
    from aoq.pipeline.tables.screens.view import write_view
    from aoq.pipeline.tables.table import read_table

    engine.torch_device()
    build.clear()
    screen = chain.experiment.screen
    assert screen is not None  # else the chain lacks this stage
    split, planned = open_train_split(chain, engine.verify), chain["screen"].ingredients
    images, captions, grades = split.image_count, split.caption_count, screen.judged_grades
    files = {
        option: planned_file(chain.data_root, name, planned[option])
        for option in FILES
        if (name := getattr(screen, option)) is not None
    }
    readers: dict[str, Callable[[Path], Any]] = {
        "positives": lambda file: read_matches(file, images, captions),
        "pair_probabilities": lambda file: read_clean_pairs(file, captions),
        "judgements": lambda file: read_judgements(file, images, captions, grades=grades),
    }
    read = {option: readers[option](file) for option, file in files.items()}
    store = EmbeddingStore.open(chain["embeddings"].opened()) if screen.needs_vectors else None
    knowledge = Knowledge(
        split.captions,
        images=None if store is None else store.images,
        captions=None if store is None else store.captions,
        matches=read.get("positives"),
        pair_probabilities=read.get("pair_probabilities"),
        judgements=read.get("judgements"),
    )
    view = judge(read_table(chain["hard_negatives"].opened() / "table", dataset=fingerprint(chain)), screen, knowledge)
    write_view(view, build.directory / "view")
    build.notes["directions"] = view.manifest["directions"]
    for direction, counts in view.manifest["directions"].items():
        taken = ", ".join(f"{rule} {count}" for rule, count in counts["takes"].items())
        logger.info("%s: %d of %d negatives left (%s)", direction, counts["left"], counts["listed"], taken)
