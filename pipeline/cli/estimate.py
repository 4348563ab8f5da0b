"""`aoq estimate`: what mining will take, before it is begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource
from rich.table import Table

from aoq.pipeline.cli.naming import EXPERIMENT, to_make, with_override
from aoq.pipeline.cli.options import as_json, mining_options, roots
from aoq.pipeline.cli.output import Console, echo_json
from aoq.pipeline.cli.vectors import given_ids, open_problem, require_pairing
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.planner import plan as plan_chain
from aoq.pipeline.progress import show_progress
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.remote import fetch_given
from aoq.pipeline.settings import configured_path, engine

if TYPE_CHECKING:
    from aoq.pipeline.mining.estimate import Estimate
    from aoq.pipeline.mining.index_cost import IndexEstimate

DEMO_CAPTIONS = 5
DAY = 86_400


@click.command()
@click.argument("images", required=False)
@click.argument("captions", required=False)
@click.option(
    "--experiment", type=EXPERIMENT, help="This experiment's mining and training, in place of IMAGES and CAPTIONS."
)
@click.option("--override", default="", help="Changes to the experiment, such as: mining.h_captions=100")
@roots
@as_json
@mining_options
def estimate(
    images: str | None,
    captions: str | None,
    experiment: str | None,
    override: str,
    data_root: Path,
    artifact_root: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Estimate what mining will take.

    It takes the options of `aoq mine` except --sides, --backend and --ray-address. Operations and sizes follow from the
    shape. For times, a small piece is mined in one process on this machine, for a second or two, and the time is
    scaled. The size at which an exact search takes a day is shown, and what an index takes, up to 50 million.

    With --experiment, the shape comes from the data and the model, and the options from [mining] and luigi.cfg. Shown
    are also the training's steps, and how hard the student's offline negatives will be beside in-batch ones.
    """
    if (images is None) != (experiment is not None):
        raise click.UsageError("give IMAGES and CAPTIONS, or --experiment NAME")
    source_of = click.get_current_context().get_parameter_source
    for name in ["override"] if experiment is None else options:
        if source_of(name) is ParameterSource.COMMANDLINE:
            whose = "an --experiment" if experiment is None else "IMAGES and CAPTIONS; an experiment has [mining]"
            raise click.UsageError(f"--{name.replace('_', '-')} is for {whose}.")
    if experiment is None:
        given = {"images": images, "captions": captions}
        found, steps = _of_vectors({side: file for side, file in given.items() if file is not None}, options)
        drawing: list[str] = []
    else:
        experiment, override = with_override(experiment, override)
        chain = plan_chain(experiment, override=override, data_root=data_root, artifact_root=artifact_root)
        found, steps, drawing = _of_experiment(chain)
    if as_json:
        total = sum(found.seconds.values())
        echo_json({**asdict(found), "total_seconds": total or None, "steps": steps, "drawing": drawing})
        return
    _show(found, steps)
    for sentence in drawing:
        Console().print(sentence, soft_wrap=True)


def _of_vectors(files: Mapping[str, str], options: Mapping[str, Any]) -> tuple[Estimate, dict[str, int]]:
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.mining.estimate import estimate

    require_pairing(options, one_set="captions" not in files)
    Engine(device="cpu", threads=options["threads"]).torch_device()
    copies = {side: fetch_given(given, configured_path("cache_root")) for side, given in files.items()}
    with TemporaryDirectory() as folder:
        problem, _ = open_problem(copies, Path(folder), options, given_ids(options))
        with show_progress("estimating") as report:
            return estimate(problem, options["search"], progress=lambda done, total: report(done, total, "pieces")), {}


