"""Load experiments by name, with an override: changes, written as the inside of a TOML inline table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aoq
from aoq.pipeline.config.dataset import TRAINING_DATA, WORLDS
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.section import validated
from aoq.pipeline.config.tables import Ensemble, Fusing, Reranking
from aoq.pipeline.console import did_you_mean
from aoq.pipeline.reading import parse_toml, read_toml

Combination = Ensemble | Reranking | Fusing
COMBINATIONS: dict[str, type[Combination]] = {"ensemble": Ensemble, "rerank": Reranking, "fusion": Fusing}
"""Kinds of files without rounds, by the section that marks them."""
CONFIGS = (Path("configs"), Path(aoq.__path__[0]) / "configs")
"""Folders of experiments: those in the current directory take precedence over shipped ones of the same name."""
NAMING = ("teacher", "teachers", "shortlist", "members")
"""Options that name other experiments."""
SHARED_DATA = (*TRAINING_DATA, "dev", "min_count")
"""Options of [dataset] that the named experiments share if an override changes one of TRAINING_DATA."""


def load_experiment(name: str, override: str = "") -> Experiment | Combination:
    """Load the experiment in `configs/<name>.toml`, or in the TOML file `name`; its sections tell its kind.

    `override` is the inside of a TOML inline table, e.g. `seed=1, second_round.loss.name="offtri"`. A change of the
    training data also reaches the experiments that the file names.
    """
    path, content = read_named("experiment", name, CONFIGS)
    content = _renamed(content, partial(beside, path.parent))
    change = parse_override(override)
    where = f"{path}, changed by the override {override!r}" if change else str(path)
    _check_has_rounds(name, content, change)
    section = next((section for section in COMBINATIONS if section in {*content, *change}), "")
    kind: type[Experiment | Combination] = COMBINATIONS.get(section, Experiment)
    if shared := _shared_change(change):
        content = _renamed(content, partial(_change_named, shared=shared, own_wins=False))
        change = _renamed(change, partial(_change_named, shared=shared, own_wins=True))
        if section:  # its members take these options, and it has none of them
            rest = {key: value for key, value in change["dataset"].items() if key not in shared["dataset"]}
            change = {key: value for key, value in change.items() if key in kind.model_fields or key not in shared}
            change |= {"dataset": rest} if rest else {}
    return validated(kind, where, {"name": path.stem, **_changed_by(content, change)})


def _check_has_rounds(name: str, content: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    """Refuse changes to [first_round] or [mining] of an experiment that takes its teacher's table."""
    teacher = change.get("teacher", content.get("teacher"))
    for section in ("first_round", "mining"):
        if isinstance(teacher, str) and section in change and section not in content:
            example = override_text({section: change[section]}) if isinstance(change[section], Mapping) else "…"
            raise ValueError(
                f"{name} has no [{section}]: it takes the table of {teacher!r}. Change that one, with "
                f"""teacher='{teacher}{", " if "@" in teacher else "@"}{example}'."""
            )


def names_in(folders: tuple[Path, ...] = CONFIGS) -> list[str]:
    """Return the names of the experiments, or studies, in the folders."""
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def read_named(what: str, name: str, folders: tuple[Path, ...]) -> tuple[Path, dict[str, Any]]:
    """Read the first TOML file `<name>.toml` in the folders, or the file `name`; return its path and content."""
    named = [Path(name)] if name.endswith(".toml") else [folder / f"{name}.toml" for folder in folders]
    path = next((path for path in named if path.exists()), None)
    if path is not None and not path.stem.strip("."):
        raise ValueError(f"the {what} file {path} has no name before .toml, which names its runs; give it one.")
    if path is None and name.endswith(".toml"):
        raise ValueError(f"there is no {what} file {Path(name).absolute()}.")
    if path is None:
        own = sorted(f"./{file}" for file in Path().glob("*.toml") if file.stem == name)
        question = f"did you mean {own[0]}?" if own else did_you_mean(name, names_in(folders))
        raise ValueError(f"unknown {what} {name!r}; {question}{' ' * bool(question)}`aoq list` shows all.")
    return path, read_toml(path)


