"""Time a training step of sentence-transformers with our data and losses, beside its own hard negatives.

    pip install "aoq[cpu]" "sentence-transformers[train]"
    python benchmarks/integrations.py --size small --rounds 5

A CLIP with random weights sees pictures of noise. Each of our losses draws from a table of the model's own vectors
(`TableData`), beside MultipleNegativesRankingLoss on the n-tuples of `mine_hard_negatives`, of images' captions and of
captions' images; a step of each encodes as many items. In every round each is trained for some steps by
`SentenceTransformerTrainer`, one after another, in this process. A step is the time from the end of one to the end of
the next: reading, the forward and backward pass, the optimiser. Ratios are those of a round's medians to theirs, the
mean of both directions, as these encode five images a caption or five captions an image. Memory is the most beyond
what was there before a training that is run by itself at the end, in a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # beside this file, `pipeline` is a benchmark

import click
import datasets
import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.util import mine_hard_negatives
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizerFast, TrainerCallback
from transformers.utils import logging

import aoq
from aoq.integrations.sentence_transformers import (
    OfflineInfoNCELoss,
    OfflineQuintupletLoss,
    OfflineTripletLoss,
    TableData,
)
from benchmarks.memory import Peak

SIZES = {"tiny": (32, 16, 64, 2), "small": (96, 16, 256, 4)}
"""Pixels of an image, of a patch, dimensions and layers of both towers."""
EACH = 2
"""Captions an image."""
MINI_BATCH = 16
DIRECTIONS = ("i2t", "t2i")


@dataclass(frozen=True)
class World:
    """A model's folder, pictures with captions, the model's table, and n-tuples of each direction and length."""

    model: str
    pictures: list[str]
    captions: list[str]
    table: aoq.NegativeTable
    tuples: dict[tuple[str, int], datasets.Dataset]


@dataclass(frozen=True)
class Arm:
    """One training: the data with its batch sampler, the loss, the number of items in a row."""

    name: str
    items: int
    loss: Callable[[SentenceTransformer], torch.nn.Module]
    made: Callable[[World], tuple[datasets.Dataset, dict[str, Any]]]
    theirs: bool = False


def ours(**options: Any) -> Callable[[World], tuple[datasets.Dataset, dict[str, Any]]]:
    def made(world: World) -> tuple[datasets.Dataset, dict[str, Any]]:
        data = TableData(world.table, world.pictures, world.captions, **options)
        return data.dataset, {"batch_sampler": data.batches}

    return made


def theirs(items: int, loss: Any, **options: Any) -> list[Arm]:
    """Train on n-tuples of both directions: an anchor, its positive, and n - 2 negatives."""
    name = f"{loss.__name__}, {items - 2} negatives"

    def of(direction: str) -> Callable[[World], tuple[datasets.Dataset, dict[str, Any]]]:
        return lambda world: (world.tuples[direction, items - 2], {})

    return [
        Arm(f"{name}, {one}", items, lambda model: loss(model, **options), of(one), theirs=True) for one in DIRECTIONS
    ]


GROUPS: list[list[Arm]] = [
    [*theirs(6, MultipleNegativesRankingLoss), Arm("OfflineQuintupletLoss", 6, OfflineQuintupletLoss, ours())],
    [
        *theirs(6, CachedMultipleNegativesRankingLoss, mini_batch_size=MINI_BATCH),
        Arm(
            "OfflineQuintupletLoss, cached",
            6,
            lambda model: OfflineQuintupletLoss(model, mini_batch_size=MINI_BATCH),
            ours(),
        ),
    ],
    [
        *theirs(4, MultipleNegativesRankingLoss),
        Arm("OfflineTripletLoss", 4, OfflineTripletLoss, ours(negatives="offline")),
        Arm("OfflineInfoNCELoss", 4, OfflineInfoNCELoss, ours(negatives="offline")),
    ],
    [
        *theirs(2, MultipleNegativesRankingLoss),
        Arm(
            'OfflineQuintupletLoss, companions="anchors"',
            2,
            lambda model: OfflineQuintupletLoss(model, companions="anchors"),
            ours(negatives=None, batches="triples"),
        ),
        Arm(
            "MultipleNegativesRankingLoss, our mined batches",
            2,
            MultipleNegativesRankingLoss,
            ours(negatives=None, batches="mined", community=8),
        ),
    ],
]


class Clock(TrainerCallback):
    """The seconds between the ends of steps."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._ends.append(time.perf_counter())

    @property
    def seconds(self) -> np.ndarray:
        return np.diff(self._ends)[1:]


def trained(world: World, arm: Arm, items: int, steps: int) -> np.ndarray:
    """The seconds of some steps."""
    torch.manual_seed(0)
    model, clock = SentenceTransformer(world.model, device="cpu"), Clock()
    data, sampling = arm.made(world)
    with tempfile.TemporaryDirectory() as output:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=output,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            max_steps=steps + 2,
            per_device_train_batch_size=items // arm.items,
            dataloader_drop_last=True,
            **sampling,
        )
        SentenceTransformerTrainer(model, arguments, data, loss=arm.loss(model), callbacks=[clock]).train()
    return clock.seconds


