"""`aoq status`, `explain`, `verify`: artefacts, their keys and their integrity."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import click

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import MANIFEST_FILE, SAMPLED, content_of, read_artifact_manifest
from aoq.pipeline.cli.options import STAGE, as_json, experiment_chain
from aoq.pipeline.cli.output import counted, echo, echo_json, echo_next, say, show_rows, styled, to_make
from aoq.pipeline.files import file_sha256, known_sha256
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.tables.card import describe_guarantee


@click.command("status")
@experiment_chain
@as_json
def status_command(chain: Chain, as_json: bool) -> None:
    """Show what is made or missing.

    One line per stage of EXPERIMENT, with its key. `aoq run EXPERIMENT --round STAGE` makes a stage.
    """
    stages = {name: _state(artifact) for name, artifact in all_stages(chain).items()}
    if as_json:
        echo_json([{"stage": name, **about} for name, about in stages.items()])
        return
    rows = []
    for name, about in stages.items():
        style, figures = {"done": "", "begun": "yellow"}.get(about["state"], "dim"), ("", "", "")
        if about["state"] == "done":
            finished = about["finished"][5:16].replace("T", " ")
            figures = finished, f"{about['seconds']:.0f} s", f"{about['bytes'] / 1e6:.1f} MB"
        rows.append((name, styled((about["state"], style)), *figures, about["key"]))
    show_rows(("stage", "state", "made", "took", "size", "key"), rows)
    say(f"below {chain['dataset'].root}")
    missing = [stage for stage in stages if stage in chain.stages and stages[stage]["state"] != "done"]
    if missing:
        echo_next(to_make(next(stage for stage in ("second_round", "hard_negatives", *missing) if stage in missing)))


def _state(artifact: Artifact) -> dict[str, Any]:
    """Describe an artefact: done, begun or missing; and, if it is done, when it was finished and how large it is."""
    about = {"key": artifact.key, "path": str(artifact.path)}
    if not artifact.exists():
        return {**about, "state": "begun" if artifact.work.is_dir() else "missing"}
    manifest = artifact.manifest()
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    return {**about, "state": "done", "finished": manifest["finished"], "seconds": manifest["seconds"], "bytes": size}


@click.command("explain")
@experiment_chain
@click.argument("stage", type=STAGE)
@as_json
def explain_command(chain: Chain, stage: str, as_json: bool) -> None:
    """Show what a stage's key is made of.

    Where the artefact is missing, show what differs from the nearest one that exists.
    """
    artifact = chain[stage]
    nearest, differs = (None, {}) if artifact.exists() else _nearest(artifact)
    recipe = {"key": artifact.key, **artifact.recipe}
    if as_json:
        differences = {place: {"here": ours, "there": theirs} for place, (ours, theirs) in differs.items()}
        echo_json({**recipe, **_state(artifact), "nearest": nearest, "differences": differences})
        return
    echo_json(recipe)
    if artifact.exists():
        echo(f"\nIt exists: {artifact.path}")
        return
    other = f"The nearest one, {nearest}, differs in:" if nearest else f"No other {artifact.stage} exists."
    echo(f"\nIt does not exist. {other}")
    for place, (ours, theirs) in differs.items():
        echo(f"  {place}: {ours} here, {theirs} there")
    echo_next(to_make(stage))


def _nearest(artifact: Artifact) -> tuple[str | None, dict[str, tuple[Any, Any]]]:
    """Find the artefact of this stage that differs least: its key, or None, and the places with both values."""
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    ours = _leaves(artifact.recipe)
    for path in artifact.path.parent.glob(f"[!.]*/{MANIFEST_FILE}"):
        theirs = _leaves(read_artifact_manifest(path.parent)["recipe"])
        both = {place: (ours.get(place, "nothing"), theirs.get(place, "nothing")) for place in {*ours, *theirs}}
        found[path.parent.name] = {place: both[place] for place in sorted(both) if both[place][0] != both[place][1]}
    nearest = min(found, key=lambda key: (len(found[key]), key), default=None)
    return nearest, found.get(nearest or "", {})


def _leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Flatten a recipe.

    >>> _leaves({"ingredients": {"epochs": 2}, "upstream": [["second_round", "3f"], ["second_round", "8a"]]})
    {'ingredients.epochs': 2, 'upstream.second_round': '3f', 'upstream.second_round 2': '8a'}
    """
    leaves: dict[str, Any] = {}
    if place == "upstream":
        for stage, key in value:
            times = 1 + sum(name.split()[0] == f"upstream.{stage}" for name in leaves)
            leaves[f"upstream.{stage}" + (f" {times}" if times > 1 else "")] = key
        return leaves
    if not isinstance(value, Mapping):
        return {place: value}
    for name, item in value.items():
        leaves |= _leaves(item, f"{place}.{name}".strip("."))
    return leaves


