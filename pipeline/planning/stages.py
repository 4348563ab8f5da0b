"""Planning the chain of artefacts an experiment consists of.

Imports nothing heavy: the whole chain is planned before anything runs. `recipes` says what each stage's key is made
of; `tests/planning/test_stages.py` pins the keys so that a changed default is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.combinations import Ensemble, Fusing, Reranking
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.planning.chain import Chain, check_same_data, data_stages, split_member, table_depths
from aoq.pipeline.planning.derived import DerivedTables
from aoq.pipeline.planning.fields import control_training, mined, sampled, schedule, student_training, values
from aoq.pipeline.planning.recipes import VERSIONS, Recipes


def plan(name: str, *, data_root: Path, artifact_root: Path, override: str = "") -> Chain:
    """The chain of the experiment `name`; its data must be there, nothing else."""
    experiment, planner = load_experiment(name, override), _Planner(Recipes(data_root, artifact_root))
    if isinstance(experiment, Ensemble):
        return planner.ensemble(experiment)
    return planner.plan(experiment, (f"{name}@{override}" if override else name,))


@dataclass(frozen=True)
class _Planner:
    recipes: Recipes

    def plan(self, experiment: Experiment | Reranking | Fusing, asked: tuple[str, ...]) -> Chain:
        """`asked` are the experiments that led here, to notice teachers in a circle."""
        derived = DerivedTables(self.recipes, self._named)
        if isinstance(experiment, Reranking):
            return derived.reranked(experiment.name, experiment.rerank, asked)
        if isinstance(experiment, Fusing):
            return derived.fused(experiment.name, experiment.fusion, asked)
        return self._trained(experiment, asked)

    def _trained(self, experiment: Experiment, asked: tuple[str, ...]) -> Chain:
        """The data, what trains on them, and the evaluation of what was trained."""
        recipes, data = self.recipes, experiment.dataset
        stages: dict[str, Artifact] = {}
        if data.demo is not None:
            stages["world"] = recipes.artifact("world", values(data.demo))
            folder = stages["world"].path
        else:
            folder = recipes.data_root / str(data.folder)
        stages["dataset"] = recipes.dataset(experiment, folder, tuple(stages.values()))
        teacher = None
        if experiment.weights is not None:
            weights = recipes.imported(experiment, "weights", experiment.weights)
            stages["second_round"] = recipes.artifact("first_round", weights, stages["dataset"])
        elif experiment.co_teaching is not None:
            stages |= self._co_taught(experiment, stages["dataset"])
        else:
            teacher = self._teacher(experiment, asked)
            stages |= self._rounds(experiment, stages["dataset"], teacher)
        stages["evaluation"] = recipes.evaluated(experiment, folder, stages["second_round"])
        chain = Chain(experiment, recipes.data_root, folder, stages, teacher)
        if teacher is not None and experiment.student.loss.draws_offline:
            check_same_data(experiment.name, chain, teacher)
        return chain

    def _co_taught(self, experiment: Experiment, dataset: Artifact) -> dict[str, Artifact]:
        """Two networks in place of the rounds, and one of them by itself."""
        shared, section = _shared(experiment), experiment.co_teaching
        assert section is not None  # the caller has looked
        online, taught = {"training": schedule(experiment.student)}, {"co_teaching": values(section)}
        control = self.recipes.artifact("first_round", {**shared, **online}, dataset)
        version = VERSIONS["co_teaching"]
        return {
            "control": control,
            "second_round": Artifact(self.recipes.root, "second_round", version, {**shared, **taught}, (dataset,)),
        }

    def _rounds(self, experiment: Experiment, dataset: Artifact, teacher: Chain | None) -> dict[str, Artifact]:
        """The table, if it is the experiment's own, the control, and the second round."""
        recipes, shared = self.recipes, _shared(experiment)
        stages: dict[str, Artifact] = {}
        if experiment.mining is not None and teacher is None:
            first = recipes.artifact("first_round", recipes.first(experiment, shared), dataset)
            stages["first_round"] = first
            stages["embeddings"] = embeddings = recipes.artifact("embeddings", {}, first)
            stages["hard_negatives"] = recipes.artifact("hard_negatives", mined(experiment.mining), embeddings)
        online = {**shared, "training": schedule(control_training(experiment.student))}
        stages["control"] = stages["second_round"] = recipes.artifact("first_round", online, dataset)
        if experiment.student.loss.draws_offline:
            stages |= self._student(experiment, {"dataset": dataset, **stages}, teacher)
        elif experiment.student.loss.name != "online":  # else the control is the second round
            own = {**shared, "training": schedule(experiment.student)}
            stages["second_round"] = recipes.artifact("first_round", own, dataset)
        return stages

    def _student(
        self, experiment: Experiment, stages: dict[str, Artifact], teacher: Chain | None
    ) -> dict[str, Artifact]:
        """A second round on offline negatives, with the screen of its table if there is one."""
        table, found = teacher["hard_negatives"] if teacher else stages["hard_negatives"], {}
        own = schedule(student_training(experiment.student))
        training: dict[str, Any] = {"training": own, "sampling": sampled(experiment.sampling)}
        if experiment.screen is not None:
            made = teacher.owner("hard_negatives").stages if teacher else stages
            if experiment.screen.needs_vectors and "embeddings" not in made:
                raise ValueError(
                    "[screen] caption_similarity and image_similarity ask for the vectors of a first round, and "
                    f"the table of {experiment.teacher or experiment.name} comes from none; leave these rules out."
                )
            found["screen"] = table = self.recipes.screen(experiment.screen, table)
            training["suspected"] = experiment.screen.suspected
        _check_heads(experiment, teacher)
        upstream = stages["dataset"], table, *_start(experiment, stages, teacher)
        ingredients = {**_shared(experiment), **training}
        return {**found, "second_round": self.recipes.artifact("second_round", ingredients, *upstream)}

    def ensemble(self, ensemble: Ensemble) -> Chain:
        """The evaluation of several experiments together; they must see the same captions the same way."""
        asked = ensemble.ensemble.members
        members = tuple(self._plan_member(ensemble.name, *split_member(member)) for member in asked)
        first, *others = members
        for other in others:
            mine, theirs = first["dataset"].ingredients, other["dataset"].ingredients
            for part, what in (("splits", "data"), ("vocabulary", "vocabularies")):
                if mine[part] != theirs[part]:
                    raise ValueError(
                        f"ensemble {ensemble.name!r}: {first.experiment.name!r} and {other.experiment.name!r} are of "
                        f"different {what} ([dataset] gives {mine[part]} and {theirs[part]}); similarities can only "
                        "be averaged between models of one."
                    )
        experiment = first.experiment.model_copy(update={"name": ensemble.name, "evaluation": ensemble.evaluation})
        weights = ensemble.ensemble.weights
        scored = [member["second_round"] for member in members]
        mean = {"weights": list(weights) if weights else None}
        stages = {**data_stages(first), "evaluation": self.recipes.evaluated(experiment, first.folder, *scored, **mean)}
        uses = ("second_round",) * len(asked)
        return Chain(experiment, self.recipes.data_root, first.folder, stages, None, members, asked, uses, weights)

    def _plan_member(self, ensemble: str, name: str, override: str) -> Chain:
        member = load_experiment(name, override)
        if isinstance(member, Ensemble):
            raise ValueError(f"ensemble {ensemble!r} names {name!r}, an ensemble itself; name its members.")
        return self.plan(member, (name,))

    def _teacher(self, experiment: Experiment, asked: tuple[str, ...]) -> Chain | None:
        """Whose table the student trains on, if not that of a first round of its own."""
        if experiment.refresh is not None and experiment.refresh.rounds:
            return DerivedTables(self.recipes, self._named).refreshed(experiment, experiment.refresh, asked)
        if experiment.teacher is None:
            return None
        return self._named("teacher", experiment.teacher, asked)

    def _named(self, role: str, name: str, asked: tuple[str, ...]) -> Chain:
        """The chain of another experiment, which may carry an override."""
        if name in asked:
            raise ValueError(f"teachers in a circle: {' -> '.join((*asked, name))}")
        named = load_experiment(*split_member(name))
        if isinstance(named, Ensemble):
            raise ValueError(f"{role} {name!r} is an ensemble, which mines no table; name a member.")
        return self.plan(named, (*asked, name))