def split_member(name: str) -> tuple[str, str]:
    """Split NAME@OVERRIDE; without an `@`, the override is empty. The folders of a .toml file may have an `@`."""
    match = re.fullmatch(r"([^'\"=]*?\.toml|[^@]*)(?:@(.*))?", name, re.DOTALL)
    assert match is not None  # the second alternative fits any text
    return match[1], match[2] or ""


def parse_override(override: str) -> dict[str, Any]:
    """Parse the inside of a TOML inline table."""
    try:
        return dict(parse_toml(f"override = {{{override}}}")["override"])
    except ValueError as error:
        inline = 'a list of TOML assignments, such as `seed=1, second_round.loss.name="offtri"`'
        raise ValueError(f"override {override!r} is not {inline}: {error}") from None


def override_text(change: Mapping[str, Any]) -> str:
    """Write the change as `--override` takes it.

    >>> override_text({"seed": 1, "second_round": {"loss": {"name": "offtri"}, "decay_epochs": [3]}})
    'seed=1, second_round.loss.name="offtri", second_round.decay_epochs=[3]'
    """
    return ", ".join(_assignments(change))


def _assignments(change: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for name, value in change.items():
        is_bare = re.fullmatch("[A-Za-z0-9_-]+", name)
        key = f"{place}{name if is_bare else json.dumps(name, ensure_ascii=False)}"
        if isinstance(value, Mapping) and value:
            yield from _assignments(value, f"{key}.")
            continue
        try:
            yield f"{key}={_value_text(value)}"
        except (TypeError, ValueError):
            raise ValueError(f"{place}{name} = {value} is not a value that an option takes") from None


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(_assignments(value))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value_text, value))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _changed_by(content: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the change into an experiment; one kind of data replaces another."""
    result, data = merged(content, change), change.get("dataset")
    if isinstance(data, Mapping) and (chosen := data.keys() & {*WORLDS}):
        result["dataset"] = {key: value for key, value in result["dataset"].items() if key not in {*WORLDS} - chosen}
    return result


def merged(content: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the change into the content, section by section; the change's values win."""
    result = dict(content)
    for key, value in change.items():
        # A section with a new `name` is another kind of section: its old options go.
        is_part = isinstance(value, dict) and isinstance(content.get(key), dict) and "name" not in value
        result[key] = merged(content[key], value) if is_part else value
    return result


def _shared_change(change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a change that experiments named in a file share; empty if it keeps the training pairs.

    A table and its student share their training data.
    """
    data = change.get("dataset")
    if not isinstance(data, Mapping) or not data.keys() & {*TRAINING_DATA}:
        return {}
    shared = {"dataset": {key: value for key, value in data.items() if key in SHARED_DATA}}
    return shared | {key: change[key] for key in ("evaluation",) if key in change}  # its split is one of these data


def _renamed(content: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    def renamed(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return _renamed(value, rename)
        if key not in NAMING:
            return value
        if isinstance(value, list):
            return [renamed(key, each) for each in value]
        return rename(value) if isinstance(value, str) else value

    return {key: renamed(key, value) for key, value in content.items()}


def beside(folder: Path, member: str) -> str:
    """Return the path of a file that lies beside the file that names it; leave other members unchanged."""
    name, override = split_member(member)
    file = folder / name
    if not name.endswith(".toml") or not file.is_file() or (Path(name).is_file() and file.samefile(name)):
        return member
    return f"{file}@{override}" if override else str(file)


def _change_named(member: str, shared: Mapping[str, Any], own_wins: bool) -> str:
    """Add the change to an experiment's override, unless it changes nothing; `own_wins` keeps the override's values."""
    name, override = split_member(member)
    own = parse_override(override)
    content = _changed_by(read_named("experiment", name, CONFIGS)[1], own)
    data = content.get("dataset")
    if isinstance(data, Mapping) and data.keys() & {"vocabulary", "tokeniser"}:  # `min_count` does not apply
        shared = {**shared, "dataset": {key: shared["dataset"][key] for key in shared["dataset"] if key != "min_count"}}
    both = _changed_by(shared, own) if own_wins else _changed_by(own, shared)
    return member if _changed_by(content, both) == content else f"{name}@{override_text(both)}"
