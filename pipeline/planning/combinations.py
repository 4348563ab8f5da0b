"""Chains made of other experiments: tables that are reranked, searched anew by a student or fused, and ensembles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.combinations import Ensemble, Fusion, Refresh, Rerank
from aoq.pipeline.mining.shortlist import TILES
from aoq.pipeline.planning.chain import Chain, Depths, Member, check_same_data, table_depths
from aoq.pipeline.planning.keys import Recipes


def reranked(
    recipes: Recipes, name: str, rerank: Rerank, shortlist: Member, teacher: Member, *, section: str = "[rerank]"
) -> Chain:
    """The shortlist's candidates in the order of the teacher's scores, as `section` asks for them."""
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
    table = recipes.table("rerank", ingredients, shortlist.artifact, teacher.artifact)
    return _combined(name, {"hard_negatives": table}, teacher.chain, (shortlist, teacher), table=rerank)


def refreshed(recipes: Recipes, name: str, refresh: Refresh, student: Member) -> Chain:
    """The table that the student finds, searching anew for all anchors or for those whose lists drifted."""
    ingredients: dict[str, Any] = Depths.of(refresh).named("h")
    upstream = [student.artifact]
    if refresh.drifted_below is not None:
        upstream.append(student.chain["hard_negatives"])
        ingredients["drifted_below"] = refresh.drifted_below
        keeps, remedy = "the lists that are kept have", "lower it, or leave drifted_below out"
        Depths.of(refresh).check_within(table_depths(student.chain), "[refresh]", keeps, remedy)
    table = recipes.table("refresh", ingredients, *upstream)
    return _combined(name, {"hard_negatives": table}, student.chain, (student,), table=refresh)


def fused(recipes: Recipes, name: str, fusion: Fusion, *members: Member) -> Chain:
    """One table of the lists of several."""
    first = members[0].chain.owner("hard_negatives")
    seen: dict[str, str] = {}
    for member in members:
        check_same_data(name, first, member.chain)
        other = seen.setdefault(member.artifact.key, member.asked)
        if other != member.asked:
            raise ValueError(
                f"fusion {name!r}: {other!r} and {member.asked!r} have the same table; give it a larger weight instead."
            )
    depths = [table_depths(member.chain) for member in members]
    there = Depths(sum(each.captions for each in depths), sum(each.images for each in depths))
    Depths.of(fusion).check_within(there, f"fusion {name!r}:", "all members together keep", "lower it")
    weights = list(fusion.weights) if fusion.weights else None
    ingredients = {"method": fusion.method, "weights": weights, **Depths.of(fusion).named("h")}
    table = recipes.table("fusion", ingredients, *(member.artifact for member in members))
    return _combined(name, {"hard_negatives": table}, first, members, table=fusion)


def ensemble(recipes: Recipes, asked: Ensemble, *members: Member) -> Chain:
    """The evaluation of several experiments together; they must see the same captions the same way."""
    first, *others = (member.chain for member in members)
    for other in others:
        mine, theirs = first["dataset"].ingredients, other["dataset"].ingredients
        for part, what in (("splits", "data"), ("vocabulary", "vocabularies")):
            if mine[part] != theirs[part]:
                raise ValueError(
                    f"ensemble {asked.name!r}: {first.experiment.name!r} and {other.experiment.name!r} are of "
                    f"different {what} ([dataset] gives {mine[part]} and {theirs[part]}); similarities can only "
                    "be averaged between models of one."
                )
    experiment = first.experiment.model_copy(update={"evaluation": asked.evaluation})
    weights, scored = asked.ensemble.weights, [member.artifact for member in members]
    evaluation = recipes.evaluation(experiment, first.folder, *scored, weights=list(weights) if weights else None)
    data = replace(first, experiment=experiment)
    return _combined(asked.name, {"evaluation": evaluation}, data, members, weights=weights)


def _combined(name: str, made: dict[str, Artifact], data: Chain, members: tuple[Member, ...], **how: Any) -> Chain:
    """A chain of what is made of the members, and of what makes the data of `data`."""
    experiment = data.experiment.model_copy(update={"name": name})
    stages = {stage: data.stages[stage] for stage in ("world", "dataset") if stage in data.stages}
    return Chain(experiment, data.data_root, data.folder, stages | made, members=members, **how)
