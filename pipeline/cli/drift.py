"""`aoq drift`: how much a model still agrees with the table it trained on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from aoq.pipeline.cli.experiment import experiment_chain
from aoq.pipeline.cli.table import show_most_changed
from aoq.pipeline.planning.chain import Chain

STAGES = ("second_round", "control", "first_round")


@click.command()
@experiment_chain
@click.option(
    "--of",
    "stage",
    default="second_round",
    show_default=True,
    type=click.Choice(STAGES),
    help="The stage whose model searches.",
)
@click.option("--weights", type=click.Path(path_type=Path), help="A model.safetensors in place of a stage's.")
@click.option(
    "--anchors", default=256, show_default=True, type=click.IntRange(min=1), help="Searched in full, each way."
)
@click.option("--depth", type=int, help="Compare up to this rank; default: all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def drift(chain: Chain, stage: str, weights: Path | None, anchors: int, depth: int | None, as_json: bool) -> None:
    """Search sampled anchors of EXPERIMENT's training set with a model of it, and compare with its negative table.

    Little overlap: what the table calls hard is no longer what this model confuses.
    """
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.mining.drift import measure_drift
    from aoq.pipeline.produce.inputs import open_pairs
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.training.checkpoint import load_model

    name = chain.experiment.name
    for needed in ("hard_negatives", *(() if weights else (stage,))):
        if not chain[needed].exists():
            task = "".join(part.capitalize() for part in needed.split("_"))
            raise ValueError(f"{name} has no {needed} yet; run: luigi --module tasks {task} --experiment {name}")
    device = Engine().torch_device()
    owner = chain if weights or stage != "first_round" else chain.owner(stage)
    model = load_model(weights or chain[stage].path / "model.safetensors").to(device)
    table = read_table(chain["hard_negatives"].path / "table")
    found = measure_drift(model, open_pairs(owner, "train"), table, device, anchors=anchors, depth=depth)
    if as_json:
        click.echo(json.dumps({direction: asdict(one) for direction, one in found.items()}, indent=1))
        return
    columns = ("", "anchors", "depth", "overlap", "rank-biased", "above positive", "by the table")
    rows = Table(*columns, box=None, pad_edge=False)
    for direction, one in found.items():
        between = one.lists
        shares = ("-" if share is None else f"{share:.2%}" for share in (one.above_positive, one.above_positive_then))
        figures = (f"{between.overlap:.4f}", f"{between.rank_biased_overlap:.4f}", *shares)
        rows.add_row(direction, str(one.anchors), str(between.depth), *figures)
    Console().print(rows)
    show_most_changed({direction: one.lists for direction, one in found.items()})
