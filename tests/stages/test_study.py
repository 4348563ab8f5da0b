"""A whole study on the tiny world: its tables."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tasks
from aoq.pipeline.cli import main
from aoq.pipeline.evaluation.retrieval import Ranks, summarise
from aoq.pipeline.stages.study import make_study, markdown, plan_study
from tests.stages.conftest import ENGINE, TINY, make_stage

ROOT = Path(__file__).parent.parent.parent
TEXT = f"""
title = "Tiny"
baseline = "online"
seeds = [0, 1, 2]

[models]
tiny = "{TINY}@second_round.epochs=2, dataset.demo={{images=30, dev_images=12}}"

[arms.online]
change.second_round.loss.name = "online"

[arms.tuned]
says = "Fine-tuned"
change.second_round = {{ start = "control", loss.name = "offtri" }}
"""
TIMES = ("steps_per_second", "training_seconds")
STAGES = ("world", "dataset", "first_round", "embeddings", "hard_negatives", "control", "second_round", "evaluation")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "trial.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def whole(file, tmp_path_factory):
    """The study made at once, in this process."""
    plan = plan_study(str(file), data_root=Path(), artifact_root=tmp_path_factory.mktemp("whole"))
    for cell in plan.cells:
        for stage in STAGES:
            make_stage(cell.chain, stage)
    with plan.artifact.building() as build:
        make_study(plan, build, ENGINE)
    return plan


def link(cell, root, other):
    """Give another root what was made for a cell."""
    for stage in STAGES:
        place = other / cell.chain[stage].path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(cell.chain[stage].path)


def rows(plan, name):
    return pq.read_table(plan.artifact.path / f"{name}.parquet").to_pylist()


def without_times(lines):
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def test_a_row_for_each_training_with_its_evaluations_metrics(whole):
    results = rows(whole, "results")
    assert [(row["model"], row["arm"], row["seed"]) for row in results] == [
        ("tiny", arm, seed) for seed in range(3) for arm in ("online", "tuned")
    ]
    for cell, row in zip(whole.cells, results, strict=True):
        metrics = cell.chain["evaluation"].manifest()["metrics"]
        assert {name: row[name] for name in metrics} == metrics
        assert row["steps"] == cell.chain["second_round"].manifest()["steps"]
        assert row["training_seconds"] > 0


def test_the_ranks_are_those_of_the_metrics(whole):
    table = rows(whole, "ranks")
    for row in rows(whole, "results"):
        mine = [line for line in table if (line["arm"], line["seed"]) == (row["arm"], row["seed"])]
        i2t, t2i = (np.array([line["rank"] for line in mine if line["direction"] == way]) for way in ("i2t", "t2i"))
        assert summarise(Ranks(i2t, t2i))["rsum"] == pytest.approx(row["rsum"])


def test_the_summary_is_mean_deviation_and_paired_gain(whole):
    results = {(row["arm"], row["seed"]): row for row in rows(whole, "results")}
    summary = {line["arm"]: line for line in rows(whole, "summary")}
    assert list(summary) == ["online", "tuned"]
    for column in ("rsum", "i2t_r1"):
        values = [results["tuned", seed][column] for seed in range(3)]
        gains = [results["tuned", seed][column] - results["online", seed][column] for seed in range(3)]
        assert summary["tuned"][column] == pytest.approx(np.mean(values))
        assert summary["tuned"][f"{column}_sd"] == pytest.approx(np.std(values, ddof=1))
        assert summary["tuned"][f"{column}_gain"] == pytest.approx(np.mean(gains))
        assert summary["tuned"][f"{column}_gain_sd"] == pytest.approx(np.std(gains, ddof=1))
    assert summary["online"]["rsum_gain"] is None
    assert summary["tuned"]["rsum_gain_low"] <= summary["tuned"]["rsum_gain"] <= summary["tuned"]["rsum_gain_high"]


def shown(*arguments):
    return CliRunner().invoke(main, ["results", *map(str, arguments)], env={"COLUMNS": "160"})


def test_the_table_is_shown_and_filtered(whole, file):
    where = ["--study", file, "--artifact-root", whole.artifact.root]
    text = (whole.artifact.path / "table.md").read_text()
    result = shown(*where)
    assert result.exit_code == 0, result.output
    for name in ("online", "Fine-tuned"):
        assert name in result.stdout
        assert f"| {name} |" in text
    line = next(line for line in text.splitlines() if line.startswith("| Fine-tuned |"))
    gain = next(line for line in rows(whole, "summary") if line["arm"] == "tuned")["rsum_gain"]
    assert f"{gain:+.1f}".replace("-", "−") in line
    assert "Fine-tuned" not in shown(*where, "--arm", "online").stdout
    assert "online " not in shown(*where, "--arm", "tuned", "--model", "tiny").stdout.replace("to online", "")


def test_an_unfinished_study_shows_what_is_there(file, tmp_path, whole):
    plan = plan_study(str(file), data_root=Path(), artifact_root=tmp_path)
    link(whole.cells[0], whole.artifact.root, tmp_path)
    result = shown("--study", file, "--artifact-root", tmp_path)
    assert "1 of 6 trainings exist" in result.stdout
    assert f"aoq study {file} --artifact-root {tmp_path}\n" in result.stdout
    assert "online" in result.stdout
    assert "Fine-tuned" not in result.stdout
    plan.cells[0].chain["second_round"].path.unlink()
    result = shown("--study", file, "--artifact-root", tmp_path)
    assert "none of these trainings exists yet" in result.stdout
    assert "0 of 6 trainings exist" in result.stdout


def test_trainings_that_another_study_made_are_all_there(whole, tmp_path):
    path = tmp_path / "one.toml"
    path.write_text(TEXT.replace("seeds = [0, 1, 2]", "seeds = [0]"))
    result = shown("--study", path, "--artifact-root", whole.artifact.root)
    assert f"all 2 trainings exist, but not the study; run: aoq study {path}" in result.stdout
    assert "seeds 0: too few for a verdict, which needs 3" in result.stdout
    assert "missing" not in result.stdout


def test_names_are_shown_as_they_are_written(whole, tmp_path):
    """Tables in the terminal and in Markdown take them for no markup."""
    path = tmp_path / "trial.toml"
    path.write_text(TEXT.replace("Fine-tuned", "[/b] a | b :smile:"))
    where = ["--study", path, "--artifact-root", whole.artifact.root]
    result = shown(*where)
    assert result.exit_code == 0, result.output
    assert "[/b] a | b :smile: " in result.stdout
    line = {**rows(whole, "summary")[1], "says": "a | b\x1b"}
    written = markdown(whole.study, [line])
    assert r"| a \| b\x1b |" in written


def test_luigi_is_asked_for_the_first_cell_first_and_for_what_its_rows_tell_of(file, tmp_path):
    """It takes up the last of what a task requires."""
    study = tasks.Ablation(study=str(file), artifact_root=str(tmp_path))
    *others, trained, evaluated = study.requires()
    first = study.source.cells[0].chain
    assert len(others) == 10
    assert (trained.artifact.key, evaluated.artifact.key) == (first["second_round"].key, first["evaluation"].key)
    assert trained.process_resources() == {"training": 1, trained.artifact.key: 1}
    assert evaluated.process_resources() == {evaluated.artifact.key: 1}
