"""`aoq import-checkpoint`: official checkpoints as weights of aoq's models."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

import click

from aoq.pipeline.cli.options import PATH
from aoq.pipeline.cli.output import echo
from aoq.pipeline.files import scratch_beside

if TYPE_CHECKING:
    from aoq.models.official import OfficialModel

TO_MINE = """\
To mine with it, take [first_round] out of an experiment, say a copy of configs/f30k_vsrn.toml, and set
{lines}"""
TO_EVALUATE = """\
To evaluate it, alone or in an [ensemble], take `teacher` and [second_round] out of an experiment, say a copy
of configs/f30k_scan_t2i.toml, and set
{lines}
It cannot mine: it compares fragments, and a search index needs one vector per image or caption."""


@click.command("import-checkpoint")
@click.argument("checkpoint", type=PATH)
@click.argument("output", type=PATH)
@click.option("--model", "name", metavar="NAME", help="Model, where the weights fit several: vsepp, scan, bfan, naaf.")
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
def import_checkpoint_command(checkpoint: Path, output: Path, name: str | None, force: bool) -> None:
    """Convert an official checkpoint.

    OUTPUT is a .safetensors file with the model's weights and options.

    CHECKPOINT is the model_best.pth.tar of VSE++, VSRN, AOQ, SCAN, BFAN, PFAN, SGRAF (SGR or SAF), NAAF, NCR or VSE∞
    (with a GRU), from any torch and Python version. Nothing in it is executed. NCR's holds two networks and becomes two
    files, OUTPUT with _a and with _b before the ending.

    The weights and the training options in the file identify the model; the output shows what to write into an
    experiment's TOML file. A checkpoint with missing or unexpected weights is refused.
    """
    from aoq.pipeline.official import read_official_checkpoint
    from aoq.pipeline.training.checkpoint import save_model

    with scratch_beside(output) as folder:  # all files or none
        models = read_official_checkpoint(checkpoint, name)
        paths = [output] if len(models) == 1 else [output.with_stem(f"{output.stem}_{letter}") for letter in "ab"]
        for path in paths:
            if path.is_dir() or (path.exists() and not force):
                raise ValueError(f"{path} is a directory." if path.is_dir() else f"{path} exists; --force replaces it.")
        written = [folder / path.name for path in paths]
        for model, path in zip(models, written, strict=True):
            save_model(path, model.weights, {"name": model.name, "options": dict(model.options)})
        for ready, path in zip(written, paths, strict=True):
            os.replace(ready, path)
    echo(_report(models, paths))


def _report(models: Sequence[OfficialModel], paths: Sequence[Path]) -> str:
    from aoq.pipeline.official import model_section

    model, section = models[0], model_section(models[0])
    lines = [f"Recognised {model.name}: {model.evidence}."]
    lines += [f"  {key} = {value}" for key, value in model.options.items()]
    if model.assumed:
        assumed = ", ".join(f"{key} = {value}" for key, value in model.assumed.items())
        lines.append(f"Options not in the checkpoint, set to the official defaults: {assumed}.")
    lines.append(f"Written to {' and '.join(map(str, paths))}.")
    if len(models) > 1:
        lines.append("These are NCR's two networks; its score is the mean of both (an ensemble experiment).")
    weights = "teacher_weights" if section.makes_embeddings else "weights"
    options = {"name": model.name, **section.model_dump(exclude_defaults=True, exclude={"name"})}
    entries = [
        f"{weights} = {json.dumps(paths[0].name)}  # at the top; a path relative to the data root",
        "\n[dataset]",
        f'vocabulary = "..."  # the one it was trained with, {model.options["vocabulary_size"]} words',
        "\n[model]",
        *(f"{key} = {json.dumps(value)}" for key, value in options.items()),
    ]
    next_step = TO_MINE if section.makes_embeddings else TO_EVALUATE
    return "\n".join([*lines, "", next_step.format(lines=indent("\n".join(entries), "    "))])
