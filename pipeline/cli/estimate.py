"""`aoq estimate`: the time and the memory that mining will take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from jaxtyping import Integer

from aoq.pipeline.cli import vector_options
from aoq.pipeline.cli.options import EXPERIMENT, as_json, override, roots, with_override
from aoq.pipeline.cli.output import decimal, echo_json, is_typed, say, show_rows, to_make
from aoq.pipeline.config.load import split_member
from aoq.pipeline.console import duration
from aoq.pipeline.engine import Engine
from aoq.pipeline.mining.sizes import fit_depths
from aoq.pipeline.search.problem import Direction, Problem
from aoq.pipeline.settings import configured_engine, configured_path
from aoq.pipeline.stages.chain import Chain, run_name, table_depths, table_owner
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.splits import open_true_train_split
from aoq.pipeline.vectors import fetch_source, open_vectors

if TYPE_CHECKING:
    from aoq.pipeline.artifact import Artifact
    from aoq.pipeline.mining.estimate import Estimate

DEMO_CAPTIONS = 5
NO_TABLE = "the student draws nothing from a table, so none is made for it"


@click.command("estimate")
@click.argument("images", required=False)
@click.argument("captions", required=False)
@click.option(
    "--experiment", type=EXPERIMENT, help="Estimate an experiment's mining and training, not IMAGES and CAPTIONS."
)
@override
@roots
@as_json
@vector_options.mining_options
def estimate_command(
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

    Takes the options of `aoq mine` except --hubness, --sides, --backend and --ray-address. Mines a small piece in one
    process on this machine, for a second or two, and scales the time of each step by its operations. Also shows the
    size at which an exact search takes a day.

    With --experiment, the shape comes from the data and the model, and the options from [mining] and luigi.cfg. This
    also shows the training's steps, and how much harder the student's offline negatives are than in-batch ones. For a
    table made from other experiments, it shows only the steps and the hardness; without a table, only the steps.
    """
    if (images is None) != (experiment is not None):
        raise click.UsageError("give IMAGES and CAPTIONS, or --experiment NAME")
    if experiment is None:
        if override:
            raise click.UsageError("--override is for an --experiment.")
        files = {"images": str(images), **({} if captions is None else {"captions": captions})}
        mining: Estimate | None = _estimate_vectors(files, options)
        steps, drawing = dict[str, int](), list[str]()
    else:
        if typed := [name.replace("_", "-") for name in options if is_typed(name)]:
            own = "an experiment has its own, in its [mining] or in [engine] of luigi.cfg"
            raise click.UsageError(f"--{typed[0]} is for IMAGES and CAPTIONS; {own}.")
        name, override = with_override(experiment, override)
        chain = plan(name, override=override, data_root=data_root, artifact_root=artifact_root)
        mining, steps, drawing = _estimate_experiment(chain)
    if as_json:
        about = asdict(mining) if mining else {}
        total = sum(mining.seconds.values()) if mining else 0
        echo_json({**about, "total_seconds": total or None, "steps": steps, "drawing": drawing})
        return
    rows = _mining_rows(mining) if mining else []
    show_rows(("", ""), [*rows, *((name, f"{count:,} steps of training") for name, count in steps.items())])
    if mining and mining.affordable_images:
        say(f"an exact search takes a day at about {mining.affordable_images:,} images in this shape")
    for sentence in drawing:
        say(sentence)


def _estimate_vectors(files: Mapping[str, str], options: Mapping[str, Any]) -> Estimate:
    from aoq.pipeline.mining.estimate import estimate

    vector_options.require_pairing(options, one_set="captions" not in files)
    Engine(device="cpu", threads=options["threads"]).torch_device()
    with TemporaryDirectory() as folder:
        sides = {}
        for side, file in files.items():
            copy = fetch_source(file, configured_path("cache_root"))
            by_norms = vector_options.has_unit_norms(options)
            sides[side] = open_vectors(copy, Path(folder) / f"{side}.npy", normalise=by_norms)
        ids = vector_options.read_ids_of_sides(options)
        one = estimate(vector_options.pair_vectors(sides, options, ids), options["search"])
        copies = sum(path.stat().st_size for path in Path(folder).iterdir())
        return replace(one, work_bytes=one.work_bytes + copies)


