"""`aoq status`, `explain`, `verify`, `gc`: what is there, what its key is made of, whether it is whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from filelock import FileLock, Timeout
from rich.table import Column, Table

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.cli.naming import STAGE, to_make
from aoq.pipeline.cli.options import as_json, experiment_chain
from aoq.pipeline.cli.output import Console, counted, echo, echo_json, echo_next, styled
from aoq.pipeline.config.load import names_in
from aoq.pipeline.digests import file_sha256, known_sha256
from aoq.pipeline.inputs import SAMPLED
from aoq.pipeline.manifest import MANIFEST, content_of, read_manifest
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.scratch import LOCK, reclaim, scratch_in, writing_in
from aoq.pipeline.settings import configured_path, runs_root


@click.command()
@experiment_chain
@as_json
def status(chain: Chain, as_json: bool) -> None:
    """Show what is made or missing.

    One line per stage of EXPERIMENT, with its key. `aoq run EXPERIMENT --round STAGE` makes a stage.
    """
    if as_json:
        echo_json([{"stage": name, **_state(artifact)} for name, artifact in all_stages(chain).items()])
        return
    columns = (Column(name, no_wrap=True) for name in ("stage", "state", "made", "took", "size", "key"))
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for name, artifact in all_stages(chain).items():
        about = _state(artifact)
        if about["state"] == "done":
            made = about["finished"][5:16].replace("T", " ")
            row = (styled("done"), made, f"{about['seconds']:.0f} s", f"{about['bytes'] / 1e6:.1f} MB")
        else:
            row = (styled((about["state"], "yellow" if about["state"] == "begun" else "dim")), "", "", "")
        table.add_row(name, *row, artifact.key)
    console = Console()
    console.print_table(table)
    console.print(f"below {chain['dataset'].root}")
    missing = [stage for stage, artifact in chain.stages.items() if not artifact.exists()]
    if missing:
        wanted = next(stage for stage in ("second_round", "hard_negatives", *missing) if stage in missing)
        echo_next(to_make(wanted))


def _state(artifact: Artifact) -> dict[str, Any]:
    """Say whether an artefact is done, begun or missing; when it was finished and how large it is, if it is done."""
    about = {"key": artifact.key, "path": str(artifact.path)}
    if not artifact.exists():
        return {**about, "state": "begun" if artifact.work.is_dir() else "missing"}
    manifest = artifact.manifest()
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    done = {"finished": manifest["finished"], "seconds": manifest["seconds"], "bytes": size}
    return {**about, "state": "done", **done}


@click.command()
@experiment_chain
@click.argument("stage", type=STAGE)
def explain(chain: Chain, stage: str) -> None:
    """Show what a stage's key is made of.

    Where the artefact is missing, show what differs from the nearest one that exists.
    """
    artifact = chain[stage]
    echo_json({"key": artifact.key, **artifact.recipe})
    if artifact.exists():
        echo(f"\nIt is there: {artifact.path}")
        return
    made = [path.parent for path in artifact.path.parent.glob(f"[!.]*/{MANIFEST}")]
    others = {folder.name: read_manifest(folder)["recipe"] for folder in made}
    differences = {key: _difference(artifact.recipe, recipe) for key, recipe in others.items()}
    if not differences:
        echo(f"\nIt is not there, and no other {artifact.stage} is.")
        echo_next(to_make(stage))
        return
    nearest = min(differences, key=lambda key: (len(differences[key]), key))
    echo(f"\nIt is not there. The nearest one, {nearest}, differs in:")
    for place, (ours, theirs) in sorted(differences[nearest].items()):
        echo(f"  {place}: {ours} here, {theirs} there")
    echo_next(to_make(stage))


@click.command()
@experiment_chain
def verify(chain: Chain) -> None:
    """Check that artefacts are whole.

    Every file of EXPERIMENT's artefacts and of its dataset is hashed. Each artefact must have been made from the data
    and artefacts that are there. The exit code is 1 if anything is wrong.
    """
    problems, checked = [], 0
    for name, artifact in all_stages(chain).items():
        if not artifact.exists():
            echo(f"{name}: not made yet")
            continue
        checked += 1
        problems += [f"{name}: {sentence}" for sentence in _problems(artifact)]
    problems += changed_data(chain)
    for sentence in problems:
        echo(sentence, err=True)
    if problems:
        found = counted(len(problems), "problem")
        raise ValueError(f"{found}; delete the artefacts named and run again to remake them.")
    echo("1 artefact is whole." if checked == 1 else f"{checked} artefacts are whole.")


@click.command()
@click.option("--delete", is_flag=True, help="Delete what is listed; without --delete nothing is touched.")
@click.option("--unfinished", is_flag=True, help="Include interrupted work; its run would start again.")
@click.option("--data-root", default="")
@click.option("--artifact-root", default="")
def gc(delete: bool, unfinished: bool, data_root: str, artifact_root: str) -> None:
    """List or delete unused artefacts.

    Artefacts of the experiments in configs/, and those that links in runs/ lead to, are kept. Interrupted work is that
    of stages, and what killed commands left as .OUTPUT.work in the current directory or in the cache.
    """
    root = configured_path("artifact_root", artifact_root)
    needed = _needed(root, configured_path("data_root", data_root), runs_root(artifact_root))
    made = sorted(path.parent for path in root.glob(f"*/[!.]*/{MANIFEST}"))
    unneeded, begun = [path for path in made if path not in needed], []
    if unfinished:
        scratch = scratch_in(Path.cwd(), configured_path("cache_root"), *runs_root(artifact_root).glob("*"))
        begun = [*sorted(root.glob("*/.*.work")), *scratch]
    total = 0
    for path in (*unneeded, *begun):
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if delete and not _delete(path):
            echo(f"{path} is being worked on; left alone")
            continue
        total += size
        echo(f"{'deleted ' if delete else ''}{path}  {size / 1e6:.1f} MB")
    said = "freed" if delete else "could be freed: aoq gc --delete"
    count = f"{len(unneeded)} of {len(made)} artefacts" + (f", {len(begun)} unfinished" if begun else "")
    echo(f"{count}, {total / 1e6:.1f} MB {said}" if unneeded or begun else "nothing to free")


def all_stages(chain: Chain) -> dict[str, Artifact]:
    """The chain's artefacts, after its members' and those of its teacher's table, by names that say whose they are."""
    stages = {f"{member.asked} {member.stage}": member.artifact for member in chain.members}
    if (owner := chain.teacher) is not None:
        name, of_student = owner.experiment.name, ("screen", "control", "second_round", "evaluation")
        while owner.teacher is not None:
            owner = owner.teacher
        stages |= {f"{name} {stage}": made for stage, made in owner.stages.items() if stage not in of_student}
    return stages | dict(chain.stages)


