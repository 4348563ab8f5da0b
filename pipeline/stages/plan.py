"""Plan an experiment: the keys of its artefacts, after those of the experiments that it names.

Planning imports nothing heavy. `tests/stages/test_keys.py` pins the keys, so that a changed default is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import Build
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import Combination, load_experiment, merged, override_text, parse_override, split_member
from aoq.pipeline.config.losses import control_change
from aoq.pipeline.config.tables import Ensemble, Fusing, Fusion, Refresh, Rerank, Reranking
from aoq.pipeline.config.training import Training
from aoq.pipeline.engine import Engine
from aoq.pipeline.mining.sizes import TILES
from aoq.pipeline.stages import data, evaluation, hard_negatives, training
from aoq.pipeline.stages.chain import Chain, Member, check_same_data, fit_lengths, table_depths

MAKERS: dict[str, Callable[[Chain, Build, Engine], None]] = {
    "world": data.make_world,
    "prepared": data.make_prepared,
    "dataset": data.make_dataset,
    "first_round": partial(training.make_training, "first_round"),
    "embeddings": partial(hard_negatives.make_embeddings, "first_round"),
    "hard_negatives": hard_negatives.make_hard_negatives,
    "screen": hard_negatives.make_screen,
    "control": partial(training.make_training, "control"),
    "second_round": partial(training.make_training, "second_round"),
    "evaluation": evaluation.make_evaluation,
    "student_embeddings": partial(hard_negatives.make_embeddings, "second_round"),
}
"""The function that makes each stage of an experiment."""


def plan(name: str, *, data_root: Path, artifact_root: Path, override: str = "") -> Chain:
    """Plan the chain of the experiment `name`; only its data must exist."""
    reference = f"{name}@{override}" if override else name
    return _Planner(data_root, artifact_root, (reference,)).chain(load_experiment(name, override))


def plan_parts(chain: Chain) -> dict[str, tuple[str, Artifact]]:
    """Plan the students of the table alone and of the teachers' scores alone, if `chain` has both, with overrides.

    Left out are the student itself, its control, a part that trains on another table, and scores beside a table.
    """
    experiment, (name, override) = chain.experiment, split_member(chain.reference)
    if chain.is_ensemble or not chain.trains_on_table or (distillation := experiment.student.distillation) is None:
        return {}
    loss = {"loss": control_change(experiment.student.loss)}
    changes = {"the table alone": {"distillation": False}, "the teachers' scores alone": loss}
    parts = {}
    for part, change in changes.items():
        own = override_text(merged(parse_override(override), {"second_round": change}))
        with suppress(ValueError):  # the experiment has options that need the other part
            planned = plan(name, data_root=chain.data_root, artifact_root=chain.artifact_root, override=own)
            on_table = planned.trains_on_table and planned["hard_negatives"].key == chain["hard_negatives"].key
            needs_table = part == "the table alone" or distillation.listed > 0
            both = {chain["second_round"].key, chain["control"].key}
            if planned["second_round"].key not in both and (on_table if needs_table else not planned.trains_on_table):
                parts[part] = own, planned["second_round"]
    return parts


@dataclass(frozen=True)
class _Planner:
    data_root: Path
    artifact_root: Path
    references: tuple[str, ...]
    """The experiment to plan, last, and those that led to it."""

    def chain(self, experiment: Experiment | Combination) -> Chain:
        if isinstance(experiment, Ensemble):
            return self.ensemble(experiment)
        if isinstance(experiment, Reranking):
            return self.reranked(experiment.name, experiment.rerank)
        if isinstance(experiment, Fusing):
            return self.fused(experiment.name, experiment.fusion)
        return self.trained(experiment)

    def member(self, role: str, name: str, stage: str) -> Member:
        """Plan another experiment, with an optional override; refuse teachers in a circle."""
        references = (*self.references, name)
        if name in self.references:
            raise ValueError(f"the teachers form a cycle: {' -> '.join(references)}")
        experiment = load_experiment(*split_member(name))
        if isinstance(experiment, Ensemble):
            raise ValueError(f"{role} {name!r} is an ensemble, which mines no table and trains nothing; name a member.")
        try:
            return Member(name, replace(self, references=references).chain(experiment), stage)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{role} {name!r}: {error}") from None

    def trained(self, experiment: Experiment) -> Chain:
        """Plan the data, the trainings, and the evaluation of the student."""
        chain = Chain(self.references[-1], experiment, self.data_root, self.artifact_root, {}, self.teacher(experiment))
        data.plan_data(chain)
        if experiment.mining is not None and chain.teacher is None:
            if experiment.teacher_encoder is None:
                self.add_teachers(chain, "first_round", experiment.first_round)
                training.plan_training(chain, "first_round")
            hard_negatives.plan_embeddings(chain)
            hard_negatives.plan_mined_table(chain, experiment.mining)
        if experiment.weights is None:
            training.plan_training(chain, "control")
            self.add_teachers(chain, "second_round", experiment.second_round)
            if experiment.uses_table:
                training.check_table(chain)
                if experiment.screen is not None:
                    hard_negatives.plan_screen(chain, experiment.screen)
        training.plan_training(chain, "second_round")
        evaluation.plan_evaluation(chain)
        if "embeddings" not in chain.stages and experiment.model.makes_embeddings and experiment.co_teaching is None:
            hard_negatives.plan_embeddings(chain, "second_round", "student_embeddings")
        return chain

    def add_teachers(self, chain: Chain, stage: str, section: Training | None) -> None:
        """Plan the experiments that score a training's batches; by default the embeddings that were mined."""
        if section is None or (distillation := section.distillation) is None or not distillation.scores_batch:
            return
        names = [teacher for teacher in distillation.teachers if isinstance(teacher, str)]
        members = [self.member("teacher", name, "embeddings") for name in names]
        for number, member in enumerate(members):
            stages = ["student_embeddings", "embeddings"]
            stages += ["second_round"] if member.chain.experiment.co_teaching is None else []  # its model scores
            members[number] = replace(member, stage=next((s for s in stages if s in member.chain.stages), "embeddings"))
        if not members and not distillation.files:
            members = [Member("", chain, "embeddings")]
        for member in members:
            if not any(member.stage in each.stages for each in member.chain.lineage[: 1 if member.reference else None]):
                lack = (
                    f"teacher {member.reference!r} has neither embeddings nor one trained model, so it scores no batch"
                )
                lack = lack if member.reference else "the table is mined from no embeddings, so none score the batch"
                remedy = 'name `teachers` that train a model, or choose kind = "lists".'
                raise ValueError(f"[{stage}.distillation] {lack}; {remedy}")
            model = member.chain.experiment.model
            are_cosines = member.stage != "second_round" and getattr(model, "normalise_images", True)
            if distillation.positives == "one" and not are_cosines:
                scale = f'positives = "one" is the highest cosine, and {member.reference!r} scores on another scale'
                raise ValueError(f"[{stage}.distillation] {scale}; leave it out.")
            check_same_data(chain.experiment.name, chain, member.chain, member.stage)
        if len({member.artifact.key for member in members}) < len(members):
            raise ValueError(f"[{stage}.distillation] two of the teachers {names} are the same; name each once.")
        chain.distilled[stage] = tuple(members)

    def teacher(self, experiment: Experiment) -> Chain | None:
        """Plan the chain with the student's table, unless its own first round makes it."""
        if experiment.refresh is not None and experiment.refresh.rounds:
            return self.refreshed(experiment, experiment.refresh)
        if experiment.teacher is None:
            return None
        return self.member("teacher", experiment.teacher, "hard_negatives").chain

    def refreshed(self, experiment: Experiment, refresh: Refresh) -> Chain:
        """Plan the table that the student with one refresh fewer searches or, if it compares fragments, reorders."""
        name, override = split_member(self.references[-1])
        change = merged(parse_override(override), {"refresh": {"rounds": refresh.rounds - 1}})
        before, title = f"{name}@{override_text(change)}", f"{experiment.name} refresh {refresh.rounds}"
        if not experiment.model.makes_embeddings:
            depths = {"h_captions": refresh.h_captions, "h_images": refresh.h_images}
            rerank = Rerank(shortlist=str(experiment.teacher), teacher=before, **depths)
            return replace(self.reranked(title, rerank, "[refresh]"), reference="")
        student = self.member("student", before, "second_round")
        recipe = refresh.model_dump(mode="json", exclude={"rounds"}, exclude_none=True)
        return replace(self.combined(title, {"refresh": recipe}, student.chain, [student], refresh), reference="")

    def reranked(self, name: str, rerank: Rerank, section: str = "[rerank]") -> Chain:
        """Plan the shortlist's candidates in the order of the teacher's scores, as `section` configures them."""
        shortlist = self.member("shortlist", rerank.shortlist, "hard_negatives")
        teacher = self.member("teacher", rerank.teacher, "second_round")
        is_co_taught = teacher.chain.experiment.co_teaching is not None
        if is_co_taught or "second_round" not in teacher.chain.stages:
            lack = "is two co-taught networks" if is_co_taught else "trains nothing and has no weights"
            nothing = f"teacher {rerank.teacher!r} {lack}, so it scores no pairs"
            raise ValueError(f"{section} {name!r}: {nothing}; name an experiment with [second_round] or `weights`.")
        check_same_data(name, teacher.chain, shortlist.chain)
        there = table_depths(shortlist.chain)
        rerank = fit_lengths(rerank, there, f"{section} {name!r}:", f"the table of {rerank.shortlist!r} keeps")
        recipe = rerank.model_dump(exclude={"shortlist", "teacher"})
        recipe |= {"depth_captions": there["h_captions"], "depth_images": there["h_images"]}  # all are scored
        recipe |= {"tiles": TILES}
        return self.combined(name, {"rerank": recipe}, teacher.chain, [shortlist, teacher], rerank)

    def fused(self, name: str, fusion: Fusion) -> Chain:
        """Plan one table from the lists of several."""
        members = [self.member("member", member, "hard_negatives") for member in fusion.members]
        first = members[0].chain.owner("hard_negatives")
        seen: dict[str, str] = {}
        for member in members:
            check_same_data(name, first, member.chain)
            if (other := seen.setdefault(member.artifact.key, member.reference)) != member.reference:
                both = f"{other!r} and {member.reference!r}"
                raise ValueError(f"fusion {name!r}: {both} have the same table; give it a larger weight instead.")
        depths = [table_depths(member.chain) for member in members]
        together = {option: sum(each[option] for each in depths) for option in depths[0]}
        fusion = fit_lengths(fusion, together, f"fusion {name!r}:", "all members together keep")
        recipe = fusion.model_dump(mode="json", exclude={"members"})
        return self.combined(name, {"fusion": recipe}, first, members, fusion)

    def combined(
        self, name: str, recipe: dict[str, Any], source: Chain, members: list[Member], table: Rerank | Fusion | Refresh
    ) -> Chain:
        """Plan a table that is made of others, on the data of `source`."""
        chain = self.derive_chain(source, members, table, name=name)
        chain.add("hard_negatives", recipe, *(each.artifact for each in members), reads=[source["dataset"]])
        return chain

    def ensemble(self, config: Ensemble) -> Chain:
        """Plan the evaluation of several experiments together, on the same data."""
        members = [self.member("member", member, "second_round") for member in config.ensemble.members]
        first, *others = (member.chain for member in members)
        for other in others:
            if (mine := _data(first)) != (theirs := _data(other)):
                both = f"{first.experiment.name!r} and {other.experiment.name!r} have different data"
                raise ValueError(f"ensemble {config.name!r}: {both} ({mine} and {theirs}); give members with the same.")
        chain = self.derive_chain(first, members, name=config.name, evaluation=config.evaluation)
        evaluation.plan_evaluation(chain, **config.ensemble.model_dump(mode="json", include={"weights"}))
        return chain

    def derive_chain(
        self, source: Chain, members: Sequence[Member], table: Rerank | Fusion | Refresh | None = None, **changes: Any
    ) -> Chain:
        """Return a chain of the members with the experiment of `source`, changed, and the stages of its data."""
        experiment = source.experiment.model_copy(update=changes)
        stages = {stage: source.stages[stage] for stage in ("world", "prepared", "dataset") if stage in source.stages}
        about = self.references[-1], experiment, self.data_root, self.artifact_root, stages
        return Chain(*about, members=tuple(members), table=table)


def _data(chain: Chain) -> dict[str, str]:
    splits, world = chain["dataset"].ingredients["splits"], chain.data_artifact
    return splits if world is None else {**splits, world.stage: world.key}
