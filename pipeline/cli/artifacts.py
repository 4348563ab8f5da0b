"""`aoq status`, `explain`, `verify`, `gc`: what is there, what its key is made of, whether it is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from aoq.pipeline.artifact import MANIFEST, Artifact, file_sha256
from aoq.pipeline.cli.experiment import all_stages, experiment_chain
from aoq.pipeline.config.load import names_in
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.settings import configured_path, runs_root


@click.command()
@experiment_chain
def status(chain: Chain) -> None:
    """Show what of EXPERIMENT is made or missing."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("stage", "state", "made", "took", "size", "key"):
        table.add_column(column, no_wrap=True)
    for name, artifact in all_stages(chain).items():
        if artifact.exists():
            manifest = artifact.manifest()
            size = sum(entry["bytes"] for entry in manifest["files"].values())
            made = manifest["finished"][5:16].replace("T", " ")
            row = ("done", made, f"{manifest['seconds']:.0f} s", f"{size / 1e6:.1f} MB")
        else:
            row = ("[yellow]begun[/]" if artifact.work.is_dir() else "[dim]missing[/]", "", "", "")
        table.add_row(name, *row, artifact.key)
    console = Console()
    console.print(table)
    console.print(f"below {chain['dataset'].root}", highlight=False)


@click.command()
@experiment_chain
@click.argument("stage")
def explain(chain: Chain, stage: str) -> None:
    """Show what STAGE's key is made of.

    Where the artefact is missing, show what differs from the nearest one that exists.
    """
    artifact = chain[stage]
    click.echo(json.dumps({"key": artifact.key, **artifact.recipe}, indent=1))
    if artifact.exists():
        click.echo(f"\nIt is there: {artifact.path}")
        return
    others = {path.parent.name: _read_recipe(path) for path in artifact.path.parent.glob(f"*/{MANIFEST}")}
    if not others:
        click.echo(f"\nIt is not there, and no other {artifact.stage} is.")
        return
    wanted = _leaves(artifact.recipe)
    differences = {key: _difference(wanted, _leaves(recipe)) for key, recipe in others.items()}
    nearest = min(differences, key=lambda key: (len(differences[key]), key))
    click.echo(f"\nIt is not there. The nearest one, {nearest}, differs in:")
    for place, (ours, theirs) in sorted(differences[nearest].items()):
        click.echo(f"  {place}: {ours} here, {theirs} there")


@click.command()
@experiment_chain
def verify(chain: Chain) -> None:
    """Check that EXPERIMENT's files are whole.

    Hash every file of its artefacts and of its dataset, and check that each was made from what is there.
    """
    problems, checked = [], 0
    for name, artifact in all_stages(chain).items():
        if not artifact.exists():
            click.echo(f"{name}: not made yet")
            continue
        checked += 1
        problems += [f"{name}: {sentence}" for sentence in artifact.changed_files()]
        problems += [f"{name}: {sentence}" for sentence in _other_upstream(artifact)]
    problems += changed_data(chain)
    for sentence in problems:
        click.echo(sentence, err=True)
    if problems:
        raise ValueError(f"{len(problems)} problems; delete the artefacts named and run again to remake them.")
    click.echo(f"{checked} artefacts are whole.")


@click.command()
@click.option("--delete", is_flag=True, help="Delete what is listed; without it nothing is touched.")
@click.option("--unfinished", is_flag=True, help="List (and delete) interrupted work as well: it would start again.")
@click.option("--data-root", default="")
@click.option("--artifact-root", default="")
def gc(delete: bool, unfinished: bool, data_root: str, artifact_root: str) -> None:
    """List or delete artefacts nothing leads to.

    What an experiment in configs/ or a link in runs/ leads to is kept.
    """
    root = configured_path("artifact_root", artifact_root)
    needed = _needed(root, configured_path("data_root", data_root), runs_root(artifact_root))
    made = sorted(path.parent for path in root.glob(f"*/*/{MANIFEST}") if not path.parent.name.startswith("."))
    listed = [path for path in made if path not in needed]
    listed += sorted(root.glob("*/.*.work")) if unfinished else []
    total = 0
    for path in listed:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if delete and not _delete(path):
            click.echo(f"{path} is being worked on; left alone")
            continue
        total += size
        click.echo(f"{'deleted ' if delete else ''}{path}  {size / 1e6:.1f} MB")
    said = "freed" if delete else "could be freed: aoq gc --delete"
    click.echo(f"{len(listed)} of {len(made)} artefacts, {total / 1e6:.1f} MB {said}" if listed else "nothing to free")


def changed_data(chain: Chain) -> list[str]:
    """One sentence for each file of the dataset folder that is not what the dataset stage read.

    Keys rest on a sample of the large arrays; this reads them whole.
    """
    if not chain["dataset"].exists():
        return []
    recorded = chain["dataset"].manifest().get("folder_sha256", {})
    return [
        f"dataset: {chain.folder / name} is not the file that was read; everything made from it is stale"
        for name, sha256 in recorded.items()
        if not (chain.folder / name).is_file() or file_sha256(chain.folder / name) != sha256
    ]


def _read_recipe(manifest: Path) -> dict[str, Any]:
    return dict(json.loads(manifest.read_text(encoding="utf-8"))["recipe"])


def _leaves(value: Any, place: str = "") -> dict[str, Any]:
    """A nested recipe as {"ingredients.training.epochs": 12, ...}."""
    if isinstance(value, Mapping):
        return {k: v for name, item in value.items() for k, v in _leaves(item, f"{place}.{name}".strip(".")).items()}
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple)):
        return {f"{place}.{stage}": key for stage, key in value}
    return {place: value}


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    both = {place: (ours.get(place, "nothing"), theirs.get(place, "nothing")) for place in {*ours, *theirs}}
    return {place: (here, there) for place, (here, there) in both.items() if here != there}


def _other_upstream(artifact: Artifact) -> list[str]:
    recorded = artifact.manifest()["upstream_manifests"]
    sentences = []
    for upstream in artifact.upstream:
        name = f"{upstream.stage}/{upstream.key}"
        if not upstream.exists():
            sentences.append(f"made from {name}, which is gone")
        elif recorded[name] != file_sha256(upstream.manifest_path):
            sentences.append(f"made from another copy of {name} than the one that is there")
    return sentences


def _needed(root: Path, data_root: Path, runs: Path) -> set[Path]:
    needed: set[Path] = set()
    for name in names_in():
        try:
            chain = plan(name, data_root=data_root, artifact_root=root)
        except (ValueError, OSError):
            continue  # its data is not here, so neither is anything made from it, unless a link below says so
        needed |= {artifact.path for artifact in all_stages(chain).values()}
    for link in runs.glob("*/*"):
        if link.is_symlink() and (link / MANIFEST).exists():
            needed |= _with_upstream(root, link.resolve())
    return needed


def _with_upstream(root: Path, path: Path) -> set[Path]:
    upstream = [root / stage / key for stage, key in _read_recipe(path / MANIFEST)["upstream"]]
    found = [other for other in upstream if (other / MANIFEST).exists()]
    return {path}.union(*(_with_upstream(root, other) for other in found))


def _delete(path: Path) -> bool:
    """Delete an artefact or a work directory unless a run holds its lock."""
    key = path.name.removeprefix(".").removesuffix(".work")
    lock = FileLock(path.with_name(f".{key}.lock"))
    try:
        with lock.acquire(timeout=0):
            (path / MANIFEST).unlink(missing_ok=True)  # first: what has no manifest is no artefact
            shutil.rmtree(path)
    except Timeout:
        return False
    Path(lock.lock_file).unlink(missing_ok=True)
    return True
