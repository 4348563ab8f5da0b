"""`aoq plan`: what mining will take, before it is begun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from aoq.pipeline.cli.mining_options import mining_options, read_pairing, require_pairing
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.stages import plan as plan_chain
from aoq.pipeline.settings import configured_path, engine

if TYPE_CHECKING:
    from aoq.pipeline.mining.estimate import Estimate
    from aoq.pipeline.mining.shape import Shape

DEMO_CAPTIONS = 5


@click.command()
@click.argument("images", required=False)
@click.argument("captions", required=False)
@click.option("--experiment", help="Plan this experiment's mining and training, in place of IMAGES and CAPTIONS.")
@click.option("--override", default="", help="Changes to the experiment, such as: mining.h_captions=100")
@click.option("--data-root", default="", help="The folder of dataset folders; default: [paths] in luigi.cfg.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@mining_options
def plan(
    images: str | None,
    captions: str | None,
    experiment: str | None,
    override: str,
    data_root: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what mining IMAGES and CAPTIONS will take, in one process on this machine.

    Options are those of `aoq mine`, but for --backend and --ray-address.

    Operations and sizes follow from the shape; times are those of a probe of a second or two, scaled. With
    --experiment, the shape comes from the data and the model, [mining] and luigi.cfg stand for the options, and the
    training's steps are counted as well.
    """
    if (experiment is None) == (images is None or captions is None):
        raise click.UsageError("give IMAGES and CAPTIONS, or --experiment NAME")
    if experiment is None:
        shape, found = _of_vectors(str(images), str(captions), options)
        steps: dict[str, int] = {}
    else:
        chain = plan_chain(
            experiment,
            data_root=configured_path("data_root", data_root),
            artifact_root=configured_path("artifact_root"),
            override=override,
        )
        shape, found, steps = _of_experiment(chain)
    total = sum(found.seconds.values())
    if as_json:
        click.echo(
            json.dumps(
                {"shape": asdict(shape), **asdict(found), "total_seconds": total or None, "steps": steps}, indent=1
            )
        )
        return
    _show(shape, found, steps)


def _of_vectors(images: str, captions: str, options: Mapping[str, Any]) -> tuple[Shape, Estimate]:
    from tempfile import TemporaryDirectory

    import numpy as np

    from aoq.pipeline.engine import Engine
    from aoq.pipeline.mining.estimate import estimate
    from aoq.pipeline.mining.probe import pool_of
    from aoq.pipeline.mining.shape import Shape
    from aoq.pipeline.search.problem import Problem
    from aoq.pipeline.search.remote import fetch_given
    from aoq.pipeline.search.vectors import open_vectors

    require_pairing(options["pairs"], options["per_image"], options["unpaired"])
    Engine(device="cpu", threads=options["threads"]).torch_device()
    given, cache = (images, captions), configured_path("cache_root")
    with TemporaryDirectory() as folder:
        one, other = (
            open_vectors(fetch_given(name, cache), Path(folder) / f"{n}.npy", normalise=options["normalise"])
            for n, name in enumerate(given)
        )
        image_of = read_pairing(len(one), len(other), options["pairs"], options["per_image"])
        depths = options["h_captions"], options["h_images"]
        Problem(one, other, image_of, *depths)  # refuses what mining would refuse
        most = int(np.bincount(image_of[image_of >= 0], minlength=1).max())
        shape = Shape(len(one), len(other), one.shape[1], most, *depths)
        memory = options["memory_mb"] * 1_000_000
        return shape, estimate(shape, pool_of(one, other), options["search"], memory)


def _of_experiment(chain: Chain) -> tuple[Shape, Estimate, dict[str, int]]:
    from aoq.pipeline.data.batches import steps_per_epoch
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.mining.estimate import estimate
    from aoq.pipeline.mining.probe import made_up
    from aoq.pipeline.mining.shape import Shape
    from aoq.pipeline.produce.inputs import open_true_train_split

    miner = chain.owner("hard_negatives")
    mining, data = miner.experiment.mining, miner.experiment.dataset
    if mining is None or miner.table is not None:
        raise ValueError(
            f"the table of {chain.experiment.name!r} is made by {' and '.join(miner.asked)}, and no first round is "
            "searched for it; plan an experiment with [mining]."
        )
    if data.demo is not None:
        images = data.train_images or data.demo.images
        captions, most = images * DEMO_CAPTIONS, DEMO_CAPTIONS
    else:
        split = open_true_train_split(miner)
        images, captions, most = split.image_count, split.caption_count, split.most_captions
    settings = Engine(**engine().param_kwargs)
    settings.torch_device()
    dimensions = miner.experiment.model.dimensions
    shape = Shape(images, captions, dimensions, most, mining.h_captions, mining.h_images)
    rounds = {"round one": miner.experiment.first_round, "round two": chain.experiment.student}
    steps = {
        name: training.epochs * steps_per_epoch(captions, training.batch_size)
        for name, training in rounds.items()
        if training is not None
    }
    return shape, estimate(shape, made_up(shape), mining.search, settings.mining_memory_mb * 1_000_000), steps


def _show(shape: Shape, found: Estimate, steps: Mapping[str, int]) -> None:
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_row("vectors", f"{shape.images:,} images, {shape.captions:,} captions, {shape.dimensions} dimensions")
    rows.add_row("lists", f"{shape.h_captions} captions an image, {shape.h_images} images a caption")
    rows.add_row("search", f"{found.search}: {found.why}")
    if found.operations is not None:
        rows.add_row("operations", f"{found.operations:.3g}")
    for name, seconds in found.seconds.items():
        rows.add_row(f"  {name}", _duration(seconds))
    total = _duration(sum(found.seconds.values())) if found.seconds else "an index decides; mine some of it and see"
    rows.add_row("time, about", total)
    rows.add_row("memory", f"{_size(found.memory_bytes)} and the mapped vectors, {_size(found.vector_bytes)}")
    rows.add_row("disk", f"{_size(found.work_bytes)} while it runs, {_size(found.table_bytes)} for the table")
    for name, count in steps.items():
        rows.add_row(name, f"{count:,} steps of training")
    Console().print(rows)


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