def _shared(experiment: Experiment) -> dict[str, Any]:
    """What shapes every training of the experiment's model."""
    model, regions = values(experiment.model), experiment.dataset.max_regions
    return {"model": model, "max_regions": regions, "seed": experiment.seed}


def _start(experiment: Experiment, stages: Mapping[str, Artifact], teacher: Chain | None) -> list[Artifact]:
    """The training whose weights a fine-tuned student starts from, if it does not start afresh."""
    if experiment.student.start != "teacher":
        return [stages["control"]] if experiment.student.start == "control" else []
    owner = teacher.owner("hard_negatives") if teacher else None
    if owner and experiment.refresh and experiment.refresh.rounds:
        return [owner.members[-1]["second_round"]]
    made = owner.stages if owner else stages
    remedy = 'start = "control" takes the student\'s own weights after the online loss.'
    if "first_round" not in made:
        raise ValueError(
            f'[second_round] start = "teacher", and the table of {experiment.teacher!r} is made of other tables, so it '
            f"has no one teacher; {remedy}"
        )
    vocabularies = [there["dataset"].ingredients["vocabulary"] for there in (stages, made)]
    if owner and (owner.experiment.model != experiment.model or vocabularies[0] != vocabularies[1]):
        raise ValueError(
            f'[second_round] start = "teacher", and {experiment.teacher!r} has another [model] or vocabulary '
            f"({owner.experiment.model.name!r}, here {experiment.model.name!r}), so its weights do not fit; {remedy}"
        )
    return [made["first_round"]]


def _check_heads(experiment: Experiment, teacher: Chain | None) -> None:
    """A student draws from no more of each list than the table keeps."""
    made = experiment.mining
    depths = (
        table_depths(teacher) if teacher else {"captions": made.h_captions, "images": made.h_images} if made else {}
    )
    for side, there in depths.items():
        h = getattr(experiment.sampling, f"h_{side}")
        if h is not None and h > there:
            raise ValueError(
                f"[sampling] h_{side} = {h}, and the table keeps {there}; lower it, or raise h_{side} where it is made."
            )
