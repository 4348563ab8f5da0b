"""Load experiments by name, with an override."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.named_files import CONFIGS, read_named
from aoq.pipeline.config.overrides import (
    changed_by,
    override_text,
    parse_override,
    pass_on,
    shared_change,
    without_shared,
)
from aoq.pipeline.config.section import validated
from aoq.pipeline.config.tables import Ensemble, Fusing, Reranking

Combination = Ensemble | Reranking | Fusing
KINDS: dict[str, type[Combination]] = {"ensemble": Ensemble, "rerank": Reranking, "fusion": Fusing}
"""Kinds of files without rounds, by the section that marks them."""


def load_experiment(name: str, override: str = "", configs: tuple[Path, ...] = CONFIGS) -> Experiment | Combination:
    """Load the experiment in `configs/<name>.toml`, or in the TOML file `name`; its sections tell its kind.

    `override` is the inside of a TOML inline table, e.g. `seed=1, second_round.loss.name="offtri"`. A change of the
    training data also reaches the experiments that the file names.
    """
    path, content = read_named("experiment", name, configs)
    change = parse_override(override)
    _check_has_rounds(name, content, change)
    content, shared = changed_by(content, change), shared_change(change)
    section = next((section for section in KINDS if section in content), "")
    kind = KINDS.get(section)
    if shared and kind:
        members = pass_on(shared, content[section], change.get(section), configs)
        content = {**without_shared(shared, content, kind), section: members}
    elif shared:
        content = pass_on(shared, content, change, configs)
    where = f"{path}, changed by the override {override!r}" if change else str(path)
    content = {"name": path.stem, **content}
    return validated(kind, where, content) if kind else validated(Experiment, where, content)


def _check_has_rounds(name: str, content: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    """Refuse changes of a table's making to an experiment that takes its teacher's table."""
    teacher = change.get("teacher", content.get("teacher"))
    for section in ("first_round", "mining"):
        if teacher and section in change and section not in content:
            example = override_text({section: change[section]}) if isinstance(change[section], Mapping) else "…"
            raise ValueError(
                f"{name} has no [{section}]: it takes the table of {teacher!r}. Change that one, with "
                f"""teacher='{teacher}{", " if "@" in str(teacher) else "@"}{example}'."""
            )
