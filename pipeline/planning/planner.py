"""Planning the chain of artefacts an experiment consists of: other experiments first, then what is made of them.

Imports nothing heavy: the whole chain is planned before anything runs. `keys` says what each stage's key is made of;
`tests/planning/test_keys.py` pins the keys so that a changed default is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.combinations import Ensemble, Fusing, Refresh, Rerank, Reranking
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import Combination, load_experiment, merged, override_text, parse_override
from aoq.pipeline.planning.chain import Chain, Depths, Member, check_same_data, split_member, table_depths
from aoq.pipeline.planning.combinations import ensemble, fused, refreshed, reranked
from aoq.pipeline.planning.keys import Recipes


def plan(name: str, *, data_root: Path, artifact_root: Path, override: str = "") -> Chain:
    """The chain of the experiment `name`; its data must be there, nothing else."""
    asked = f"{name}@{override}" if override else name
    return _Planner(Recipes(data_root, artifact_root), (asked,)).chain(load_experiment(name, override))


@dataclass(frozen=True)
class _Planner:
    recipes: Recipes
    asked: tuple[str, ...]
    """The experiment that is planned, last, and those that led to it."""

    def chain(self, experiment: Experiment | Combination) -> Chain:
        if isinstance(experiment, Ensemble):
            scored = [self.member("member", name, "second_round") for name in experiment.ensemble.members]
            return ensemble(self.recipes, experiment, *scored)
        if isinstance(experiment, Reranking):
            return self.reranked(experiment.name, experiment.rerank)
        if isinstance(experiment, Fusing):
            tables = [self.member("member", name, "hard_negatives") for name in experiment.fusion.members]
            return fused(self.recipes, experiment.name, experiment.fusion, *tables)
        return self.trained(experiment)

    def member(self, what: str, name: str, stage: str) -> Member:
        """Another experiment, which may carry an override; teachers in a circle would have no end."""
        asked = (*self.asked, name)
        if name in self.asked:
            raise ValueError(f"teachers in a circle: {' -> '.join(asked)}")
        experiment = load_experiment(*split_member(name))
        if isinstance(experiment, Ensemble):
            raise ValueError(f"{what} {name!r} is an ensemble, which mines no table and trains nothing; name a member.")
        return Member(name, replace(self, asked=asked).chain(experiment), stage)

    def reranked(self, name: str, rerank: Rerank, section: str = "[rerank]") -> Chain:
        shortlist = self.member("shortlist", rerank.shortlist, "hard_negatives")
        teacher = self.member("teacher", rerank.teacher, "second_round")
        return reranked(self.recipes, name, rerank, shortlist, teacher, section=section)

    def trained(self, experiment: Experiment) -> Chain:
        """The data, what trains on them, and the evaluation of what was trained."""
        recipes, teacher = self.recipes, None
        folder, stages = recipes.data(experiment)
        dataset = stages["dataset"]
        if experiment.weights is not None:
            stages["second_round"] = recipes.imported(experiment, "weights", experiment.weights, dataset)
        elif experiment.co_teaching is not None:
            stages["control"] = recipes.control(experiment, dataset)
            stages["second_round"] = recipes.co_taught(experiment, experiment.co_teaching, dataset)
        else:
            teacher = self.teacher(experiment)
            if experiment.mining is not None and teacher is None:
                stages |= recipes.mined(experiment, experiment.mining, dataset)
            stages["control"] = stages["second_round"] = recipes.control(experiment, dataset)
            if experiment.student.loss.name != "online":  # which is the control's; with a table it is planned below
                stages["second_round"] = recipes.without_table(experiment, experiment.student, dataset)
        chain = Chain(experiment, recipes.data_root, folder, stages, teacher)
        if chain.trains_on_table:
            chain = _with_student(recipes, chain)
        evaluation = recipes.evaluation(experiment, folder, chain["second_round"])
        return replace(chain, stages={**chain.stages, "evaluation": evaluation})

    def teacher(self, experiment: Experiment) -> Chain | None:
        """The chain whose table the student trains on, if not that of a first round of its own."""
        if experiment.refresh is not None and experiment.refresh.rounds:
            return self.refreshed(experiment, experiment.refresh)
        if experiment.teacher is None:
            return None
        return self.member("teacher", experiment.teacher, "hard_negatives").chain

    def refreshed(self, experiment: Experiment, refresh: Refresh) -> Chain:
        """The table of the student with one refresh less: searched anew, or reordered where it compares fragments."""
        name, override = split_member(self.asked[-1])
        change = merged(parse_override(override), {"refresh": {"rounds": refresh.rounds - 1}})
        before, title = f"{name}@{override_text(change)}", f"{experiment.name} refresh {refresh.rounds}"
        if experiment.model.makes_embeddings:
            return refreshed(self.recipes, title, refresh, self.member("student", before, "second_round"))
        rerank = Rerank(shortlist=str(experiment.teacher), teacher=before, **Depths.of(refresh).named("h"))
        return self.reranked(title, rerank, "[refresh]")


def _with_student(recipes: Recipes, chain: Chain) -> Chain:
    """The chain with a second round on its table's negatives, and a screen of the table before it, if there is one."""
    experiment, owner = chain.experiment, chain.owner("hard_negatives")
    screen, sampling, there = experiment.screen, experiment.sampling, table_depths(chain)
    check_same_data(experiment.name, chain, owner)
    drawn = Depths(sampling.h_captions or there.captions, sampling.h_images or there.images)
    drawn.check_within(there, "[sampling]", "the table keeps")
    stages = {stage: artifact for stage, artifact in chain.stages.items() if stage != "second_round"}
    table = owner["hard_negatives"]
    if screen is not None:
        if screen.needs_vectors and "embeddings" not in owner.stages:
            raise ValueError(
                "[screen] caption_similarity and image_similarity ask for the vectors of a first round, and "
                f"the table of {experiment.teacher or experiment.name} comes from none; leave these rules out."
            )
        stages["screen"] = table = recipes.screen(screen, table)
    start = _start(chain, owner)
    upstream = [chain["dataset"], table, *([start] if start else [])]
    stages["second_round"] = recipes.student(experiment, *upstream)
    return replace(chain, stages=stages, start=start)


def _start(chain: Chain, owner: Chain) -> Artifact | None:
    """The training whose weights a fine-tuned student starts from, if it does not start afresh."""
    experiment = chain.experiment
    if experiment.student.start != "teacher":
        return chain["control"] if experiment.student.start == "control" else None
    if experiment.refresh is not None and experiment.refresh.rounds:
        *_, student = owner.members
        return student.artifact
    remedy = 'start = "control" takes the student\'s own weights after the online loss.'
    if "first_round" not in owner.stages:
        raise ValueError(
            f'[second_round] start = "teacher", and the table of {experiment.teacher!r} is made of other tables, so it '
            f"has no one teacher; {remedy}"
        )
    ours, theirs = (one["dataset"].ingredients["vocabulary"] for one in (chain, owner))
    if owner.experiment.model != experiment.model or ours != theirs:
        raise ValueError(
            f'[second_round] start = "teacher", and {experiment.teacher!r} has another [model] or vocabulary '
            f"({owner.experiment.model.name!r}, here {experiment.model.name!r}), so its weights do not fit; {remedy}"
        )
    return owner["first_round"]
