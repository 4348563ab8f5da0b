"""The chain of an experiment's artefacts: what their keys are made of, and what two chains have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.dataset import TRAINING_DATA
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import override_text, split_member
from aoq.pipeline.config.section import Section
from aoq.pipeline.config.tables import Fusion, Refresh, Rerank
from aoq.pipeline.console import did_you_mean
from aoq.pipeline.files import digest, file_sha256, known_sha256

Depths = Mapping[str, int]
"""Lengths of lists by option: `h_captions` of each image's list, `h_images` of each caption's."""
_Lengths = TypeVar("_Lengths", bound=Section)
MARKS = r"""[A-Za-z0-9_.=,\-\s"'{}\[\]@:]+"""
"""Characters of an override that a folder's name keeps, or drops without loss."""
LONGEST_NAME = 200
"""Characters in a folder's name; file systems allow 255 bytes."""


@dataclass(frozen=True)
class Chain:
    """Every artefact of one experiment, by stage, in the order in which they are made.

    A stage is the use of an artefact in the experiment; the artefact's own `stage` is what made it. The `control` (the
    second round's student, schedule and seed on the online loss alone) is made as a first round, and is the teacher's
    artefact if the teacher has the same schedule.
    """

    reference: str
    """The experiment by name, with an override after `@` if it has one; empty for a table between two refreshes."""
    experiment: Experiment
    data_root: Path
    artifact_root: Path
    stages: MutableMapping[str, Artifact]
    teacher: Chain | None = None
    """Chain with the table that the student trains on, unless it is the experiment's own."""
    members: tuple[Member, ...] = ()
    """Experiments in an ensemble or a table that is not mined; `experiment` is one member's under another name."""
    table: Rerank | Fusion | Refresh | None = None
    """Recipe of the table from the members, instead of [mining]."""
    distilled: MutableMapping[str, tuple[Member, ...]] = field(default_factory=dict)
    """Experiments that score the batches of a training, by stage."""

    def add(
        self,
        stage: str,
        ingredients: Mapping[str, Any],
        *upstream: Artifact,
        reads: Sequence[Artifact] = (),
        version: int = 1,
        use: str = "",
    ) -> None:
        """Plan an artefact for `use`, by default its stage; raise its `version` when its code changes results."""
        self.stages[use or stage] = Artifact(self.artifact_root, stage, version, ingredients, upstream, tuple(reads))

    def sha256(self, option: str, name: str) -> str:
        """Hash a user's file that an option names."""
        path = self.data_root / name
        if not path.is_file():
            raise FileNotFoundError(f"{option}: {path} does not exist; the path is relative to the data root.")
        return file_sha256(path)

    @property
    def folder(self) -> Path:
        """The precomp folder that the experiment reads."""
        world = self.data_artifact
        return self.data_root / str(self.experiment.dataset.folder) if world is None else world.path

    @property
    def data_artifact(self) -> Artifact | None:
        """The generated world or the prepared folder, if the data is one of these."""
        return self.stages.get("world") or self.stages.get("prepared")

    @property
    def image_tower(self) -> str | None:
        """Name of the tower with which the model reads photographs; None if it reads region features."""
        return getattr(self.experiment.model, "image_tower", None)

    @property
    def lineage(self) -> tuple[Chain, ...]:
        """This chain, its teacher, and its teacher's teachers."""
        return (self, *(self.teacher.lineage if self.teacher else ()))

    @property
    def needs(self) -> tuple[Member, ...]:
        """The experiments that it includes, and those that score its batches."""
        return (*self.members, *sum(self.distilled.values(), ()))

    def owner(self, stage: str) -> Chain:
        """Return the chain that has the stage: this one or, for the table and its origins, a teacher's."""
        if owner := next((chain for chain in self.lineage if stage in chain.stages), None):
            return owner
        known, kind = self._reached, "ensemble" if self.is_ensemble else "experiment"
        question = did_you_mean(stage, known)
        end = f"; {question}" if question else "."
        raise ValueError(f"{kind} {self.experiment.name!r} has stages {known}, not {stage!r}{end}")

    def __getitem__(self, stage: str) -> Artifact:
        return self.owner(stage).stages[stage]

    def made(self, stage: str) -> Artifact | None:
        """Return the artefact of a stage of this chain, if it exists."""
        artifact = self.stages.get(stage)
        return artifact if artifact and artifact.exists() else None

    @property
    def _reached(self) -> list[str]:
        return [*dict.fromkeys(stage for chain in reversed(self.lineage) for stage in chain.stages)]

    def needed(self, stage: str) -> Iterator[tuple[str, str]]:
        """Yield what must exist before the stage is made: an experiment, "" for this one, and its stage."""
        for artifact in (*self[stage].upstream, *self[stage].reads):
            yield next(self.uses(artifact))

    def uses(self, artifact: Artifact) -> Iterator[tuple[str, str]]:
        """Yield the experiments, "" for this one, that have the artefact, and the stage that it is in each."""
        members = [*self._included()]
        yield from ((member.reference, member.stage) for member in members if member.artifact.key == artifact.key)
        others = [*((one.reference, one.chain) for one in members), *((each.reference, each) for each in self.lineage)]
        for reference, chain in [("", self), *others]:
            yield from ((reference, stage) for stage in chain._reached if chain[stage].key == artifact.key)

    def _included(self) -> Iterator[Member]:
        """Yield the experiments that are needed, those nearest to this one first."""
        needed = [member for chain in self.lineage for member in chain.needs]
        yield from needed
        for member in needed:
            if member.reference:  # else it is of this lineage
                yield from member.chain._included()

    @property
    def is_ensemble(self) -> bool:
        return bool(self.members) and self.table is None

    def start_of(self, stage: str) -> Artifact | None:
        """Return the training whose weights a fine-tuned one starts from; it precedes those of teachers."""
        student = self.experiment.second_round if stage in self.stages else None
        if student is None or student.start is None:
            return None
        if stage != "second_round" and not (stage == "control" and student.control_continues):
            return None
        upstream = self.stages[stage].upstream
        return next(artifact for artifact in upstream if artifact.stage in ("first_round", "second_round"))

    @property
    def trains_on_table(self) -> bool:
        """Return whether the second round draws offline negatives, or batches, from a table."""
        return "second_round" in self.stages and self.experiment.weights is None and self.experiment.uses_table

    @property
    def is_taught(self) -> bool:
        """Return whether the second round, unlike its control, learns from a table or from teachers' scores."""
        student = self.experiment.second_round if "second_round" in self.stages else None
        return self.trains_on_table or (student is not None and student.distillation is not None)


@dataclass(frozen=True)
class Member:
    """An experiment that another one, a study or a report includes."""

    reference: str
    """The experiment by name, with an optional override after `@`: "f30k_vsrn@seed=1"."""
    chain: Chain
    stage: str
    """The stage that is needed."""

    @property
    def artifact(self) -> Artifact:
        return self.chain[self.stage]

    @property
    def run(self) -> str:
        """Name of its folder below `runs/`."""
        return run_name(*split_member(self.reference))


@dataclass(frozen=True)
class Cell(Member):
    """A training of a study, with its evaluation."""

    model: str
    arm: str
    seed: int

    @property
    def is_there(self) -> bool:
        return self.chain["second_round"].exists() and self.chain["evaluation"].exists()


def table_depths(chain: Chain) -> Depths:
    """Return the lengths of the lists of the table that the chain has or trains on, as options of its recipe."""
    owner = chain.owner("hard_negatives")
    recipe = owner.table or owner.experiment.mining
    assert recipe is not None  # nothing else makes a table
    return {"h_captions": recipe.h_captions, "h_images": recipe.h_images}


def fit_lengths(lengths: _Lengths, there: Depths, where: str, keeps: str) -> _Lengths:
    """Lower default lengths to those that are `there`, as kept by `keeps`; refuse longer ones that were chosen."""
    longer = {option: most for option, most in there.items() if (getattr(lengths, option) or 0) > most}
    for option in longer.keys() & lengths.model_fields_set:
        both = f"{option} = {getattr(lengths, option)}, but {keeps} {longer[option]}"
        raise ValueError(f"{where} {both}; lower it, or raise {option} where it is made.")
    return lengths.model_copy(update=longer)


def table_owner(chain: Chain) -> Chain | None:
    """Return the chain with the table that this one has or trains on; None if it needs none."""
    return next((each for each in chain.lineage if "hard_negatives" in each.stages), None)


def find_teachers(chain: Chain) -> Iterator[tuple[str, Member]]:
    """Yield the training whose model scored the chain's table, as "teacher", and those that score its batches.

    These are "teacher 1" and so on. The table's is left out where only they teach; encoders and files were not trained.
    """
    scoring = [member for member in chain.distilled.get("second_round", ()) if member.reference]
    others = chain.experiment.student.distillation if chain.is_taught and not chain.trains_on_table else None
    if (owner := table_owner(chain)) is not None and not (others and others.teachers):
        first = [Member(owner.experiment.name, owner, "first_round")] if "first_round" in owner.stages else []
        reranking = [member for member in owner.members if member.stage == "second_round"]
        yield from (("teacher", member) for member in first or reranking[-1:])
    for number, member in enumerate(scoring, start=1):
        stage = "first_round" if member.stage == "embeddings" else "second_round"
        if stage in member.chain._reached:
            yield f"teacher {number}", Member(member.reference, member.chain, stage)


def check_same_data(name: str, one: Chain, other: Chain, stage: str = "hard_negatives") -> None:
    """Refuse a table, embeddings or a model of other training data: rows belong to one training split."""
    if _training_ingredients(one) != _training_ingredients(owner := other.owner(stage)):
        both = (each.experiment.dataset.model_dump(mode="json", exclude_unset=True) for each in (one, owner))
        theirs = ({key: value for key, value in data.items() if key in TRAINING_DATA} for data in both)
        overrides = "; ".join(override_text({"dataset": data}) for data in theirs)
        raise ValueError(
            f"{name!r}: {one.experiment.name!r} and {other.experiment.name!r} have different training data "
            f'({overrides}); give both the same, in an override if need be: "NAME@dataset.train_images=2000".'
        )


def _training_ingredients(chain: Chain) -> list[Any]:
    world, dataset = chain.data_artifact, chain["dataset"].ingredients
    return [world and world.key, dataset["splits"]["train"], dataset.get("train_images"), dataset.get("noise")]


def same_queries(one: Chain, other: Chain) -> bool:
    """Return whether both are evaluated on the same images and captions, in the same folds."""
    return _query_ingredients(one) == _query_ingredients(other)


def _query_ingredients(chain: Chain) -> list[Any]:
    world, evaluation = chain.data_artifact, chain["evaluation"].ingredients
    splits = chain["dataset"].ingredients["splits"]
    return [world and world.key, splits["dev"], *(evaluation[key] for key in ("split", "folds", "content"))]


def trains_as_control(one: Chain, other: Chain) -> bool:
    """Return whether the one's second round is the other's control."""
    theirs, ours = other.stages.get("control"), one.stages.get("second_round")
    return theirs is not None and ours is not None and theirs.key == ours.key


def pretrained(name: str) -> dict[str, Any]:
    """Identify an encoder or a tokeniser: by name if it is on a hub, by its files if it lies in a folder."""
    library, _, model = name.partition(":")
    if not model or not (folder := Path(model.removeprefix("local-dir:"))).is_dir():  # open_clip's prefix
        return {"encoder": name}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {"encoder": library, "files": {str(path.relative_to(folder)): known_sha256(path) for path in files}}


def run_name(experiment: str, override: str = "") -> str:
    """Name the folder below `runs/` of an experiment; each override has its own folder."""
    name = Path(experiment).name.removesuffix(".toml")
    if override:
        name += f"@{re.sub(r'[^A-Za-z0-9_.=,@-]+', '', override)}"
        if re.sub(MARKS, "", override):  # letters or a path were dropped: two overrides may now look the same
            name += f"-{digest(override)[:8]}"
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{digest(override)}"
