"""How well does each screen tell false negatives? Its precision and recall on the demo world, which knows the truth.

    python benchmarks/screens.py

Makes the demo's table first, if it is not there (about two minutes). A listed negative is a false one if its caption is
true of its image. Precision: of what a rule flags, the share that is false; recall: of the false ones in the lists, the
share it flags; lost: of the true negatives, the share it flags as well.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from aoq.pipeline.config.screen import Screen
from aoq.pipeline.data.demo import is_true, read_scenes
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.settings import configured_path, read_shipped_settings
from aoq.pipeline.tables.screens.entries import entry_blocks
from aoq.pipeline.tables.screens.knowledge import Knowledge
from aoq.pipeline.tables.screens.screened import judge
from aoq.pipeline.tables.table import read_table

SCREENS = [
    {"same_text": True},
    {"near_text": 0.9},
    {"near_text": 0.7},
    {"near_text": 0.5},
    {"caption_similarity": 0.98},
    {"caption_similarity": 0.95},
    {"caption_similarity": 0.9},
    {"image_similarity": 0.8},
    {"image_similarity": 0.7},
    {"mutual_rank": 1},
    {"mutual_rank": 5},
    {"absolute_margin": 0.0},
    {"relative_margin": 0.05},
    {"range_min": 5},
    {"range_min": 20},
    {"near_text": 0.9, "caption_similarity": 0.95, "image_similarity": 0.8},
]


@click.command()
@click.option("--artifact-root", default="")
def main(artifact_root: str) -> None:
    read_shipped_settings()
    luigi = [str(Path(sys.executable).parent / "luigi"), "--module", "tasks", "HardNegatives"]
    luigi += ["--experiment", "demo_noisy"]
    subprocess.run([*luigi, *(["--artifact-root", artifact_root] if artifact_root else [])], check=True)
    chain = plan("demo_noisy", data_root=Path(), artifact_root=configured_path("artifact_root", artifact_root))
    split, scenes = open_split(chain.folder, "train"), read_scenes(chain.folder, "train")
    true = np.stack([is_true(caption, scenes) for caption in split.captions], axis=1)
    table, store = read_table(chain["hard_negatives"].path / "table"), EmbeddingStore.open(chain["embeddings"].path)
    known = Knowledge(split.captions, store.images, store.captions)
    false = {}
    for direction in DIRECTIONS:
        false[direction] = np.zeros(table[direction].negative_ids.shape, dtype=bool)
        for entries in entry_blocks(direction, table[direction]):
            false[direction][entries.anchors, entries.places] = true[entries.images, entries.captions]
    show(screens_of(table, known, false), false)


def screens_of(table, known, false):  # type: ignore[no-untyped-def]
    """Precision, recall and what is lost, of every screen, by direction."""
    for settings in SCREENS:
        view = judge(table, Screen(**settings), known)
        figures = []
        for direction in DIRECTIONS:
            flagged, wrong = view[direction].flags > 0, false[direction]
            hits = (flagged & wrong).sum()
            figures += [hits / max(1, flagged.sum()), hits / wrong.sum(), (flagged & ~wrong).sum() / (~wrong).sum()]
        yield ", ".join(f"{rule} = {value}" for rule, value in settings.items()), figures


def show(screens, false) -> None:  # type: ignore[no-untyped-def]
    shares = ", ".join(
        f"{direction} {wrong.mean():.1%} of all, {wrong[:, :10].mean():.1%} of the first ten"
        for direction, wrong in false.items()
    )
    rows = Table(title=f"False negatives: {shares}", title_justify="left", box=None)
    rows.add_column("screen", max_width=52)
    for direction in DIRECTIONS:
        for figure in ("precision", "recall", "lost"):
            rows.add_column(f"{direction} {figure}", justify="right")
    for name, figures in screens:
        rows.add_row(name, *(f"{figure:.1%}" for figure in figures))
    Console(width=140).print(rows)


if __name__ == "__main__":
    main()
