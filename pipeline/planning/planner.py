"""Plan the chain of artefacts of an experiment: other experiments first, then what is made from them.

Imports nothing heavy: the whole chain is planned before anything runs. `keys` defines each stage's key;
`tests/planning/test_keys.py` pins the keys so that a changed default is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import Combination, load_experiment
from aoq.pipeline.config.overrides import merged, override_text, parse_override, split_member
from aoq.pipeline.config.screen import OF_VECTORS
from aoq.pipeline.config.tables import Ensemble, Fusing, Fusion, Refresh, Rerank, Reranking
from aoq.pipeline.mining.shortlist import TILES
from aoq.pipeline.planning.chain import Chain, Depths, Member, check_same_data, table_depths
from aoq.pipeline.planning.keys import Recipes, control_training


def plan(name: str, *, data_root: Path, artifact_root: Path, override: str = "") -> Chain:
    """Plan the chain of the experiment `name`; only its data must exist."""
    asked = f"{name}@{override}" if override else name
    return _Planner(Recipes(data_root, artifact_root), (asked,)).chain(load_experiment(name, override))


@dataclass(frozen=True)
class _Planner:
    recipes: Recipes
    asked: tuple[str, ...]
    """The experiment to plan, last, and those that led to it."""

    def chain(self, experiment: Experiment | Combination) -> Chain:
        if isinstance(experiment, Ensemble):
            return self.ensemble(experiment)
        if isinstance(experiment, Reranking):
            return self.reranked(experiment.name, experiment.rerank)
        if isinstance(experiment, Fusing):
            return self.fused(experiment.name, experiment.fusion)
        return self.trained(experiment)

    def member(self, what: str, name: str, stage: str) -> Member:
        """Plan another experiment, with an optional override; refuse teachers in a circle, which would never end."""
        asked = (*self.asked, name)
        if name in self.asked:
            raise ValueError(f"teachers in a circle: {' -> '.join(asked)}")
        experiment = load_experiment(*split_member(name))
        if isinstance(experiment, Ensemble):
            raise ValueError(f"{what} {name!r} is an ensemble, which mines no table and trains nothing; name a member.")
        try:
            return Member(name, replace(self, asked=asked).chain(experiment), stage)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{what} {name!r}: {error}") from None

    def trained(self, experiment: Experiment) -> Chain:
        """Plan the data, what trains on them, and the evaluation of what was trained."""
        recipes, teacher = self.recipes, self.teacher(experiment)
        folder, stages = recipes.data(experiment)
        chain = Chain(experiment, recipes.data_root, folder, stages, teacher)  # and what `stages` gets below
        dataset, start = stages["dataset"], None
        if experiment.mining is not None and teacher is None:
            stages |= recipes.mined(experiment, experiment.mining, dataset)
        if experiment.weights is None:
            stages["control"] = recipes.trained(experiment, control_training(experiment.student), dataset)
        if experiment.weights is not None:
            student = recipes.imported(experiment, "weights", experiment.weights, dataset)
        elif experiment.co_teaching is not None:
            student = recipes.co_taught(experiment, experiment.co_teaching, dataset)
        elif experiment.uses_table:
            table, start = _table(recipes, chain), _start(chain)
            if experiment.screen is not None:
                stages["screen"] = table
            student = recipes.student(experiment, dataset, table, *([start] if start else []))
        elif experiment.student.loss.name != "online":
            student = recipes.trained(experiment, experiment.student, dataset)
        else:
            student = stages["control"]
        stages |= {"second_round": student, "evaluation": recipes.evaluation(experiment, folder, student)}
        return replace(chain, start=start)

    def teacher(self, experiment: Experiment) -> Chain | None:
        """Chain with the table that the student trains on, unless it is that of its own first round."""
        if experiment.refresh is not None and experiment.refresh.rounds:
            return self.refreshed(experiment, experiment.refresh)
        if experiment.teacher is None:
            return None
        return self.member("teacher", experiment.teacher, "hard_negatives").chain

    def refreshed(self, experiment: Experiment, refresh: Refresh) -> Chain:
        """Plan the table of the student with one refresh less: searched anew, for all anchors or where lists drifted,
        or reordered if it compares fragments."""
        name, override = split_member(self.asked[-1])
        change = merged(parse_override(override), {"refresh": {"rounds": refresh.rounds - 1}})
        before, title = f"{name}@{override_text(change)}", f"{experiment.name} refresh {refresh.rounds}"
        if not experiment.model.makes_embeddings:
            rerank = Rerank(shortlist=str(experiment.teacher), teacher=before, **Depths.of(refresh).named("h"))
            return self.reranked(title, rerank, "[refresh]")
        student = self.member("student", before, "second_round")
        ingredients = refresh.model_dump(mode="json", exclude={"rounds"}, exclude_none=True)
        upstream = [student.artifact]
        if refresh.drifted_below is not None:
            upstream.append(student.chain["hard_negatives"])
            keeps, remedy = "the lists that are kept have", "lower it, or leave drifted_below out"
            Depths.of(refresh).check_within(table_depths(student.chain), "[refresh]", keeps, remedy)
        table = self.recipes.table("refresh", ingredients, *upstream)
        return _combined(title, {"hard_negatives": table}, student.chain, (student,), table=refresh)

    def reranked(self, name: str, rerank: Rerank, section: str = "[rerank]") -> Chain:
        """Plan the shortlist's candidates in the order of the teacher's scores, as `section` configures them."""
        shortlist = self.member("shortlist", rerank.shortlist, "hard_negatives")
        teacher = self.member("teacher", rerank.teacher, "second_round")
        if "second_round" not in teacher.chain.stages:
            raise ValueError(
                f"{section} {name!r}: teacher {rerank.teacher!r} trains nothing and has no weights, so it scores no "
                "pairs; name an experiment with [second_round] or imported `weights`."
            )
        check_same_data(name, teacher.chain, shortlist.chain)
        there, kept = table_depths(shortlist.chain), Depths.of(rerank)
        scored = Depths(rerank.depth_captions or there.captions, rerank.depth_images or there.images)
        where, keeps = f"{section} {name!r}:", f"the table of {rerank.shortlist!r} keeps"
        kept.check_within(there, where, keeps)
        scored.check_within(there, where, keeps, option="depth")
        checked = {"checked_anchors": rerank.checked_anchors, "tiles": TILES}
        ingredients = {**kept.named("h"), **scored.named("depth"), **checked}
        table = self.recipes.table("rerank", ingredients, shortlist.artifact, teacher.artifact)
        return _combined(name, {"hard_negatives": table}, teacher.chain, (shortlist, teacher), table=rerank)

    def fused(self, name: str, fusion: Fusion) -> Chain:
        """Plan one table from the lists of several."""
        members = [self.member("member", member, "hard_negatives") for member in fusion.members]
        first = members[0].chain.owner("hard_negatives")
        seen: dict[str, str] = {}
        for member in members:
            check_same_data(name, first, member.chain)
            if (other := seen.setdefault(member.artifact.key, member.asked)) != member.asked:
                both = f"{other!r} and {member.asked!r}"
                raise ValueError(f"fusion {name!r}: {both} have the same table; give it a larger weight instead.")
        depths = [table_depths(member.chain) for member in members]
        there = Depths(sum(each.captions for each in depths), sum(each.images for each in depths))
        Depths.of(fusion).check_within(there, f"fusion {name!r}:", "all members together keep", "lower it")
        ingredients, tables = fusion.model_dump(mode="json", exclude={"members"}), [each.artifact for each in members]
        table = self.recipes.table("fusion", ingredients, *tables)
        return _combined(name, {"hard_negatives": table}, first, members, table=fusion)

    def ensemble(self, asked: Ensemble) -> Chain:
        """Plan the evaluation of several experiments together; they must see the same captions in the same way."""
        members = [self.member("member", member, "second_round") for member in asked.ensemble.members]
        first, *others = (member.chain for member in members)
        for other in others:
            mine, theirs = _data_and_words(first), _data_and_words(other)
            for what in mine:
                if mine[what] != theirs[what]:
                    raise ValueError(
                        f"ensemble {asked.name!r}: {first.experiment.name!r} and {other.experiment.name!r} are of "
                        f"different {what} ([dataset] gives {mine[what]} and {theirs[what]}); similarities can only "
                        "be averaged between models of one."
                    )
        experiment = first.experiment.model_copy(update={"evaluation": asked.evaluation})
        mean, scored = asked.ensemble.model_dump(mode="json", include={"weights"}), [each.artifact for each in members]
        made = {"evaluation": self.recipes.evaluation(experiment, first.folder, *scored, **mean)}
        data = replace(first, experiment=experiment)
        return _combined(asked.name, made, data, members, weights=asked.ensemble.weights)


def _data_and_words(chain: Chain) -> dict[str, Any]:
    """Properties that models must share before their similarities are averaged."""
    dataset = chain["dataset"]
    worlds = {made.stage: made.key for made in dataset.upstream}
    return {"data": {**dataset.ingredients["splits"], **worlds}, "vocabularies": dataset.ingredients["vocabulary"]}


def _table(recipes: Recipes, chain: Chain) -> Artifact:
    """The table that the student draws from, or the screen of it."""
    experiment, owner = chain.experiment, chain.owner("hard_negatives")
    screen, sampling, there = experiment.screen, experiment.sampling, table_depths(chain)
    check_same_data(experiment.name, chain, owner)
    drawn = Depths(sampling.h_captions or there.captions, sampling.h_images or there.images)
    drawn.check_within(there, "[sampling]", "the table keeps")
    if sampling.guide_margin is not None and "embeddings" not in owner.stages:
        raise ValueError(
            "[sampling] guide_margin asks for the teacher's vectors, and the table of "
            f"{experiment.teacher or experiment.name} comes from none; leave it out."
        )
    if screen is None:
        return owner["hard_negatives"]
    if screen.needs_vectors and "embeddings" not in owner.stages:
        raise ValueError(
            f"[screen] {', '.join(OF_VECTORS)} ask for the teacher's vectors, and "
            f"the table of {experiment.teacher or experiment.name} comes from none; leave these rules out."
        )
    return recipes.screen(screen, owner["hard_negatives"])


def _start(chain: Chain) -> Artifact | None:
    """Training whose weights a fine-tuned student starts from; None for fresh weights."""
    experiment, owner = chain.experiment, chain.owner("hard_negatives")
    if experiment.student.start != "teacher":
        return chain["control"] if experiment.student.start == "control" else None
    if experiment.refresh is not None and experiment.refresh.rounds:
        *_, student = owner.members
        return student.artifact
    remedy = 'start = "control" takes the student\'s own weights after the online loss.'
    if "first_round" not in owner.stages:
        raise ValueError(
            f'[second_round] start = "teacher", and the table of {owner.experiment.name!r} is made by an encoder or of '
            f"other tables, and not by a first round; {remedy}"
        )
    ours, theirs = (one["dataset"].ingredients["vocabulary"] for one in (chain, owner))
    if owner.experiment.model != experiment.model or ours != theirs:
        raise ValueError(
            f'[second_round] start = "teacher", and {experiment.teacher!r} has another [model] or vocabulary '
            f"({owner.experiment.model.name!r}, here {experiment.model.name!r}), so its weights do not fit; {remedy}"
        )
    return owner["first_round"]


def _combined(name: str, made: dict[str, Artifact], data: Chain, members: Sequence[Member], **how: Any) -> Chain:
    """Chain of the artefacts made from the members, and of those that make the data of `data`."""
    experiment = data.experiment.model_copy(update={"name": name})
    stages = {stage: data.stages[stage] for stage in ("world", "prepared", "dataset") if stage in data.stages}
    return Chain(experiment, data.data_root, data.folder, stages | made, members=tuple(members), **how)