def changed_data(chain: Chain) -> list[str]:
    """One sentence for each file of the dataset folder that is not what was read of it.

    Keys rest on a sample of the large arrays; this reads them whole.
    """
    recorded: dict[str, str] = {}
    for stage in ("dataset", "evaluation"):
        if stage in chain.stages and chain[stage].exists():
            with suppress(ValueError):  # which is one of the problems already
                recorded |= chain[stage].manifest().get("folder_sha256", {})
    return [
        f"dataset: {chain.folder / name} is not the file that was read; everything made from it is stale"
        for name, sha256 in recorded.items()
        if not (chain.folder / name).is_file() or known_sha256(chain.folder / name) != sha256
    ]


def _leaves(value: Any, place: str = "") -> dict[str, Any]:
    """A nested recipe as {"ingredients.training.epochs": 12, ...}."""
    if isinstance(value, Mapping):
        return {k: v for name, item in value.items() for k, v in _leaves(item, f"{place}.{name}".strip(".")).items()}
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple)):
        return {f"{place}.{stage}": key for stage, key in value}
    return {place: value}


def _difference(recipe: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The places where two recipes differ, with the value of each."""
    ours, theirs = _leaves(recipe), _leaves(other)
    both = {place: (ours.get(place, "nothing"), theirs.get(place, "nothing")) for place in {*ours, *theirs}}
    return {place: (here, there) for place, (here, there) in both.items() if here != there}


def _problems(artifact: Artifact) -> list[str]:
    """One sentence for each of its files that was changed, and for each input that is another now."""
    sentences: list[str] = []
    for search in (artifact.changed_files, partial(_other_inputs, artifact)):
        try:
            sentences += search()
        except ValueError as error:  # a manifest, its own or that of an input
            sentences.append(str(error))
    return list(dict.fromkeys(sentences))


def _other_inputs(artifact: Artifact) -> Iterator[str]:
    manifest, upstream = artifact.manifest(), {f"{made.stage}/{made.key}": made for made in artifact.upstream}
    inputs: dict[str, str] = manifest.get("inputs", {})
    there = [name for name in dict.fromkeys((*upstream, *inputs)) if (artifact.root / name / MANIFEST).exists()]
    yield from (f"made from {name}, which is gone" for name in upstream if name not in there)
    data: dict[str, str] = {}
    for name in there:
        folder = artifact.root / name
        if name in inputs:
            data |= read_manifest(folder).get("folder_sha256", {})
            is_other = content_of(read_manifest(folder)) != inputs[name]
        else:  # made before manifests named their inputs, or not read
            is_other = manifest["upstream_manifests"].get(name) != file_sha256(folder / MANIFEST)
        if is_other:
            yield f"made from another copy of {name} than the one that is there"
    for name, content in inputs.items():
        file = name.rpartition("/")[2]
        if name.startswith("data/") and content.removeprefix(SAMPLED) != data.get(file, content):
            yield f"made from another {file} than the dataset"


def _needed(root: Path, data_root: Path, runs: Path) -> set[Path]:
    needed: set[Path] = set()
    for name in names_in():
        try:
            chain = plan(name, data_root=data_root, artifact_root=root)
        except (ValueError, OSError):
            continue  # its data is not here, so neither is anything made from it, unless a link below says so
        needed |= {artifact.path for artifact in all_stages(chain).values()}
    linked = [link.resolve() for link in runs.glob("*/*") if link.is_symlink() and (link / MANIFEST).exists()]
    while linked:
        path = linked.pop()
        needed.add(path)
        upstream = (root / stage / key for stage, key in read_manifest(path)["recipe"]["upstream"])
        linked += [other for other in upstream if (other / MANIFEST).exists()]
    return needed


def _delete(path: Path) -> bool:
    """Delete an artefact, a work directory or scratch, unless a run holds its lock."""
    if (path / LOCK).exists():
        return reclaim(path)
    key = path.name.removeprefix(".").removesuffix(".work")
    lock = FileLock(path.with_name(f".{key}.lock"))
    try:
        with writing_in(path.parent), lock.acquire(timeout=0):
            (path / MANIFEST).unlink(missing_ok=True)  # first: what has no manifest is no artefact
            Build(path).clear()
            path.rmdir()
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        return False
    return True
