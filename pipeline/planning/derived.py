"""Tables that are made of other experiments: reranked, searched anew, fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aoq.pipeline.config.combinations import Fusion, Rerank
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import merge, override_text, parse_override
from aoq.pipeline.config.refresh import Refresh
from aoq.pipeline.mining.shortlist import TILES
from aoq.pipeline.planning.chain import Chain, check_same_data, data_stages, split_member, table_depths
from aoq.pipeline.planning.fields import values
from aoq.pipeline.planning.recipes import Recipes

Asked = tuple[str, ...]
"""The experiments that led here."""


@dataclass(frozen=True)
class DerivedTables:
    """The chains of such tables; `named` plans another experiment in a role."""

    recipes: Recipes
    named: Callable[[str, str, Asked], Chain]

    def reranked(self, name: str, rerank: Rerank, asked: Asked, *, section: str = "[rerank]") -> Chain:
        """The shortlist's candidates in the order of the teacher's scores, as `section` asks for them."""
        shortlist = self.named("shortlist", rerank.shortlist, asked)
        teacher = self.named("teacher", rerank.teacher, asked)
        if "second_round" not in teacher.stages:
            raise ValueError(
                f"{section} {name!r}: teacher {rerank.teacher!r} trains nothing and has no weights, so it scores no "
                "pairs; name an experiment with [second_round] or imported `weights`."
            )
        check_same_data(name, teacher, shortlist)
        depths: dict[str, int] = {}
        for side, there in table_depths(shortlist).items():
            h, depth = getattr(rerank, f"h_{side}"), getattr(rerank, f"depth_{side}") or there
            if max(h, depth) > there:
                option = f"h_{side} = {h}" if h > there else f"depth_{side} = {depth}"
                raise ValueError(
                    f"{section} {name!r}: {option}, and the table of {rerank.shortlist!r} keeps {there}; lower it, or "
                    f"raise h_{side} there."
                )
            depths |= {f"h_{side}": h, f"depth_{side}": depth}
        scored = {**depths, "checked_anchors": rerank.checked_anchors, "tiles": TILES}
        upstream = shortlist["hard_negatives"], teacher["second_round"]
        stages = {**data_stages(teacher), "hard_negatives": self.recipes.derived("rerank", scored, *upstream)}
        return Chain(
            teacher.experiment.model_copy(update={"name": name}),
            self.recipes.data_root,
            teacher.folder,
            stages,
            members=(shortlist, teacher),
            asked=(rerank.shortlist, rerank.teacher),
            uses=("hard_negatives", "second_round"),
            table=rerank,
        )

    def refreshed(self, experiment: Experiment, refresh: Refresh, asked: Asked) -> Chain:
        """The table of the student with one refresh less: searched anew, or reordered where it compares fragments."""
        name, override = split_member(asked[-1])
        change = parse_override(override) if override else {}
        merge(change, {"refresh": {"rounds": refresh.rounds - 1}})
        before = f"{name}@{override_text(change)}"
        title = f"{experiment.name} refresh {refresh.rounds}"
        depths = {"h_captions": refresh.h_captions, "h_images": refresh.h_images}
        if not experiment.model.makes_embeddings:
            rerank = Rerank(shortlist=str(experiment.teacher), teacher=before, **depths)
            return self.reranked(title, rerank, asked, section="[refresh]")
        student = self.named("student", before, asked)
        upstream, ingredients = [student["second_round"]], dict[str, Any](depths)
        if refresh.drifted_below is not None:
            upstream.append(student["hard_negatives"])
            ingredients["drifted_below"] = refresh.drifted_below
            for side, there in table_depths(student).items():
                if depths[f"h_{side}"] > there:
                    raise ValueError(
                        f"[refresh] h_{side} = {depths[f'h_{side}']}, and the lists that are kept have {there}; lower "
                        "it, or leave drifted_below out."
                    )
        stages = {**data_stages(student), "hard_negatives": self.recipes.derived("refresh", ingredients, *upstream)}
        return Chain(
            experiment.model_copy(update={"name": title}),
            self.recipes.data_root,
            student.folder,
            stages,
            members=(student,),
            asked=(before,),
            uses=("second_round",),
            table=refresh,
        )

    def fused(self, name: str, fusion: Fusion, asked: Asked) -> Chain:
        """One table of the lists of several."""
        members = tuple(self.named("member", member, asked) for member in fusion.members)
        first = members[0].owner("hard_negatives")
        seen: dict[str, str] = {}
        for member, named in zip(members, fusion.members, strict=True):
            check_same_data(name, first, member)
            other = seen.setdefault(member["hard_negatives"].key, named)
            if other != named:
                raise ValueError(
                    f"fusion {name!r}: {other!r} and {named!r} have the same table; give it a larger weight instead."
                )
        for side in ("captions", "images"):
            h, there = getattr(fusion, f"h_{side}"), sum(table_depths(member)[side] for member in members)
            if h > there:
                raise ValueError(f"fusion {name!r}: h_{side} = {h}, and all members together keep {there}; lower it.")
        made = values(fusion)
        ingredients = {key: made[key] for key in ("method", "weights", "h_captions", "h_images")}
        tables = [member["hard_negatives"] for member in members]
        stages = {**data_stages(first), "hard_negatives": self.recipes.derived("fusion", ingredients, *tables)}
        return Chain(
            first.experiment.model_copy(update={"name": name}),
            self.recipes.data_root,
            first.folder,
            stages,
            members=members,
            asked=fusion.members,
            uses=("hard_negatives",) * len(members),
            weights=fusion.weights,
            table=fusion,
        )
