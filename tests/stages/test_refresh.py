"""Refresh rounds: the student searches anew, for another student."""

import json
from functools import partial

import numpy as np
import pytest
import torch

import tasks
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.stages.splits import open_pairs
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.checkpoint import load_model
from tests.cli.conftest import run as aoq
from tests.stages.conftest import STUDENT, TINY, chain_of, make_stage

DEPTHS = "refresh.h_captions=10, refresh.h_images=4"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("refresh")


@pytest.fixture
def planned(root):
    return partial(chain_of, root=root)


def make(chain):
    """Every stage of the chain's second round, those of the tables it needs first."""
    owner = chain.owner("hard_negatives")
    for member in owner.members:
        make(member.chain)
    needed = dict.fromkeys([*chain.stages, "hard_negatives"] if owner is not chain else chain.stages)
    for stage in ("hard_negatives", "second_round") if owner.members else needed:
        if stage != "evaluation":
            make_stage(chain, stage)
    return chain


def lists_of(chain):
    return read_table(chain["hard_negatives"].path / "table")


def student_scores(chain):
    """The student's similarities, which its refreshed table holds, and the pairs that are positive."""
    pairs = open_pairs(chain, "train")
    model = load_model(chain["second_round"].path / "model.safetensors")
    is_positive = pairs.split.image_of == np.arange(pairs.split.image_count)[:, None]
    return similarity_matrix(model, pairs, torch.device("cpu")), is_positive


def test_the_student_searches_for_the_next_one(planned):
    first, second = make(planned()), make(planned(f"refresh.rounds=1, {DEPTHS}"))
    assert second["control"].key == first["control"].key
    similarity, is_positive = student_scores(first)
    table = lists_of(second)
    for direction, matrix, own, h in (("i2t", similarity, is_positive, 10), ("t2i", similarity.T, is_positive.T, 4)):
        best = -np.sort(-np.where(own, -np.inf, matrix), axis=1)[:, :h]
        np.testing.assert_allclose(table[direction].scores, best, atol=1e-5)
        assert table.manifest["directions"][direction]["certified_share"] == 1
    weights = first["second_round"].manifest()["files"]["model.safetensors"]["sha256"]
    assert table.manifest["teacher"]["weights_sha256"] == weights
    assert not (second["hard_negatives"].path / "vectors").exists()
    assert audit(second["hard_negatives"].path / "table") == []


def test_results_show_the_student_before_as_the_teacher(planned, root, monkeypatch):
    first, second = make(planned()), make(planned(f"refresh.rounds=1, {DEPTHS}"))
    asked = ["results", f"{TINY}@refresh.rounds=1, {DEPTHS}", "--data-root", root, "--artifact-root", root]
    rounds = json.loads(aoq(*asked, "--json").stdout)["rounds"]
    made = {"teacher": first["second_round"], "control": first["control"], "second_round": second["second_round"]}
    assert {name: found["key"] for name, found in rounds.items()} == {name: one.key for name, one in made.items()}
    monkeypatch.setenv("COLUMNS", "120")
    shown = aoq(*asked).stdout
    assert f"{first['second_round'].manifest()['metrics']['rsum']:.1f}" in shown.splitlines()[1].split()
    assert shown.splitlines()[1].startswith("teacher ")


def test_rounds_rest_on_each_other(planned, root):
    keys = [planned(f"refresh.rounds={rounds}, {DEPTHS}")["second_round"].key for rounds in range(3)]
    assert len(set(keys)) == 3
    assert keys[0] == planned()["second_round"].key
    roots = {"data_root": str(root), "artifact_root": str(root)}
    override = f"seed=1, refresh.rounds=2, {DEPTHS}"
    needed, _ = tasks.HardNegatives(experiment=TINY, override=override, **roots).requires()
    assert (type(needed).__name__, needed.experiment) == ("SecondRound", TINY)
    one_less = planned(needed.override)
    assert one_less["second_round"].key == planned(f"seed=1, refresh.rounds=1, {DEPTHS}")["second_round"].key
    aoq("status", TINY, "--override", override, "--artifact-root", root)


def test_a_student_of_fragments_orders_the_first_tables_lists(planned, write):
    refreshed = "refresh = {h_captions = 6, h_images = 3}\n"
    path = write("fragments", STUDENT.format(teacher=TINY, loss="offtri") + refreshed)
    make(planned())
    chain = make(planned(name=path))
    similarity, _ = student_scores(planned("refresh.rounds=0", name=path))
    shortlist, table = lists_of(planned()), lists_of(chain)
    for image in range(60):
        wanted = sorted(shortlist.i2t.negative_ids[image], key=lambda caption: -similarity[image, caption])[:6]
        np.testing.assert_allclose(table.i2t.scores[image], similarity[image, wanted], atol=1e-5)
