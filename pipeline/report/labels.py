"""Short names of runs: the experiment, and what sets it apart from the others of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aoq.pipeline.config.overrides import split_member
from aoq.pipeline.planning.chain import Chain, run_name, trains_as_control

LONGEST = 24
"""Characters of a value."""
SETTINGS = {"second_round.loss": "", "model": "", "second_round.epochs": "epochs", "second_round.batch_size": "batch"}
"""Settings that are called otherwise than by their own last word."""


def labels(named: Mapping[str, Chain]) -> dict[str, str]:
    """Label each run, by its name: "demo", "demo control", "demo, seed 1".

    Runs of one experiment show the settings in which they differ; a run that would share its label keeps its name.
    """
    stems = {name: Path(split_member(name)[0]).stem for name in named}
    controls = {name for name in named if any(name != of and trains_as_control(named[name], named[of]) for of in named)}
    settings = {name: dict(_settings(chain.experiment.model_dump(mode="json"))) for name, chain in named.items()}
    found = {}
    for name in named:
        kin = [of for of in named if stems[of] == stems[name] and (of in controls) == (name in controls)]
        apart = [key for key in settings[name] if _differs(key, [settings[of] for of in kin])]
        shown = [_said(key, settings[name]) for key in apart]
        found[name] = ", ".join([f"{stems[name]} control" if name in controls else stems[name], *shown])
    shared = {label for label in found.values() if list(found.values()).count(label) > 1}
    return {name: run_name(*split_member(name)) if label in shared else label for name, label in found.items()}


def _settings(section: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every option by its place; the name of a section comes before its options."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            if "name" in value:
                yield f"{place}{key}", value["name"]
            yield from _settings({name: one for name, one in value.items() if name != "name"}, f"{place}{key}.")
        elif place or key != "name":
            yield f"{place}{key}", value


def _differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether runs differ in a setting of sections that have the same name."""
    parent = key.rpartition(".")[0]
    kinds = {str(one.get(parent)) for one in settings}
    return len(kinds) == 1 and len({str(one.get(key)) for one in settings}) > 1


def _said(key: str, settings: Mapping[str, Any]) -> str:
    value = settings[key]
    said = "off" if value is None or value is False else "on" if value is True else str(value)
    return f"{SETTINGS.get(key, key.rpartition('.')[2].replace('_', ' '))} {said[:LONGEST]}".strip()
