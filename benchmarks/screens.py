"""Precision and recall of each screen for false negatives, on the demo world, where the truth is known.

    python benchmarks/screens.py

Makes the demo's table first if it is missing (some minutes). A listed negative is false if its caption is true of its
image. Precision: fraction of false ones among the flagged; recall: fraction flagged of the false ones in the lists;
lost: fraction flagged of the true negatives.

`judgements` come from a simulated judge: it judges the first ten of each list and knows the truth, but misses 5 % of
the matches and takes 2 % of the others for matches (seed 0); its probabilities are 0.9 and 0.1.
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

from aoq.pipeline.config.screen import ScreenSection
from aoq.pipeline.data.demo import is_true, read_scenes
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.settings import configured_path, read_shipped_settings
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.tables.screens.judge import judge
from aoq.pipeline.tables.screens.judgements import Judgements, pairs_to_judge
from aoq.pipeline.tables.screens.knowledge import Knowledge, entry_blocks
from aoq.pipeline.tables.table import read_table

SCREENS = [
    {"same_text": True},
    {"near_text": 0.7},
    {"caption_similarity": 0.98},
    {"caption_similarity": 0.95},
    {"caption_similarity": 0.9},
    {"mutual_rank": 5},
    {"relative_margin": 0.05},
    {"judgements": "simulated"},
]
ASKED, MISSES, FALSE_ALARMS = 10, 0.05, 0.02


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
    known = Knowledge(split.captions, store.images, store.captions, judgements=simulated_judge(table, true))
    false = {}
    for direction in DIRECTIONS:
        false[direction] = np.zeros(table[direction].negative_ids.shape, dtype=bool)
        for entries in entry_blocks(direction, table[direction]):
            false[direction][entries.anchors, entries.places] = true[entries.images, entries.captions]
    shares = ", ".join(
        f"{direction} {wrong.mean():.1%} of all, {wrong[:, :ASKED].mean():.1%} of the first ten"
        for direction, wrong in false.items()
    )
    show(f"False negatives: {shares}", figures(table, known, false))


def simulated_judge(table, true) -> Judgements:  # type: ignore[no-untyped-def]
    """Judge the first of each list with known error rates."""
    pairs = pairs_to_judge(table, top=ASKED)
    images, captions = (pairs[name].to_numpy() for name in ("image_id", "caption_id"))
    is_match = true[images, captions]
    errs = np.random.default_rng(0).random(len(pairs)) < np.where(is_match, MISSES, FALSE_ALARMS)
    said = np.where(is_match ^ errs, 0.9, 0.1).astype(np.float32)
    return Judgements(np.stack([images, captions], axis=1).astype(np.int32), said)


def figures(table, known, false):  # type: ignore[no-untyped-def]
    """Name and figures of every screen, by direction."""
    for settings in SCREENS:
        view = judge(table, ScreenSection(**settings), known)
        name = ", ".join(f"{rule} = {value}" for rule, value in settings.items())
        yield name, [figure for direction in DIRECTIONS for figure in flagged(view[direction], false[direction])]


def flagged(judged, false):  # type: ignore[no-untyped-def]
    """Precision, recall, and the fraction of true negatives lost."""
    flags = judged.flags > 0
    hits = (flags & false).sum()
    return hits / max(1, flags.sum()), hits / false.sum(), (flags & ~false).sum() / (~false).sum()


def show(title, screens) -> None:  # type: ignore[no-untyped-def]
    rows = Table(title=title, title_justify="left", box=None)
    rows.add_column("screen", max_width=52)
    for direction in DIRECTIONS:
        for name in ("precision", "recall", "lost"):
            rows.add_column(f"{direction} {name}", justify="right")
    for name, found in screens:
        rows.add_row(name, *(f"{figure:.1%}" for figure in found))
    Console(width=150).print(rows)


if __name__ == "__main__":
    main()
