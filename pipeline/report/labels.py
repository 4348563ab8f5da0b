"""Short names of runs: the experiment, and the settings in which it differs from others on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aoq.pipeline.config.load import split_member
from aoq.pipeline.stages.chain import Chain, run_name, trains_as_control

LONGEST = 24
"""Characters shown of a value."""
SETTINGS = {"second_round.loss": "", "model": "", "second_round.epochs": "epochs", "second_round.batch_size": "batch"}
"""Names of settings whose labels are not their own last part."""


def labels(named: Mapping[str, Chain]) -> dict[str, str]:
    """Label each run by its name, such as "demo", "demo control" or "demo, seed 1".

    Runs of one experiment show the settings in which they differ; runs with equal labels keep their full names.
    """
    stems = {name: Path(split_member(name)[0]).stem for name in named}
    controls = {one for one in named if any(one != of and trains_as_control(named[one], named[of]) for of in named)}
    settings = {name: dict(_settings(chain.experiment.model_dump(mode="json"))) for name, chain in named.items()}
    short = {}
    for name, own in settings.items():
        kin = [settings[of] for of in named if stems[of] == stems[name] and (of in controls) == (name in controls)]
        differing = [_setting(key, own) for key in own if _differs(key, kin)]
        short[name] = ", ".join([f"{stems[name]} control" if name in controls else stems[name], *differing])
    count = Counter(short.values())
    return {name: label if count[label] == 1 else run_name(*split_member(name)) for name, label in short.items()}


def _settings(section: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every option by its dotted key; the name of a section comes before its options."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            if "name" in value:
                yield f"{place}{key}", value["name"]
            yield from _settings({name: one for name, one in value.items() if name != "name"}, f"{place}{key}.")
        elif place or key != "name":
            yield f"{place}{key}", value


def _differs(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether runs differ in a setting while its section has the same name in all of them."""
    parent = key.rpartition(".")[0]
    kinds = {str(one.get(parent)) for one in settings}
    return len(kinds) == 1 and len({str(one.get(key)) for one in settings}) > 1


def _setting(key: str, settings: Mapping[str, Any]) -> str:
    value = settings[key]
    shown = "off" if value is None or value is False else "on" if value is True else str(value)
    return f"{SETTINGS.get(key, key.rpartition('.')[2].replace('_', ' '))} {shown[:LONGEST]}".strip()
