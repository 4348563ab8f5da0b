"""Count collapses of `start_up = "auto"` in short trainings of many models, batches and worlds.

    python benchmarks/start_up.py --data-root data --jobs 2             200 trainings, hours on two cores
    python benchmarks/start_up.py --runs 20                             the first 20

A training is drawn from all combinations by its number: model, batch size, world, regions, wrong pairs, learning rate.
A training has collapsed if at its end the loss lies on the plateau and positives do not stand out
(`aoq.pipeline.training.metrics`), and again after four times as many steps. If the dev rsum is below three times that
of chance, the same is trained on the sum over all negatives, which never collapses. With less than four fifths of its
rsum, and again where both take four times as many steps, the training counts as collapsed too. Finished trainings are
artefacts and are reused when the script is started again.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np

from aoq.pipeline.evaluation.retrieval import K
from aoq.pipeline.settings import configured_path, read_shipped_settings
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.training.metrics import on_plateau, read_metrics

STEPS = {16: 600, 32: 400, 64: 300, 128: 200, 256: 120}
"""Least number of steps, by batch size; whole epochs."""
ARMS = {
    "auto": 'loss.name = "online"\nstart_up = "auto"',
    "sum": 'loss.name = "sum"',
}
LONGER = 4
"""Factor of the steps that a training gets which seems collapsed."""
LEAST = 0.8
"""Least fraction of the rsum of the sum over all negatives, if both are near chance."""
DEV_IMAGES = 200
MODELS = {
    "vsepp": "",
    "vsrn": "caption_hidden_size = 32\ncaption_word_size = 32",
    "scan": "",
    "bfan": "",
    "pfan": "",
    "sgr": "similarity_size = 16",
    "saf": "similarity_size = 16",
    "naaf": "",
    "imram": "",
}
FLICKR8K = "f8k_precomp"
WORLDS = {
    "demo 600": f"demo = {{images = 600, dev_images = {DEV_IMAGES}}}",
    "demo 3000": f"demo = {{images = 3000, dev_images = {DEV_IMAGES}}}",
    "f8k 500": f'folder = "{FLICKR8K}"\ntrain_images = 500',
    "f8k 2000": f'folder = "{FLICKR8K}"\ntrain_images = 2000',
    "f8k 6000": f'folder = "{FLICKR8K}"',
}
IMAGES = {"demo 600": 600, "demo 3000": 3000, "f8k 500": 500, "f8k 2000": 2000, "f8k 6000": 6000}
CAPTIONS_AN_IMAGE = 5
EXPERIMENT = """
seed = {seed}
teacher = "demo_vsepp" # of which the online loss needs nothing
[dataset]
{world}
max_regions = {regions}
noise = {{level = "caption", ratio = {noise}}}
[model]
name = "{model}"
embedding_size = 64
word_size = 32
{options}
[second_round]
epochs = {epochs}
batch_size = {batch}
learning_rate = {rate}
{arm}
"""


@dataclass(frozen=True)
class Trial:
    """One training, drawn by its number."""

    number: int
    model: str
    world: str
    batch: int
    regions: int
    noise: float
    rate: float

    def experiment(self, arm: str, longer: int = 1) -> str:
        steps = IMAGES[self.world] * CAPTIONS_AN_IMAGE / self.batch
        return EXPERIMENT.format(
            seed=self.number,
            world=WORLDS[self.world],
            regions=self.regions,
            noise=self.noise,
            model=self.model,
            options=MODELS[self.model],
            epochs=longer * max(1, math.ceil(STEPS[self.batch] / steps)),
            batch=self.batch,
            rate=self.rate,
            arm=ARMS[arm],
        )

    def __str__(self) -> str:
        return (
            f"{self.number:4} {self.model:6} {self.world:10} batch {self.batch:3} regions {self.regions:2} "
            f"wrong pairs {self.noise:.0%} learning rate {self.rate:g}"
        )


def trial(number: int, worlds: list[str]) -> Trial:
    rng = random.Random(number)
    return Trial(
        number,
        rng.choice([*MODELS]),
        rng.choice(worlds),
        rng.choice([16, 32, 64, 128, 256]),
        rng.choice([4, 12, 24, 36]),
        rng.choice([0.0, 0.2, 0.5]),
        rng.choice([5e-4, 1e-3]),
    )


@click.command()
@click.option("--runs", default=200, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Trainings at a time, one thread each.")
@click.option("--data-root", default="")
@click.option("--artifact-root", default="")
def main(runs: int, jobs: int, data_root: str, artifact_root: str) -> None:
    """Count collapsed trainings."""
    read_shipped_settings()
    roots = {
        "data_root": configured_path("data_root", data_root),
        "artifact_root": configured_path("artifact_root", artifact_root),
    }
    real = roots["data_root"] / FLICKR8K
    worlds = [name for name in WORLDS if name.startswith("demo") or real.is_dir()]
    trials = [trial(number, worlds) for number in range(runs)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        if real.is_dir():
            _cut_dev(real, folder / FLICKR8K)
        roots["data_root"] = folder
        with ThreadPoolExecutor(jobs) as pool:
            ended = list(pool.map(lambda one: _collapses(one, folder, roots), trials))
        click.echo(f"{sum(ended)} of {len(ended)} trainings collapsed")


def _cut_dev(source: Path, folder: Path) -> None:
    """Cut dev to its first images: a validation would cost more than the epoch before it."""
    folder.mkdir()
    for file in ("train_ims.npy", "train_caps.txt", "train_boxes.npy"):
        if (source / file).exists():
            (folder / file).symlink_to((source / file).resolve())
    for file in source.glob("dev_*.npy"):
        np.save(folder / file.name, np.load(file, mmap_mode="r")[:DEV_IMAGES])
    captions = (source / "dev_caps.txt").read_text(encoding="utf-8").splitlines()
    (folder / "dev_caps.txt").write_text("\n".join(captions[: DEV_IMAGES * CAPTIONS_AN_IMAGE]) + "\n", encoding="utf-8")


def _collapses(one: Trial, folder: Path, roots: dict[str, Path]) -> bool:
    found = _train(one, "auto", folder, roots)
    collapsed, said = False, str(found)
    if found.is_flat:
        later = _train(one, "auto", folder, roots, longer=LONGER)
        collapsed, said = later.is_flat, f"{found}, on the plateau; {LONGER} times as long: {later}"
    elif found.rsum < 3 * found.chance:
        beside = _train(one, "sum", folder, roots)
        collapsed, said = found.rsum < LEAST * beside.rsum, f"{found}, on the sum {beside.rsum:.1f}"
        if collapsed:
            later, beside = (_train(one, name, folder, roots, longer=LONGER) for name in ("auto", "sum"))
            collapsed = later.rsum < LEAST * beside.rsum
            said += f"; {LONGER} times as long: {later}, on the sum {beside.rsum:.1f}"
    click.echo(f"{one}: {said}{', COLLAPSED' if collapsed else ''}")
    return collapsed


@dataclass(frozen=True)
class Ended:
    """Result of a training."""

    rsum: float
    chance: float
    """Rsum of random ranks."""
    hardness: str
    gap: float
    is_flat: bool

    def __str__(self) -> str:
        return f"rsum {self.rsum:.1f}, {self.hardness}, positive gap {self.gap:.2f}"


def _train(one: Trial, arm: str, folder: Path, roots: dict[str, Path], *, longer: int = 1) -> Ended:
    path = folder / f"trial{one.number}_{arm}_{longer}.toml"
    path.write_text(one.experiment(arm, longer))
    luigi = str(Path(sys.executable).parent / "luigi")
    options = [part for name, root in roots.items() for part in (f"--{name.replace('_', '-')}", str(root))]
    command = [luigi, "--module", "tasks", "SecondRound", "--experiment", str(path), "--engine-threads", "1", *options]
    subprocess.run(command, check=True, capture_output=True)
    chain = plan(str(path), **roots)
    made = chain["second_round"]
    steps = [line for line in read_metrics(made.path / "metrics.jsonl") if "loss_name" in line]
    last, rsum = steps[-2] if len(steps) > 1 else steps[-1], made.manifest()["dev_rsum_by_epoch"][-1]
    hardness = f"hardness {last['hardness']:.2f}" if "hardness" in last else "the hardest"
    is_flat = on_plateau(last)
    return Ended(rsum, _chance(roots, chain), hardness, last["positive_gap"], is_flat)


def _chance(roots: dict[str, Path], chain: object) -> float:
    """Approximate rsum of random ranks on dev: one caption in five of an image suffices."""
    counts = chain["dataset"].manifest()["counts"]["dev"]  # type: ignore[index]
    of_images = sum(min(1.0, k * CAPTIONS_AN_IMAGE / counts["captions"]) for k in K)
    return 100 * (of_images + sum(min(1.0, k / counts["images"]) for k in K))


if __name__ == "__main__":
    main()
