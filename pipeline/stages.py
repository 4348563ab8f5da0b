"""Planning the chain of artefacts an experiment consists of, and what each stage's key is made of.

Imports nothing heavy: the whole chain is planned before anything runs. A stage's version is raised when its code
changes results; `tests/test_stages.py` pins the keys so that a changed default is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.artifact import Artifact, file_sha256
from pipeline.chain import Chain, check_same_data, data_stages, split_member, table_depths
from pipeline.config.combinations import Ensemble, Fusing, Fusion, Rerank, Reranking
from pipeline.config.dataset import Noise
from pipeline.config.experiment import Experiment
from pipeline.config.losses import online_version
from pipeline.config.mining import Mining
from pipeline.config.refresh import Refresh
from pipeline.config.sampling import Sampling
from pipeline.config.screen import Screen
from pipeline.config.training import Training
from pipeline.data.annotations import annotation_files
from pipeline.data.folder import split_fingerprint
from pipeline.data.phrases import annotation_path
from pipeline.experiments import load_experiment, merge, override_text, parse_override
from pipeline.mining.shortlist import TILES

VERSIONS = {
    "world": 1,
    "dataset": 1,
    "first_round": 1,
    "embeddings": 1,
    "hard_negatives": 2,
    "screen": 1,
    "second_round": 1,
    "evaluation": 1,
    "rerank": 1,
    "fusion": 1,
    "refresh": 1,
    "co_teaching": 1,
}
TABLELESS = ("sum", "online")
LATER_SAMPLING = ("gap", "sharpness", "windows", "harder", "hardest")


def plan(name: str, *, data_root: Path, artifact_root: Path, override: str = "") -> Chain:
    """The chain of the experiment `name`; its data must be there, nothing else."""
    experiment, planner = load_experiment(name, override), _Planner(data_root, artifact_root)
    if isinstance(experiment, Ensemble):
        return planner.ensemble(experiment)
    return planner.plan(experiment, (f"{name}@{override}" if override else name,))


def control_training(training: Training) -> Training:
    """The same schedule and constraints with the online loss in place of the offline one.

    Warm-up epochs that are online anyway are no longer told apart, so that equal trainings have equal keys.
    """
    warmup = list(training.warmup)
    while warmup and warmup[-1] == "online":
        warmup.pop()
    shared = {name: getattr(training, name) for name in Training.model_fields}
    return Training.model_validate({**shared, "loss": online_version(training.loss), "warmup": tuple(warmup)})


@dataclass(frozen=True)
class _Planner:
    data_root: Path
    root: Path

    def plan(self, experiment: Experiment | Reranking | Fusing, asked: tuple[str, ...]) -> Chain:
        """`asked` are the experiments that led here, to notice teachers in a circle."""
        if isinstance(experiment, Reranking):
            return self._reranked(experiment.name, experiment.rerank, asked)
        if isinstance(experiment, Fusing):
            return self._fused(experiment.name, experiment.fusion, asked)
        return self._trained(experiment, asked)

    def _trained(self, experiment: Experiment, asked: tuple[str, ...]) -> Chain:
        data = experiment.dataset
        stages: dict[str, Artifact] = {}
        if data.demo is not None:
            stages["world"] = self._artifact("world", _values(data.demo))
            folder = stages["world"].path
        else:
            folder = self.data_root / str(data.folder)
        stages["dataset"] = dataset = self._dataset(experiment, folder, tuple(stages.values()))
        if experiment.weights is not None:
            weights = self._imported(experiment, "weights", experiment.weights)
            stages["second_round"] = self._artifact("first_round", weights, dataset)
            stages["evaluation"] = self._evaluated(experiment, folder, stages["second_round"])
            return Chain(experiment, self.data_root, folder, stages)
        shared = {"model": _values(experiment.model), "max_regions": data.max_regions, "seed": experiment.seed}
        if experiment.co_teaching is not None:
            online = {**shared, "training": _schedule(experiment.student)}
            stages["control"] = self._artifact("first_round", online, dataset)
            taught = {**shared, "co_teaching": _values(experiment.co_teaching)}
            stages["second_round"] = Artifact(self.root, "second_round", VERSIONS["co_teaching"], taught, (dataset,))
            stages["evaluation"] = self._evaluated(experiment, folder, stages["second_round"])
            return Chain(experiment, self.data_root, folder, stages)
        teacher = self._teacher(experiment, asked)
        if experiment.mining is not None and teacher is None:
            stages["first_round"] = first = self._artifact("first_round", self._first(experiment, shared), dataset)
            stages["embeddings"] = embeddings = self._artifact("embeddings", {}, first)
            stages["hard_negatives"] = self._artifact("hard_negatives", _mined(experiment.mining), embeddings)
        table = teacher["hard_negatives"] if teacher else stages["hard_negatives"]
        online = {**shared, "training": _schedule(control_training(experiment.student))}
        stages["control"] = stages["second_round"] = self._artifact("first_round", online, dataset)
        if experiment.student.loss.name not in TABLELESS:
            student: dict[str, Any] = {
                "training": _schedule(experiment.student),
                "sampling": _sampled(experiment.sampling),
            }
            if experiment.screen is not None:
                made = teacher.owner("hard_negatives").stages if teacher else stages
                if experiment.screen.needs_vectors and "embeddings" not in made:
                    raise ValueError(
                        "[screen] caption_similarity and image_similarity ask for the vectors of a first round, and "
                        f"the table of {experiment.teacher or experiment.name} comes from none; leave these rules out."
                    )
                stages["screen"] = table = self._screen(experiment.screen, table)
                student["suspected"] = experiment.screen.suspected
            _check_heads(experiment, teacher)
            upstream = dataset, table, *_start(experiment, stages, teacher)
            stages["second_round"] = self._artifact("second_round", {**shared, **student}, *upstream)
        stages["evaluation"] = self._evaluated(experiment, folder, stages["second_round"])
        return Chain(experiment, self.data_root, folder, stages, teacher)

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
        stages = {**data_stages(first), "evaluation": self._evaluated(experiment, first.folder, *scored, **mean)}
        uses = ("second_round",) * len(asked)
        return Chain(experiment, self.data_root, first.folder, stages, None, members, asked, uses, weights)

    def _plan_member(self, ensemble: str, name: str, override: str) -> Chain:
        member = load_experiment(name, override)
        if isinstance(member, Ensemble):
            raise ValueError(f"ensemble {ensemble!r} names {name!r}, an ensemble itself; name its members.")
        return self.plan(member, (name,))

    def _reranked(self, name: str, rerank: Rerank, asked: tuple[str, ...]) -> Chain:
        """The shortlist's candidates in the order of the teacher's scores."""
        shortlist = self._named("shortlist", rerank.shortlist, asked)
        teacher = self._named("teacher", rerank.teacher, asked)
        if "second_round" not in teacher.stages:
            raise ValueError(
                f"rerank {name!r}: teacher {rerank.teacher!r} trains nothing and has no weights, so it scores no "
                "pairs; name an experiment with [second_round] or imported `weights`."
            )
        check_same_data(name, teacher, shortlist)
        depths: dict[str, int] = {}
        for side, there in table_depths(shortlist).items():
            h, depth = getattr(rerank, f"h_{side}"), getattr(rerank, f"depth_{side}") or there
            if max(h, depth) > there:
                option = f"h_{side} = {h}" if h > there else f"depth_{side} = {depth}"
                raise ValueError(
                    f"rerank {name!r}: {option}, and the table of {rerank.shortlist!r} keeps {there}; lower it, or "
                    f"raise h_{side} there."
                )
            depths |= {f"h_{side}": h, f"depth_{side}": depth}
        scored = {**depths, "checked_anchors": rerank.checked_anchors, "tiles": TILES}
        upstream = shortlist["hard_negatives"], teacher["second_round"]
        stages = {**data_stages(teacher), "hard_negatives": self._derived("rerank", scored, *upstream)}
        return Chain(
            teacher.experiment.model_copy(update={"name": name}),
            self.data_root,
            teacher.folder,
            stages,
            members=(shortlist, teacher),
            asked=(rerank.shortlist, rerank.teacher),
            uses=("hard_negatives", "second_round"),
            table=rerank,
        )

    def _refreshed(self, experiment: Experiment, refresh: Refresh, asked: tuple[str, ...]) -> Chain:
        """The table of the student with one refresh less: searched anew, or reordered where it compares fragments."""
        name, override = split_member(asked[-1])
        change = parse_override(override) if override else {}
        merge(change, {"refresh": {"rounds": refresh.rounds - 1}})
        before = f"{name}@{override_text(change)}"
        title = f"{experiment.name} refresh {refresh.rounds}"
        depths = {"h_captions": refresh.h_captions, "h_images": refresh.h_images}
        if not experiment.model.makes_embeddings:
            return self._reranked(title, Rerank(shortlist=str(experiment.teacher), teacher=before, **depths), asked)
        student = self._named("student", before, asked)
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
        stages = {**data_stages(student), "hard_negatives": self._derived("refresh", ingredients, *upstream)}
        return Chain(
            experiment.model_copy(update={"name": title}),
            self.data_root,
            student.folder,
            stages,
            members=(student,),
            asked=(before,),
            uses=("second_round",),
            table=refresh,
        )

    def _fused(self, name: str, fusion: Fusion, asked: tuple[str, ...]) -> Chain:
        """One table of the lists of several."""
        members = tuple(self._named("member", member, asked) for member in fusion.members)
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
        made = _values(fusion)
        ingredients = {key: made[key] for key in ("method", "weights", "h_captions", "h_images")}
        tables = [member["hard_negatives"] for member in members]
        stages = {**data_stages(first), "hard_negatives": self._derived("fusion", ingredients, *tables)}
        return Chain(
            first.experiment.model_copy(update={"name": name}),
            self.data_root,
            first.folder,
            stages,
            members=members,
            asked=fusion.members,
            uses=("hard_negatives",) * len(members),
            weights=fusion.weights,
            table=fusion,
        )

    def _derived(self, kind: str, ingredients: Mapping[str, Any], *upstream: Artifact) -> Artifact:
        return Artifact(self.root, "hard_negatives", VERSIONS[kind], {kind: ingredients}, upstream)

    def _artifact(self, stage: str, ingredients: Mapping[str, Any], *upstream: Artifact) -> Artifact:
        return Artifact(self.root, stage, VERSIONS[stage], ingredients, upstream)

    def _dataset(self, experiment: Experiment, folder: Path, world: tuple[Artifact, ...]) -> Artifact:
        data = experiment.dataset
        vocabulary: dict[str, Any] = {"splits": list(data.vocabulary_splits), "min_count": data.min_count}
        if data.vocabulary is not None:
            vocabulary = {"sha256": self._sha256("[dataset] vocabulary", data.vocabulary)}
        splits = {"train": data.train, "dev": data.dev}
        if not world:
            splits = {role: split_fingerprint(folder, name) for role, name in splits.items()}
        cut = {} if data.train_images is None else {"train_images": data.train_images}
        return self._artifact(
            "dataset", {"splits": splits, "vocabulary": vocabulary, **cut, **self._noise(data.noise)}, *world
        )

    def _noise(self, noise: Noise | None) -> dict[str, Any]:
        """Its part of the key: none where no pair is moved."""
        if noise is None or not noise.moves_pairs:
            return {}
        if noise.file is not None:
            return {"noise": {"sha256": self._sha256("[dataset.noise] file", noise.file)}}
        return {"noise": {"level": noise.level, "ratio": noise.ratio, "seed": noise.seed}}

    def _first(self, experiment: Experiment, shared: Mapping[str, Any]) -> dict[str, Any]:
        if experiment.first_round is not None:
            return {**shared, "training": _schedule(experiment.first_round)}
        return self._imported(experiment, "teacher_weights", str(experiment.teacher_weights))

    def _imported(self, experiment: Experiment, option: str, file: str) -> dict[str, Any]:
        model, regions = _values(experiment.model), experiment.dataset.max_regions
        return {"model": model, "max_regions": regions, "weights_sha256": self._sha256(option, file)}

    def _screen(self, screen: Screen, table: Artifact) -> Artifact:
        ingredients = screen.model_dump(mode="json", include={*screen.rules})
        if screen.positives is not None:
            ingredients["positives"] = self._sha256("[screen] positives", screen.positives)
        if screen.pair_probabilities is not None:
            ingredients["pair_probabilities"] = self._sha256("[screen] pair_probabilities", screen.pair_probabilities)
        return self._artifact("screen", ingredients, table)

    def _sha256(self, option: str, name: str) -> str:
        path = self.data_root / name
        if not path.is_file():
            raise FileNotFoundError(f"{option}: {path} does not exist; the path starts at the data root.")
        return file_sha256(path)

    def _teacher(self, experiment: Experiment, asked: tuple[str, ...]) -> Chain | None:
        """Whose table the student trains on, if not that of a first round of its own."""
        if experiment.refresh is not None and experiment.refresh.rounds:
            return self._refreshed(experiment, experiment.refresh, asked)
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

    def _evaluated(self, experiment: Experiment, folder: Path, *scored: Artifact, **mean: Any) -> Artifact:
        options = _values(experiment.evaluation)
        known = (experiment.dataset.train, experiment.dataset.dev)
        content = None if options["split"] in known else split_fingerprint(folder, options["split"])
        values = {**options, "content": content, **mean}
        # A generated world is known by its key, and need not be there yet.
        phrases = annotation_path(folder, options["split"]) if experiment.dataset.demo is None else None
        if phrases is not None and len(scored) == 1 and experiment.model.attends:
            values["phrases"] = file_sha256(phrases)
        if experiment.dataset.demo is not None:
            values["truth"] = 1
        elif files := annotation_files(folder, options["split"]):
            values["annotations"] = {name: file_sha256(path) for name, path in files.items()}
        return self._artifact("evaluation", values, *scored)


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


def _schedule(training: Training) -> dict[str, Any]:
    """Options that came later are None, and have no part in keys, while they are not used."""
    return training.model_dump(mode="json", exclude_none=True)


def _mined(mining: Mining) -> dict[str, Any]:
    """Exact searches all find the same lists, so which of them it was does not matter."""
    values = _values(mining)
    return values if mining.is_approximate else {**values, "search": "exact", "recall_floor": 1.0}


def _sampled(sampling: Sampling) -> dict[str, Any]:
    return _used(sampling, LATER_SAMPLING)


def _used(section: BaseModel, later: tuple[str, ...]) -> dict[str, Any]:
    """Options that came later have no part in keys while they are not used."""
    return {name: value for name, value in _values(section).items() if value is not None or name not in later}


def _values(section: BaseModel) -> dict[str, Any]:
    return section.model_dump(mode="json")