@click.command("verify")
@experiment_chain
@as_json
def verify_command(chain: Chain, as_json: bool) -> None:
    """Check that artefacts are whole.

    Every file of EXPERIMENT's artefacts and of its dataset is hashed. Each artefact must have been made from the data
    and artefacts that exist. The exit code is 1 if anything is wrong.
    """
    stages = [_checked(name, artifact) for name, artifact in all_stages(chain).items()]
    changed = changed_data(chain)
    problems = [*(f"{one['stage']}: {sentence}" for one in stages for sentence in one["problems"]), *changed]
    if as_json:
        echo_json({"stages": stages, "dataset": {"path": str(chain.folder), "problems": changed}})
        sys.exit(bool(problems))
    for one in stages:
        if one["state"] == "missing":
            echo(f"{one['stage']}: not made yet")
        for direction, guarantee in one["not_exact"].items():
            echo(f"{one['stage']}: {direction} is {guarantee}")
    for sentence in problems:
        echo(sentence, err=True)
    if problems:
        count = counted(len(problems), "problem")
        raise ValueError(f"{count}; delete the artefacts named and run again to remake them.")
    whole = sum(one["state"] == "whole" for one in stages)
    echo(counted(whole, "artefact is whole.", "artefacts are whole."))


def _checked(name: str, artifact: Artifact) -> dict[str, Any]:
    """Describe an artefact and its problems; its state is missing, changed or whole."""
    about = {"stage": name, "key": artifact.key, "path": str(artifact.path)}
    if not artifact.exists():
        return {**about, "state": "missing", "problems": [], "not_exact": {}}
    problems = _problems(artifact)
    state = "changed" if problems else "whole"
    return {**about, "state": state, "problems": problems, "not_exact": dict(_inexact(artifact))}


def all_stages(chain: Chain) -> dict[str, Artifact]:
    """Return the artefacts of the chain by name, preceded by those of its members and of its teacher."""
    stages = {f"{member.asked} {member.stage}": member.artifact for member in chain.members}
    if chain.teacher is not None:
        name, of_student = chain.teacher.experiment.name, ("screen", "control", "second_round", "evaluation")
        made_by = chain.lineage[-1].stages
        stages |= {f"{name} {stage}": made for stage, made in made_by.items() if stage not in of_student}
    own = {stage: one for stage, one in chain.stages.items() if stage != "student_embeddings" or one.exists()}
    return stages | own


def changed_data(chain: Chain) -> list[str]:
    """Return a sentence for each file of the dataset folder that was changed since it was read.

    Keys depend on a sample of the large arrays; this reads them whole.
    """
    recorded: dict[str, str] = {}
    for stage in ("dataset", "evaluation"):
        if stage in chain.stages and chain[stage].exists():
            with suppress(ValueError):  # reported as a problem already
                recorded |= chain[stage].manifest().get("folder_sha256", {})
    return [
        f"dataset: {chain.folder / name} is not the file that was read; everything made from it is stale"
        for name, sha256 in recorded.items()
        if not (chain.folder / name).is_file() or known_sha256(chain.folder / name) != sha256
    ]


def _problems(artifact: Artifact) -> list[str]:
    """Return a sentence for each of its files that was changed, and for each input that is another one now."""
    sentences: list[str] = []
    for search in (artifact.changed_files, partial(_other_inputs, artifact)):
        try:
            sentences += search()
        except ValueError as error:  # a damaged manifest: its own, or that of an input
            sentences.append(str(error))
    return list(dict.fromkeys(sentences))


def _inexact(artifact: Artifact) -> Iterator[tuple[str, str]]:
    """Yield the guarantee of each direction that is not exact; damaged tables are reported as problems already."""
    if artifact.stage == "hard_negatives":
        from aoq.pipeline.tables.files import directions_of, read_manifest, search_facts

        with suppress(ValueError, OSError):
            manifest = read_manifest(artifact.path / "table")
            for direction in directions_of(manifest):
                if (about := search_facts(manifest, direction)).get("guarantee") != "exact":
                    yield direction, describe_guarantee(about)


def _other_inputs(artifact: Artifact) -> Iterator[str]:
    manifest, upstream = artifact.manifest(), {f"{made.stage}/{made.key}": made for made in artifact.upstream}
    inputs: dict[str, str] = manifest.get("inputs", {})
    there = [name for name in dict.fromkeys((*upstream, *inputs)) if (artifact.root / name / MANIFEST_FILE).exists()]
    yield from (f"made from {name}, which is gone" for name in upstream if name not in there)
    data: dict[str, str] = {}
    for name in there:
        folder = artifact.root / name
        if name in inputs:
            data |= read_artifact_manifest(folder).get("folder_sha256", {})
            is_other = content_of(read_artifact_manifest(folder)) != inputs[name]
        else:  # not read, or made before manifests named their inputs
            is_other = manifest["upstream_manifests"].get(name) != file_sha256(folder / MANIFEST_FILE)
        if is_other:
            yield f"made from another copy of {name} than the one that exists"
    for name, content in inputs.items():
        file = name.rpartition("/")[2]
        if name.startswith("data/") and content.removeprefix(SAMPLED) != data.get(file, content):
            yield f"made from another {file} than the dataset"
