"""The attention of a trained student, on data whose phrases are annotated."""

import json
import shutil

import numpy as np
import pytest

from aoq.pipeline.data.folder import open_split
from tests.cli.conftest import run as aoq
from tests.stages.conftest import make_stage


@pytest.fixture
def make_scan(make, taught_by):
    """Stages of a SCAN that has another experiment's teacher."""
    make("own")
    return lambda *arguments, **options: make(
        *arguments, model="scan", loss="online", teacher=taught_by("own"), **options
    )


def test_it_is_measured_and_shown(make_scan, file_of, places):
    found = make_scan("demo", "dataset", "second_round", "evaluation")["evaluation"].manifest()["attention"]
    assert set(found) == {"precision", "recall", "f1", "threshold", "phrases", "left_out", "curve"}
    assert found["f1"] == max(found["curve"]["f1"])
    assert found["curve"]["recall"][0] == 100  # every weight is more than 0
    assert 0 < found["curve"]["precision"][0] < 100
    shown = aoq("results", file_of("demo"), *places).stdout
    assert f"precision {round(found['precision'], 2)}  " in shown.partition("attention: ")[2]


@pytest.fixture
def folder(data_root, tmp_path):
    """A copy of world `one` without phrases, named after the test."""
    folder = shutil.copytree(data_root / "one", data_root / tmp_path.name)
    for path in folder.glob("*_labels.json"):
        path.unlink()
    return folder


def test_annotations_are_of_the_evaluation_alone(make, make_scan, folder):
    """Without annotations attention is not measured; with them the student and the teacher's evaluation stay."""
    before = make_scan("plain", "dataset", "second_round", "evaluation", folder=folder.name)
    assert "attention" not in before["evaluation"].manifest()
    unattending = make("own", folder=folder.name)["evaluation"].key
    split = open_split(folder, "dev")
    first = [{"phrase": split.captions[0].split()[0], "start": 0, "boxes": [split.boxes[0, 3].tolist()]}]
    (folder / "dev_phrases.jsonl").write_text(json.dumps(first) + "\n" + "[]\n" * 59)
    after = make_scan("plain", "evaluation", folder=folder.name)
    assert after["evaluation"].manifest()["attention"]["phrases"] == 1
    assert after["second_round"].key == before["second_round"].key
    (folder / "dev_phrases.jsonl").write_text("[]\n" * 59)
    with pytest.raises(ValueError, match="59 lines for 60 captions"):
        make_scan("plain", "evaluation", folder=folder.name)
    assert make("own", folder=folder.name)["evaluation"].key == unattending


@pytest.mark.parametrize("came", [False, True])
def test_annotations_that_came_or_went_after_the_run_was_planned_are_refused(make_scan, folder, came):
    phrases, classes = folder / "dev_phrases.jsonl", folder / "dev_classes.npy"
    if not came:
        phrases.write_text("[]\n" * 60)
    chain = make_scan("plain", "dataset", "second_round", folder=folder.name)
    if came:
        np.save(classes, np.eye(12, 5, dtype=np.bool_))
    else:
        phrases.unlink()
    with pytest.raises(ValueError, match="annotations of 'dev' were added or removed after the run was planned"):
        make_stage(chain, "evaluation")
