"""`aoq import-checkpoint`: official checkpoints as weights this project reads."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import-checkpoint")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace OUTPUT if it is there.")
def import_checkpoint(checkpoint: Path, output: Path, force: bool) -> None:
    """Turn an official CHECKPOINT (.pth.tar of VSRN, AOQ, SCAN, VSE++) into OUTPUT, a .safetensors file.

    Nothing in the file is executed. Name OUTPUT as `[first_round] weights` of an experiment to mine with it.
    """
    from pipeline.official import read_official_checkpoint
    from pipeline.training.checkpoint import save_model

    if output.exists() and not force:
        raise ValueError(f"{output} exists; --force replaces it.")
    if not output.parent.is_dir():
        raise ValueError(f"{output.parent} is no folder to write to.")
    model = read_official_checkpoint(checkpoint)
    save_model(output, model.weights, {"name": model.name, "options": dict(model.options)})
    options = ", ".join(f"{name} = {value}" for name, value in model.options.items())
    click.echo(f"{model.name}: {options}\nwritten to {output}")
