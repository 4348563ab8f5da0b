"""The configuration of a study: one TOML file in configs/studies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from aoq.pipeline.config.load import CONFIGS, beside, read_named
from aoq.pipeline.config.section import Section, TomlArray, validated

STUDIES = tuple(folder / "studies" for folder in CONFIGS)
DEFAULT_COLUMNS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum")
STUDY_METRICS = (
    *DEFAULT_COLUMNS,
    *(f"{direction}_{name}" for direction in ("i2t", "t2i") for name in ("medr", "meanr")),
    *(f"attention_{name}" for name in ("precision", "recall", "f1")),
)

_NameArray = Annotated[TomlArray[str], Field(min_length=1)]
Change = dict[str, Any]
"""Changes to an experiment, as in its file: {"second_round": {"epochs": 4}}."""


class Arm(Section):
    """One way to train, defined by its changes alone."""

    says: str | None = None
    """Name in tables; by default its key."""
    change: Change = Field(default={})
    """Changes to an experiment, as sections and options."""
    change_for: dict[str, Change] = Field(default={})
    """Further changes, by model."""
    models: _NameArray | None = None
    """Models that run the arm; by default all."""


class Study(Section):
    name: Annotated[str, Field(pattern=r"^[^/\x00]+$")]
    """Also the name of the folder below `runs/`."""
    title: str = ""
    """The heading of its page and table."""
    baseline: str
    """Arm with which all others are compared, seed by seed."""
    seeds: Annotated[TomlArray[NonNegativeInt], Field(min_length=1)]
    """Each arm of each model runs once per seed."""
    models: Annotated[dict[str, str], Field(min_length=1)]
    """Experiment of each model, with an optional override after `@`."""
    arms: Annotated[dict[str, Arm], Field(min_length=1)]
    columns: _NameArray = DEFAULT_COLUMNS
    """Metrics of the evaluation in the table; a cell without its metric is empty."""

    def problems(self) -> Iterator[str]:
        if len(set(self.seeds)) < len(self.seeds):
            yield f"a seed appears twice in {list(self.seeds)}; the same run is not a second sample"
        if unknown := [column for column in self.columns if column not in STUDY_METRICS]:
            yield f"columns: there are no metrics {unknown}; known are {', '.join(STUDY_METRICS)}"
        if self.baseline not in self.arms:
            yield f"baseline {self.baseline!r} is not an arm; [arms] has {list(self.arms)}"
        for name, arm in self.arms.items():
            if unknown := [model for model in (*(arm.models or ()), *arm.change_for) if model not in self.models]:
                yield f"[arms.{name}] names the models {unknown}; [models] has {list(self.models)}"
            if any("seed" in change for change in (arm.change, *arm.change_for.values())):
                yield f"[arms.{name}] changes the seed; set `seeds` instead"
        if without := [model for model in self.models if self.baseline not in self.model_arms(model)]:
            yield f"baseline {self.baseline!r} does not run on {without}; every model needs it"

    def model_arms(self, model: str) -> list[str]:
        """Return the arms that the model runs, the baseline first."""
        runs = [name for name, arm in self.arms.items() if arm.models is None or model in arm.models]
        return sorted(runs, key=lambda name: name != self.baseline)

    def says(self, arm: str) -> str:
        return self.arms[arm].says or arm


def load_study(name: str) -> Study:
    """Load the study in `configs/studies/<name>.toml`, or in the TOML file `name`."""
    path, content = read_named("study", name, STUDIES)
    if isinstance(models := content.get("models"), dict):
        content["models"] = {key: beside(path.parent, str(model)) for key, model in models.items()}
    return validated(Study, str(path), {"name": path.stem, **content})
