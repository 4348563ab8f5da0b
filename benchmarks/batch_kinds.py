"""Compare offline negatives and mined batches on frozen encoders, at an equal number of encoded items.

    pip install wordllama                                     # its wheel holds token vectors and a tokeniser
    python benchmarks/batch_kinds.py data/prepared \\
        --token-vectors .../wordllama/weights/l2_supercat_256.safetensors \\
        --tokenizer .../wordllama/tokenizers/l2_supercat_tokenizer_config.json --epochs 5

The encoders are those of `projected_teacher.py`: an image is the mean of its prepared features, a caption that of its
tokens' static vectors, and two linear maps into one space are trained with InfoNCE. The teacher is trained on random
batches; all arms draw from its exact table. A student starts from random maps. The budget is pairs encoded: an arm
whose batches hold an offline pair beside each anchor takes half as many steps. The output is dev rsums, their mean over
seeds, and the difference to random batches with its 95 % interval.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

import aoq
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.evaluation.retrieval import Ranks, retrieval_ranks, summarise
from aoq.pipeline.evaluation.significance import rsum_intervals
from benchmarks.projected_teacher import Projection, caption_vectors, image_vectors

Rows = np.ndarray
"""Rows (N, 2): image row, caption row."""


@dataclass(frozen=True)
class Arm:
    name: str
    options: dict[str, object] | None
    """Options of `aoq.BatchSampler`; None for random batches."""
    offline: bool = False
    """True if half of a batch are offline pairs, which are columns."""
    screened: bool = False


ARMS = (
    Arm("random", None),
    Arm("random + offline columns", {"companions": "omit"}, offline=True),
    Arm("triples", {"companions": "anchors"}),
    Arm("mined", {"batches": "mined", "offline": False}),
    Arm("mined, screened", {"batches": "mined", "offline": False}, screened=True),
)


@dataclass(frozen=True)
class Data:
    images: Tensor
    captions: Tensor
    image_of: np.ndarray
    texts: list[str]


class Student:
    """Two maps and a temperature."""

    def __init__(self, data: Data, size: int) -> None:
        self.maps = nn.ModuleList([Projection(data.images, size), Projection(data.captions, size)])
        self.temperature = aoq.LearntTemperature(temperature=0.05, max_scale=100)

    def encode(self, data: Data) -> list[np.ndarray]:
        self.maps.eval()
        with torch.inference_mode():
            pairs = zip(self.maps, (data.images, data.captions), strict=True)
            return [one(vectors).numpy() for one, vectors in pairs]

    def loss(self, data: Data, rows: Rows, *, offline: bool) -> Tensor:
        """Mean InfoNCE of the anchors, both directions."""
        anchors = len(rows) // 2 if offline else len(rows)
        taken = torch.from_numpy(rows).long()
        images, captions = self.maps[0](data.images[taken[:, 0]]), self.maps[1](data.captions[taken[:, 1]])
        is_positive = aoq.positive_pairs(taken[:anchors, 0], mask_positives=True)
        drawn = aoq.offline_similarities(images, captions, companions=False) if offline else None
        pairs = aoq.Similarities(images[:anchors] @ captions[:anchors].T, is_positive, drawn)
        return aoq.info_nce(pairs, **self.temperature()).total / anchors

    def train(self, data: Data, batches: Iterator[Rows], budget: int, rate: float, *, offline: bool) -> None:
        """Take steps until `budget` pairs are encoded; the rate falls along a cosine."""
        parameters = [{"params": [*self.maps.parameters()], "weight_decay": 1e-3}]
        parameters.append({"params": [*self.temperature.parameters()], "weight_decay": 0.0})
        optimiser, encoded = torch.optim.AdamW(parameters, lr=rate), 0
        self.maps.train()
        while encoded < budget:
            rows = next(batches)
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 + np.cos(np.pi * encoded / budget)) / 2
            optimiser.zero_grad()
            self.loss(data, rows, offline=offline).backward()
            optimiser.step()
            encoded += len(rows)


def random_batches(image_of: np.ndarray, batch_size: int, seed: int) -> Iterator[Rows]:
    """Draw each pair once per epoch; an incomplete last batch is left out."""
    rng, pairs = np.random.default_rng(seed), np.column_stack([image_of, np.arange(len(image_of))])
    while True:
        order = rng.permutation(len(pairs))
        for step in range(len(order) // batch_size):
            yield pairs[order[step * batch_size :][:batch_size]]


def batches_of(arm: Arm, table: aoq.NegativeTable, data: Data, batch_size: int, seed: int) -> Iterator[Rows]:
    if arm.options is None:
        yield from random_batches(data.image_of, batch_size, seed)
    given = table.screen(texts=data.texts, same_text=True, relative_margin=0.05) if arm.screened else table
    each = batch_size // 2 if arm.offline else batch_size
    sampler = aoq.BatchSampler(given, batch_size=each, seed=seed, drop_last=True, **arm.options)
    while True:
        yield from sampler


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--token-vectors", type=click.Path(path_type=Path), required=True)
@click.option("--tokenizer", type=click.Path(path_type=Path), required=True)
@click.option("--size", default=256, show_default=True)
@click.option("--epochs", default=10, show_default=True, help="Pairs encoded, in epochs of random batches.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--batch-size", default=64, show_default=True)
def main(
    folder: Path, token_vectors: Path, tokenizer: Path, size: int, epochs: int, seeds: int, batch_size: int
) -> None:
    """Train every arm and print its gain."""
    words = Tokenizer.from_file(str(tokenizer))
    (vectors,) = load_file(token_vectors).values()
    splits = [open_split(folder, name) for name in ("train", "dev")]
    data, dev = (
        Data(image_vectors(split), caption_vectors(split, words, vectors), split.image_of, list(split.captions))
        for split in splits
    )
    budget = epochs * len(data.image_of)

    def ranks(student: Student) -> Ranks:
        images, captions = student.encode(dev)
        return retrieval_ranks(images @ captions.T, dev.image_of)

    torch.manual_seed(1000)
    teacher = Student(data, size)
    teacher.train(data, random_batches(data.image_of, 256, 1000), budget, 1e-3, offline=False)
    table = aoq.hard_negatives(*teacher.encode(data), data.image_of, h=(100, 30))
    print(f"teacher: dev rsum {summarise(ranks(teacher))['rsum']:.1f}; {table}", flush=True)
    found: dict[str, list[Ranks]] = {}
    for arm in ARMS:
        for seed in range(seeds):
            torch.manual_seed(seed)
            student = Student(data, size)
            batches = batches_of(arm, table, data, batch_size, seed)
            student.train(data, batches, budget, 1e-3, offline=arm.offline)
            found.setdefault(arm.name, []).append(ranks(student))
        rsums = [summarise(one)["rsum"] for one in found[arm.name]]
        baseline, ours = found["random"], {arm.name: found[arm.name]}
        low, high = rsum_intervals(ours, baseline, dev.image_of, rng=np.random.default_rng(0))[arm.name]
        gain = np.mean(rsums) - np.mean([summarise(one)["rsum"] for one in baseline])
        each = ", ".join(f"{one:.1f}" for one in rsums)
        print(f"{arm.name:26} {np.mean(rsums):6.1f} ({each})  {gain:+5.1f} [{low:+.1f}, {high:+.1f}]", flush=True)


if __name__ == "__main__":
    main()
