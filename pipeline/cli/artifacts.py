"""`aoq status`, `explain`, `verify`: artefacts, their keys and their integrity."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from aoq.pipeline.artifact import Artifact, differences
from aoq.pipeline.build import MANIFEST_FILE, read_artifact_manifest
from aoq.pipeline.cli.options import EXPERIMENT, STAGE, as_json, override, roots, table_folder, with_override
from aoq.pipeline.cli.output import counted, decimal, echo, echo_json, echo_next, say, show_rows, styled, to_make
from aoq.pipeline.config.load import names_in
from aoq.pipeline.files import known_sha256
from aoq.pipeline.settings import runs_root
from aoq.pipeline.stages.chain import Chain, run_name
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.tables.card import describe_guarantee
from aoq.pipeline.tables.files import read_manifest, search_facts, table_directions


def takes_chains(command: Callable[..., Any]) -> Callable[..., Any]:
    """Call the command with the chain of EXPERIMENT, or with the chains of all experiments that have artefacts."""

    @override
    @roots
    @wraps(command)
    def with_chains(experiment: str | None, override: str, data_root: Path, artifact_root: Path, **options: Any) -> Any:
        plan_below = partial(plan, data_root=data_root, artifact_root=artifact_root)
        if experiment is None:
            chains = [*_with_artefacts(plan_below)]
            _name_others(chains, artifact_root)
            return command(chains, **options)
        if table_folder(experiment) is not None and experiment not in names_in():
            asking = f"`aoq {click.get_current_context().info_name}` takes an experiment; name the one that made it"
            raise ValueError(f"{experiment} is a table's folder, and {asking}.")
        name, override = with_override(experiment, override)
        return command([plan_below(name, override=override)], **options)

    return with_chains


def _with_artefacts(plan: Callable[[str], Chain]) -> Iterator[Chain]:
    for name in names_in():
        with suppress(ValueError, OSError):  # without its data an experiment has no artefacts
            chain = plan(name)
            if any(artifact.exists() for artifact in chain.stages.values()):
                yield chain


def _name_others(chains: Sequence[Chain], root: Path) -> None:
    """Name the runs that are left out, those of other files or with an override; refuse if there are no others."""
    there = {path.parent.name for path in runs_root(root).glob("*/dataset")}
    if others := sorted(there - {run_name(chain.reference) for chain in chains}):
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        left_out = f"{', '.join(others[:5])}{more}; name each as EXPERIMENT, with its override after @"
        if not chains:
            raise ValueError(f"all artefacts there belong to runs of other files or with an override: {left_out}")
        echo(f"left out: {left_out}", err=True)
    elif not chains:
        echo(f"no experiment has artefacts below {root}", err=True)


def _is_for_all() -> bool:
    return click.get_current_context().params["experiment"] is None


@click.command("status")
@click.argument("experiment", required=False, type=EXPERIMENT)
@takes_chains
@as_json
def status_command(chains: Sequence[Chain], as_json: bool) -> None:
    """Show what is made or missing.

    Print a line with the key of each stage of EXPERIMENT, by default of each experiment that has artefacts. `aoq run
    EXPERIMENT --round STAGE` makes a stage.
    """
    states = {
        chain.reference: [{"stage": name, **_state(one)} for name, one in all_stages(chain).items()] for chain in chains
    }
    if as_json:
        echo_json(states if _is_for_all() else states[chains[0].reference])
        return
    for chain in chains:
        _show_stages(chain, states[chain.reference])


def _show_stages(chain: Chain, stages: Sequence[Mapping[str, Any]]) -> None:
    rows, own = [], chain.reference if _is_for_all() else ""
    for about in stages:
        style, figures = {"begun": "yellow"}.get(about["state"], "dim"), ("", "", "")
        if about["state"] == "done":
            finished = about["finished"][5:16].replace("T", " ")
            style, figures = "", (finished, f"{about['seconds']:.0f} s", decimal(about["bytes"]))
        rows.append((about["stage"], styled((about["state"], style)), *figures, about["key"]))
    show_rows(("stage", "state", "made", "took", "size", "key"), rows, title=own)
    say(f"below {chain['dataset'].root}")
    if missing := [one["stage"] for one in stages if one["stage"] in chain.stages and one["state"] != "done"]:
        echo_next(to_make(next(s for s in ("second_round", "hard_negatives", *missing) if s in missing), own))


def _state(artifact: Artifact) -> dict[str, Any]:
    about = {"key": artifact.key, "path": str(artifact.path)}
    if not artifact.exists():
        return {**about, "state": "begun" if artifact.work.is_dir() else "missing"}
    manifest = artifact.manifest()
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    return {**about, "state": "done", "finished": manifest["finished"], "seconds": manifest["seconds"], "bytes": size}


@click.command("explain")
@click.argument("experiment", type=EXPERIMENT)
@takes_chains
@click.argument("stage", required=False, type=STAGE)
@as_json
def explain_command(chains: Sequence[Chain], stage: str | None, as_json: bool) -> None:
    """Show what a stage's key is made of.

    If the artefact is missing, show what differs from the nearest existing one. Without STAGE, show this for all
    stages.
    """
    artifacts = all_stages(chains[0]) if stage is None else {stage: chains[0][stage]}
    explained = {name: _explained(artifact) for name, artifact in artifacts.items()}
    if as_json:
        echo_json(explained if stage is None else explained[stage])
        return
    for name, about in explained.items():
        if stage is not None:
            echo_json({"key": artifacts[stage].key, **artifacts[stage].recipe})
        lead = "\n" if stage else f"{name}: "
        if about["state"] == "done":
            echo(f"{lead}It exists: {about['path']}")
            continue
        known = about["nearest"] and f"the nearest one, {about['nearest']}, differs in:"
        echo(f"{lead}It is not made yet; {known or 'there is none to compare it with.'}")
        for place, both in about["differences"].items():
            echo(f"  {place}: {both['here']} here, {both['there']} there")
    if stage is not None and explained[stage]["state"] != "done":
        echo_next(to_make(stage))


def _explained(artifact: Artifact) -> dict[str, Any]:
    others: dict[str, dict[str, tuple[Any, Any]]] = {}
    if not artifact.exists():
        for path in artifact.path.parent.glob(f"[!.]*/{MANIFEST_FILE}"):
            others[path.parent.name] = differences(artifact.recipe, read_artifact_manifest(path.parent)["recipe"])
    nearest = min(others, key=lambda key: (len(others[key]), key), default=None)
    places = {place: {"here": ours, "there": theirs} for place, (ours, theirs) in others.get(nearest or "", {}).items()}
    return {"key": artifact.key, **artifact.recipe, **_state(artifact), "nearest": nearest, "differences": places}


@click.command("verify")
@click.argument("experiment", required=False, type=EXPERIMENT)
@takes_chains
@as_json
def verify_command(chains: Sequence[Chain], as_json: bool) -> None:
    """Check that artefacts are whole.

    Hash every file of EXPERIMENT's artefacts and of its dataset, by default for each experiment that has artefacts.
    Check that each artefact was made from the data and artefacts that exist. The exit code is 1 if anything is wrong.
    """
    artifacts = {artifact.key: (name, artifact) for chain in chains for name, artifact in all_stages(chain).items()}
    stages = [_integrity(name, artifact) for name, artifact in artifacts.values()]
    changed = {str(chain.folder): changed_data(chain) for chain in chains}
    datasets = [{"path": path, "problems": sentences} for path, sentences in changed.items()]
    if as_json:
        echo_json({"stages": stages, **({"datasets": datasets} if _is_for_all() else {"dataset": datasets[0]})})
        sys.exit(any(one["problems"] for one in (*stages, *datasets)))
    for one in stages:
        if one["state"] == "missing":
            echo(f"{one['stage']}: not made yet")
        for direction, guarantee in one["not_exact"].items():
            echo(f"{one['stage']}: {direction} is {guarantee}")
    problems = [f"{one['stage']}: {sentence}" for one in stages for sentence in one["problems"]]
    problems += [sentence for sentences in changed.values() for sentence in sentences]
    for sentence in problems:
        echo(sentence, err=True)
    if problems:
        count = counted(len(problems), "problem")
        raise ValueError(f"{count}; delete the artefacts named and run again to remake them.")
    echo(counted(sum(one["state"] == "whole" for one in stages), "artefact is whole.", "artefacts are whole."))


def _integrity(name: str, artifact: Artifact) -> dict[str, Any]:
    is_there = artifact.exists()
    problems = [*artifact.problems()] if is_there else []
    state = "changed" if problems else "whole" if is_there else "missing"
    about = {"stage": name, "key": artifact.key, "path": str(artifact.path), "state": state, "problems": problems}
    return {**about, "not_exact": dict(_inexact(artifact)) if is_there else {}}


def all_stages(chain: Chain) -> dict[str, Artifact]:
    """Return the artefacts of the chain by name, after those that they are made from: of members and teachers."""
    own = {stage: one for stage, one in chain.stages.items() if stage != "student_embeddings" or one.exists()}
    needed, names = _origins(*own.values()), dict[str, str]()
    for each in reversed(chain.lineage):
        needs: list[tuple[str, Mapping[str, Artifact]]]
        needs = [(member.reference, all_stages(member.chain)) for member in each.needs]
        for name, stages in [*needs, (each.experiment.name, {} if each is chain else each.stages)]:
            for stage, one in stages.items():
                names.setdefault(one.key, f"{name} {stage}")
    return {name: needed[key] for key, name in names.items() if key in needed} | own


def _origins(*artifacts: Artifact) -> dict[str, Artifact]:
    """Return all artefacts that these are made from, directly or not, by key."""
    upstream = {one.key: one for artifact in artifacts for one in (*artifact.upstream, *artifact.reads)}
    return upstream | (_origins(*upstream.values()) if upstream else {})


def changed_data(chain: Chain) -> list[str]:
    """Return a sentence for each file of the dataset folder that has changed since it was read.

    Keys depend on samples of large arrays; this reads them whole.
    """
    recorded: dict[str, str] = {}
    for stage in ("dataset", "evaluation"):
        if stage in chain.stages and chain[stage].exists():
            with suppress(ValueError):  # reported as a problem already
                recorded |= chain[stage].manifest().get("folder_sha256", {})
    return [
        f"dataset: {chain.folder / name} has changed since it was read; everything made from it is stale"
        for name, sha256 in recorded.items()
        if not (chain.folder / name).is_file() or known_sha256(chain.folder / name) != sha256
    ]


def _inexact(artifact: Artifact) -> Iterator[tuple[str, str]]:
    """Yield the guarantee of each direction that is not exact; damaged tables are reported as problems already."""
    if artifact.stage == "hard_negatives":
        with suppress(ValueError, OSError):
            manifest = read_manifest(artifact.path / "table")
            for direction in table_directions(manifest):
                if (about := search_facts(manifest, direction)).get("guarantee") != "exact":
                    yield direction, describe_guarantee(about)
