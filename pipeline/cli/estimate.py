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
from jaxtyping import Integer
from rich.table import Table

from aoq.pipeline.cli.naming import EXPERIMENT, to_make, with_override
from aoq.pipeline.cli.options import as_json, mining_options, roots
from aoq.pipeline.cli.output import Console, echo_json
from aoq.pipeline.cli.vectors import divides, given_ids, pair_vectors, require_pairing
from aoq.pipeline.planning.chain import Chain, table_depths, table_owner
from aoq.pipeline.planning.planner import plan as plan_chain
from aoq.pipeline.progress import show_progress
from aoq.pipeline.remote import fetch_given
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.settings import configured_engine, configured_path
from aoq.pipeline.vectors import open_vectors

if TYPE_CHECKING:
    from aoq.pipeline.config.training import Training
    from aoq.pipeline.mining.depths import Fitting
    from aoq.pipeline.mining.estimate import Estimate, IndexEstimate

DEMO_CAPTIONS = 5
DAY = 86_400
OF_ENGINE = {"threads": "threads", "memory_mb": "mining_memory_mb"}
"""Options that for an experiment stand in luigi.cfg; the others stand in its file."""


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
    are also the training's steps, and how hard the student's offline negatives will be beside in-batch ones. A table
    made of other experiments' tables is not searched for, and co-taught networks have none; then steps and draws are
    shown alone.
    """
    if (images is None) != (experiment is not None):
        raise click.UsageError("give IMAGES and CAPTIONS, or --experiment NAME")
    source_of = click.get_current_context().get_parameter_source
    for name in ["override"] if experiment is None else options:
        if source_of(name) is ParameterSource.COMMANDLINE:
            where = f"[engine] {OF_ENGINE[name]} in luigi.cfg" if name in OF_ENGINE else "[mining]"
            whose = "an --experiment" if experiment is None else f"IMAGES and CAPTIONS; an experiment has {where}"
            raise click.UsageError(f"--{name.replace('_', '-')} is for {whose}.")
    if experiment is None:
        given = {"images": images, "captions": captions}
        found: Estimate | None = _of_vectors({side: file for side, file in given.items() if file is not None}, options)
        steps: dict[str, int] = {}
        drawing: list[str] = []
    else:
        experiment, override = with_override(experiment, override)
        chain = plan_chain(experiment, override=override, data_root=data_root, artifact_root=artifact_root)
        found, steps, drawing = _of_experiment(chain)
    if as_json:
        total = sum(found.seconds.values()) if found else 0
        about = asdict(found) if found else {}
        echo_json({**about, "total_seconds": total or None, "steps": steps, "drawing": drawing})
        return
    _show(found, steps)
    for sentence in drawing:
        Console().print(sentence, soft_wrap=True)


def _of_vectors(files: Mapping[str, str], options: Mapping[str, Any]) -> Estimate:
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.mining.estimate import estimate

    require_pairing(options, one_set="captions" not in files)
    Engine(device="cpu", threads=options["threads"]).torch_device()
    copies = {side: fetch_given(given, configured_path("cache_root")) for side, given in files.items()}
    with TemporaryDirectory() as folder:
        sides = {
            side: open_vectors(copy, Path(folder) / f"{side}.npy", normalise=divides(options))
            for side, copy in copies.items()
        }
        problem = pair_vectors(sides, options, given_ids(options))
        with show_progress("estimating") as report:
            return estimate(problem, options["search"], progress=lambda done, total: report(done, total, "pieces"))


def _of_experiment(chain: Chain) -> tuple[Estimate | None, dict[str, int], list[str]]:
    """Estimate the mining, if the table is searched for, count the steps, and describe the draws."""
    from aoq.pipeline.mining.depths import Fitting
    from aoq.pipeline.produce.drawing import forecast

    experiment = chain.experiment
    if "second_round" not in chain.stages or experiment.weights is not None:
        makers = f" It is made of {_makers(chain)}; estimate these." if chain.members else ""
        raise ValueError(f"{experiment.name!r} mines and trains nothing, so there is nothing to estimate.{makers}")
    source = table_owner(chain)
    images, captions, positives = _training_data(source or chain)
    if source is None:
        networks = 2 * _steps(experiment.student, captions)
        said = "co-taught networks draw from no table; their steps after the warm-up are of pairs selected as clean"
        return None, {"co-teaching, at most": networks}, [said]
    rounds = {"round one": source.experiment.first_round, "round two": experiment.student}
    steps = {name: _steps(training, captions) for name, training in rounds.items() if training is not None}
    depths = table_depths(chain)
    fitting = Fitting.to(positives, images, captions, **depths.named("h"))
    drawing = [fitting.said] if fitting.said else []
    found = None
    if source.table is None:
        found = _of_mining(source, fitting, images, captions, positives)
    else:
        steps.pop("round one", None)  # that of a member
        drawing.append(f"the table is made of {_makers(source)}, which is not counted here; estimate these too")
    if chain.trains_on_table and experiment.student.loss.draws_offline:
        drawing += forecast(chain, (images, captions), fitting.by_direction)
    return found, steps, drawing


def _makers(chain: Chain) -> str:
    return " and ".join(member.asked for member in chain.members)


def _steps(training: Training, captions: int) -> int:
    from aoq.pipeline.data.batches import steps_per_epoch

    return training.epochs * steps_per_epoch(captions, training.batch_size)


def _training_data(chain: Chain) -> tuple[int, int, Integer[np.ndarray, "*shape"]]:
    """Count the images and captions of the training split, and read its pairs."""
    from aoq.pipeline.produce.data import open_true_train_split

    data = chain.experiment.dataset
    if data.source is not None and not chain["prepared"].exists():
        raise ValueError(f"{data.source.path} is not prepared yet; run: {to_make('prepared')}")
    if data.demo is None:
        split = open_true_train_split(chain)
        return split.image_count, split.caption_count, split.positives
    images = data.train_images or data.demo.images
    return images, DEMO_CAPTIONS * images, np.repeat(np.arange(images, dtype=np.int32), DEMO_CAPTIONS)


def _of_mining(
    source: Chain, fitting: Fitting, images: int, captions: int, positives: Integer[np.ndarray, "*shape"]
) -> Estimate:
    from aoq.pipeline.mining.estimate import estimate, unknown_vectors
    from aoq.pipeline.prepare.encoders import open_encoder

    settings, mining = configured_engine(), source.experiment.mining
    assert mining is not None  # else it would have no table
    settings.torch_device()
    encoder = source.experiment.teacher_encoder
    dimensions = open_encoder(encoder).images.dims if encoder else source.experiment.model.dimensions
    whole, piece = unknown_vectors(images, captions, dimensions)
    memory = settings.mining_memory_mb * 1_000_000
    problem = Problem(*whole, positives, fitting.captions, fitting.images, memory, device=settings.device)
    with show_progress("estimating") as report:
        return estimate(problem, mining.search, piece, lambda done, total: report(done, total, "pieces"))


def _show(found: Estimate | None, steps: Mapping[str, int]) -> None:
    rows = Table(box=None, pad_edge=False, show_header=False)
    if found is not None:
        _add_mining(rows, found)
    for name, count in steps.items():
        rows.add_row(name, f"{count:,} steps of training")
    Console().print_table(rows)
    if found is not None and found.index is not None:
        _show_index(found.index, at_length=found.search == "ivf" or found.index.asked.exact_seconds > DAY)


def _add_mining(rows: Table, found: Estimate) -> None:
    shape = found.shape
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
    rows.add_row("memory", f"at most {_size(found.memory_bytes)}, and {_size(found.vector_bytes)} of mapped vectors")
    rows.add_row("disk", f"{_size(found.work_bytes)} while it runs, {_size(found.table_bytes)} for the table")


def _show_index(found: IndexEstimate, *, at_length: bool) -> None:
    """Say when an exact search takes more than a day, and what an index would take; its arithmetic if it is long."""
    from aoq.pipeline.mining.estimate import BREADTH

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
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