def _estimate_experiment(chain: Chain) -> tuple[Estimate | None, dict[str, int], list[str]]:
    """Estimate the mining, unless the table is made from others; count the steps; describe the draws."""
    from aoq.pipeline.data.batches import steps_per_epoch
    from aoq.pipeline.stages.draws import forecast

    experiment, source = chain.experiment, table_owner(chain)
    if "second_round" not in chain.stages or experiment.weights is not None:
        makers = f"estimate {_makers(chain)}, which it combines" if chain.members else "choose another experiment"
        raise ValueError(f"{experiment.name!r} mines and trains nothing; {makers}.")
    images, captions, positives = _training_pairs(source or chain)
    # By default the control takes round two's steps.
    stages = ["second_round"] if experiment.student.control is None else ["second_round", "control"]
    steps = {}
    for artifact in {one.key: one for stage in stages for one in _trainings(chain[stage])}.values():
        schedule = _schedule(artifact)
        reference, stage = next(chain.uses(artifact))
        title = {"first_round": "round one", "second_round": "round two"}.get(stage, stage)
        epoch = schedule.get("epoch_steps") or steps_per_epoch(captions, schedule["batch_size"])
        steps[f"{title} of {run_name(*split_member(reference))}" if reference else title] = schedule["epochs"] * epoch
    if experiment.co_teaching is not None:
        note = "co-taught networks draw from no table; after the warm-up they train on the pairs selected as clean"
        return None, {"co-teaching, at most": 2 * steps["round two"]}, [note]
    if source is None:
        return None, steps, [NO_TABLE]
    depths, note = fit_depths(positives, images, captions, **table_depths(chain))
    drawing = [note] if note else []
    mining = None
    if not chain.trains_on_table:
        drawing.append(NO_TABLE)
    elif source.table is None:
        mining = _estimate_mining(source, depths, images, captions, positives)
    else:
        drawing.append(f"the table is made from {_makers(source)}, not counted here; estimate these too")
    lists = experiment.student.distillation and experiment.student.distillation.listed
    if chain.trains_on_table and (experiment.student.loss.draws_offline or lists):
        drawing += forecast(chain, (images, captions), depths)
    return mining, steps, drawing


def _trainings(artifact: Artifact) -> Iterator[Artifact]:
    """Yield what is trained for an artefact, in order, itself included."""
    for one in artifact.upstream:
        yield from _trainings(one)
    if _schedule(artifact):
        yield artifact


def _schedule(artifact: Artifact) -> Mapping[str, Any]:
    """Return the options of a training; nothing for other artefacts."""
    ingredients = artifact.ingredients
    return ingredients.get("training") or ingredients.get("co_teaching") or {}


def _makers(chain: Chain) -> str:
    return " and ".join(member.reference for member in chain.members)


def _training_pairs(chain: Chain) -> tuple[int, int, Integer[np.ndarray, "*shape"]]:
    data = chain.experiment.dataset
    if data.source is not None and not chain["prepared"].exists():
        raise ValueError(f"{data.source.path} is not prepared yet; run: {to_make('prepared')}")
    if data.demo is None:
        split = open_true_train_split(chain)
        return split.image_count, split.caption_count, split.positives
    images = data.train_images or data.demo.images
    return images, DEMO_CAPTIONS * images, np.repeat(np.arange(images, dtype=np.int32), DEMO_CAPTIONS)


def _estimate_mining(
    source: Chain, depths: Mapping[Direction, int], images: int, captions: int, positives: Integer[np.ndarray, "*shape"]
) -> Estimate:
    from aoq.pipeline.mining.estimate import estimate, unknown_vectors
    from aoq.pipeline.prepare.extractors import open_encoder

    engine, mining = configured_engine(), source.experiment.mining
    assert mining is not None  # it makes its own table
    engine.torch_device()
    encoder = source.experiment.teacher_encoder
    dimensions = open_encoder(encoder).images.dims if encoder else source.experiment.model.dimensions
    whole, piece = unknown_vectors(images, captions, dimensions)
    memory = engine.mining_memory_mb * 1_000_000
    problem = Problem(*whole, positives, depths["i2t"], depths["t2i"], memory, device=engine.device)
    return estimate(problem, mining.search, piece)


def _mining_rows(one: Estimate) -> list[tuple[str, str]]:
    vectors, lists = "{images:,} in one set, {dimensions} dimensions", "{h_captions} per item"
    if one.shape["h_images"]:
        vectors = "{images:,} images, {captions:,} captions, {dimensions} dimensions"
        lists = "{h_captions} captions per image, {h_images} images per caption"
    total = duration(sum(one.seconds.values())) if one.seconds else "unknown; mine a part to measure it"
    return [
        ("vectors", vectors.format(**one.shape)),
        ("lists", lists.format(**one.shape)),
        ("search", f"{one.search}: {one.why}"),
        *((f"  {name}", duration(seconds)) for name, seconds in one.seconds.items()),
        ("time, about", total),
        ("memory", f"at most {decimal(one.memory_bytes)}, and {decimal(one.vector_bytes)} of mapped vectors"),
        ("disk", f"{decimal(one.work_bytes)} while it runs, {decimal(one.table_bytes)} for the table"),
    ]