def make_world(folder: Path, size: str, images: int) -> World:
    rng = np.random.default_rng(0)
    pixels, *_ = SIZES[size]
    (folder / "model").mkdir()
    make_clip(folder / "model", size)
    pictures = [str(folder / f"{row}.jpg") for row in range(images)]
    for path in pictures:
        Image.fromarray(rng.integers(0, 256, (pixels, pixels, 3), dtype=np.uint8)).save(path)
    letters = rng.integers(97, 123, size=(images * EACH, 10, 3))
    captions = [" ".join("".join(map(chr, word)) for word in words) for words in letters.tolist()]
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    vectors = [model.encode(side, normalize_embeddings=True) for side in (pictures, captions)]
    table = aoq.hard_negatives(*vectors, np.arange(images * EACH) // EACH, h=(50, 25))
    return World(str(folder / "model"), pictures, captions, table, mine(model, pictures, captions))


def mine(
    model: SentenceTransformer, pictures: list[str], captions: list[str]
) -> dict[tuple[str, int], datasets.Dataset]:
    """The n-tuples of both directions; those without a negative are its pairs."""
    pairs = {"image": [pictures[row // EACH] for row in range(len(captions))], "caption": captions}
    whole, found = datasets.Dataset.from_dict(pairs), {}
    for direction, anchor, positive in zip(DIRECTIONS, ("image", "caption"), ("caption", "image"), strict=True):
        given = {"anchor_column_name": anchor, "positive_column_name": positive, "output_format": "n-tuple"}
        mined = mine_hard_negatives(whole, model, num_negatives=4, verbose=False, **given)
        for count in (0, 2, 4):
            kept = [anchor, positive, *(f"negative_{place}" for place in range(1, count + 1))]
            found[direction, count] = mined.select_columns(kept)
    return found


def make_clip(folder: Path, size: str) -> None:
    """A CLIP with random weights and a tokenizer of letters."""
    pixels, patch, dims, layers = SIZES[size]
    letters = [chr(code) for code in range(33, 127)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    (folder / "vocab.json").write_text(json.dumps({word: row for row, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokens = CLIPTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=40)
    tower = {"hidden_size": dims, "intermediate_size": 4 * dims, "num_hidden_layers": layers}
    tower["num_attention_heads"] = dims // 32
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    text = {**tower, **special, "vocab_size": len(words), "max_position_embeddings": 40}
    vision, square = {**tower, "image_size": pixels, "patch_size": patch}, {"height": pixels, "width": pixels}
    torch.manual_seed(0)
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=dims)).save_pretrained(folder)
    CLIPProcessor(CLIPImageProcessor(size=square, crop_size=square), tokens).save_pretrained(folder)


def peak(world: World, group: int, place: int, items: int) -> float:
    """Megabytes that a training takes beyond what is there before it, in a process of its own."""
    arm = GROUPS[group][place]
    trained(world, arm, 12, 1)  # what is loaded and compiled once
    with Peak() as memory:
        trained(world, arm, items, 3)
    return memory.bytes / 1e6


@click.command()
@click.option("--size", default="small", show_default=True, type=click.Choice(list(SIZES)))
@click.option("--items", default=96, show_default=True, help="Images and captions that a step encodes.")
@click.option("--images", default=400, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=8, show_default=True, help="Timed steps of each in a round.")
@click.option("--threads", default=1, show_default=True)
def main(size: str, items: int, images: int, rounds: int, steps: int, threads: int) -> None:
    torch.set_num_threads(threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder), size, images)
        arms = [arm for group in GROUPS for arm in group]
        medians: dict[str, list[float]] = {arm.name: [] for arm in arms}
        for arm in arms:
            trained(world, arm, items, 1)  # what is loaded and compiled once
        for _ in range(rounds):
            for arm in arms:
                medians[arm.name].append(float(np.median(trained(world, arm, items, steps))))
        shown = Table("", "batch", "step, ms", "to theirs", "quartiles", "MB", "to theirs", box=None)
        for number, group in enumerate(GROUPS):
            peaks = [measured(world, number, place, items) for place in range(len(group))]
            rows(shown, group, medians, peaks, items)
    Console(width=140).print(shown)
    print(f"{size} CLIP, {items} items a step, {rounds} rounds of {steps} steps, {threads} threads")


def measured(world: World, group: int, place: int, items: int) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak, (world, group, place, items))


def rows(shown: Table, group: list[Arm], medians: dict[str, list[float]], peaks: list[float], items: int) -> None:
    rivals = [place for place, arm in enumerate(group) if arm.theirs]
    beside = np.mean([medians[group[place].name] for place in rivals], axis=0)
    memory = np.mean([peaks[place] for place in rivals])
    for arm, taken in zip(group, peaks, strict=True):
        seconds = np.array(medians[arm.name])
        low, middle, high = np.percentile(seconds / beside, [25, 50, 75])
        ratio = ("", "", "") if arm.theirs else (f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{taken / memory:.2f}")
        time_of = f"{1000 * np.median(seconds):.0f}"
        shown.add_row(arm.name, str(items // arm.items), time_of, *ratio[:2], f"{taken:.0f}", ratio[2])


if __name__ == "__main__":
    main()