def _of_experiment(chain: Chain) -> tuple[Estimate, dict[str, int], list[str]]:
    from aoq.pipeline.data.batches import steps_per_epoch
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.mining.depths import Fitting
    from aoq.pipeline.mining.estimate import estimate, unknown_vectors
    from aoq.pipeline.prepare.encoders import open_encoder
    from aoq.pipeline.produce.data import open_true_train_split
    from aoq.pipeline.produce.drawing import forecast

    miner = chain.owner("hard_negatives")
    mining, data = miner.experiment.mining, miner.experiment.dataset
    if mining is None or miner.table is not None:
        makers = " and ".join(member.asked for member in miner.members)
        raise ValueError(
            f"the table of {chain.experiment.name!r} is made by {makers}, and no first round is "
            "searched for it; estimate an experiment with [mining]."
        )
    if data.source is not None and not miner["prepared"].exists():
        raise ValueError(f"{data.source.path} is not prepared yet; run: {to_make('prepared')}")
    if data.demo is not None:
        images = data.train_images or data.demo.images
        captions = DEMO_CAPTIONS * images
        positives = np.repeat(np.arange(images, dtype=np.int32), DEMO_CAPTIONS)
    else:
        split = open_true_train_split(miner)
        images, captions, positives = split.image_count, split.caption_count, split.positives
    settings = Engine(**engine().param_kwargs)
    settings.torch_device()
    encoder = miner.experiment.teacher_encoder
    dimensions = open_encoder(encoder).images.dims if encoder else miner.experiment.model.dimensions
    whole, piece = unknown_vectors(images, captions, dimensions)
    rounds = {"round one": miner.experiment.first_round, "round two": chain.experiment.student}
    steps = {
        name: training.epochs * steps_per_epoch(captions, training.batch_size)
        for name, training in rounds.items()
        if training is not None
    }
    memory = settings.mining_memory_mb * 1_000_000
    fitting = Fitting.to(positives, images, captions, h_captions=mining.h_captions, h_images=mining.h_images)
    problem = Problem(*whole, positives, fitting.captions, fitting.images, memory, device=settings.device)
    draws = chain.trains_on_table and chain.experiment.student.loss.draws_offline
    drawing = [fitting.said] if fitting.said else []
    if draws:
        drawing += forecast(chain, (images, captions), fitting.by_direction)
    with show_progress("estimating") as report:
        found = estimate(problem, mining.search, piece, lambda done, total: report(done, total, "pieces"))
    return found, steps, drawing


def _show(found: Estimate, steps: Mapping[str, int]) -> None:
    shape = found.shape
    rows = Table(box=None, pad_edge=False, show_header=False)
    if shape["h_images"]:
        rows.add_row("vectors", "{images:,} images, {captions:,} captions, {dimensions} dimensions".format(**shape))
        rows.add_row("lists", "{h_captions} captions an image, {h_images} images a caption".format(**shape))
    else:
        rows.add_row("vectors", "{images:,} of one set, {dimensions} dimensions".format(**shape))
        rows.add_row("lists", "{h_captions} others for each".format(**shape))
    rows.add_row("search", f"{found.search}: {found.why}")
    if found.operations is not None:
        rows.add_row("operations", f"{found.operations:.3g}")
    for name, seconds in found.seconds.items():
        rows.add_row(f"  {name}", _duration(seconds))
    total = sum(found.seconds.values())
    rows.add_row("time, about", _duration(total) if found.seconds else "not known; mine a part and see")
    rows.add_row("memory", f"{_size(found.memory_bytes)} and the mapped vectors, {_size(found.vector_bytes)}")
    rows.add_row("disk", f"{_size(found.work_bytes)} while it runs, {_size(found.table_bytes)} for the table")
    for name, count in steps.items():
        rows.add_row(name, f"{count:,} steps of training")
    Console().print_table(rows)
    if found.index is not None:
        _show_index(found.index, at_length=found.search == "ivf" or found.index.asked.exact_seconds > DAY)


def _show_index(found: IndexEstimate, *, at_length: bool) -> None:
    """Say when an exact search takes more than a day, and what an index would take; its arithmetic if it is long."""
    from aoq.pipeline.mining.index_cost import BREADTH

    console, here = Console(), found.asked
    console.print(
        f"an exact search takes a day at about {found.affordable_images:,} images in this shape; here "
        f"{_duration(here.exact_seconds)}, and an index (--search ivf) {_duration(here.index_seconds)}.",
        soft_wrap=True,
    )
    if not at_length:
        return
    columns = ("images", "captions", "exact", "ivf", "its indexes", "--memory-mb")
    rows = Table(*columns, box=None, pad_edge=False)
    for scale in found.larger:
        times = _duration(scale.exact_seconds), _duration(scale.index_seconds)
        needed = f"{scale.building_bytes // 10**6 + 1:,}"
        rows.add_row(f"{scale.images:,}", f"{scale.captions:,}", *times, _size(scale.index_bytes), needed)
    console.print_table(rows)
    console.print(
        f"the last row, if {BREADTH} cells are enough (a run measures it) and vectors and indexes fit in memory:",
        soft_wrap=True,
    )
    for line in found.arithmetic:
        console.print(f"  {line}", soft_wrap=True)


def _duration(seconds: float) -> str:
    for unit, length in (("days", DAY), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
