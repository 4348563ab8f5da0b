"""`aoq screen`, and views where tables are looked at."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aoq.pipeline.config.screen import Screen
from aoq.pipeline.data.noise import write_clean_pairs
from aoq.pipeline.tables.screens.judge import judge
from aoq.pipeline.tables.screens.knowledge import Knowledge
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import TINY


@pytest.fixture
def files(world, embeddings, tmp_path):
    """The world's captions, the teacher's vectors, and one pair that people said matches."""
    (tmp_path / "known.json").write_text('{"7": [3]}')
    write_clean_pairs(tmp_path / "clean_pairs.parquet", PROBABILITIES)
    return {
        "--texts": world / "train_caps.txt",
        "--images": embeddings / "images.npy",
        "--captions": embeddings / "captions.npy",
        "--positives": tmp_path / "known.json",
        "--pair-probabilities": tmp_path / "clean_pairs.parquet",
    }


PROBABILITIES = np.random.default_rng(0).random(300).astype(np.float32)
RULES = {
    "same_text": True,
    "near_text": 0.6,
    "caption_similarity": 0.9,
    "image_similarity": 0.95,
    "mutual_rank": 4,
    "doubtful_pair": 0.2,
}


def test_it_judges_as_the_rules_do(aoq, folder, files, tmp_path):
    arguments = [part for option, file in files.items() for part in (option, file)]
    for rule, value in RULES.items():
        arguments += [f"--{rule.replace('_', '-')}", *([] if value is True else [value])]
    shown = aoq("screen", folder, tmp_path / "view", *arguments, root=None)
    assert shown.exit_code == 0, shown.stderr
    table = read_table(folder)
    known = Knowledge(
        files["--texts"].read_text().splitlines(),
        np.load(files["--images"]),
        np.load(files["--captions"]),
        np.array([[3, 7]], np.int32),
        PROBABILITIES,
    )
    view = judge(table, Screen(**RULES, positives="known.json", pair_probabilities="clean_pairs.parquet"), known)
    read = read_view(tmp_path / "view", table.manifest)
    for direction in ("i2t", "t2i"):
        np.testing.assert_array_equal(read[direction].flags, view[direction].flags)
        counts = view.manifest["directions"][direction]
        for rule in RULES:
            assert [rule, str(counts["meets"][rule]), str(counts["takes"][rule])] in [
                line.split()[:3] for line in shown.stdout.splitlines()
            ]
    assert sorted(path.name for path in tmp_path.glob(".*")) == []

    stats = json.loads(aoq("stats", folder, "--view", tmp_path / "view", "--json", root=None).stdout)
    assert stats["i2t"]["screen"] == view.manifest["directions"]["i2t"]
    assert "lists left empty" in aoq("stats", folder, "--view", tmp_path / "view", root=None).stdout


def test_inspect_shows_flags_and_chooses_by_them(aoq, folder, tmp_path):
    assert aoq("screen", folder, tmp_path / "view", "--mutual-rank", 5, root=None).exit_code == 0
    view = read_view(tmp_path / "view", read_table(folder).manifest)
    image = int((view.i2t.flags > 0).sum(axis=1).argmax())

    def ranks(*only):
        shown = aoq("inspect", TINY, "--image", image, "--view", tmp_path / "view", "--top", 20, "--json", *only)
        return [(one["rank"], one["flags"], one["suspicion"]) for one in json.loads(shown.stdout)[0]["negatives"]]

    flagged = (np.flatnonzero(view.i2t.flags[image]) + 1).tolist()
    assert 0 < len(flagged) < 20
    assert ranks("--only", "mutual_rank") == [(rank, ["mutual_rank"], 1.0) for rank in flagged]
    assert ranks("--only", "left") == [(rank, [], 0.0) for rank in range(1, 21) if rank not in flagged]
    assert len(ranks()) == 20
    assert "mutual_rank" in aoq("inspect", TINY, "--image", image, "--view", tmp_path / "view").stdout
    assert "--only needs a view" in aoq("inspect", TINY, "--image", image, "--only", "left").stderr


def test_lists_may_be_emptied_on_purpose(aoq, folder, tmp_path):
    shown = aoq("screen", folder, tmp_path / "view", "--range-min", 20, "--allow-empty", root=None)
    assert shown.exit_code == 0, shown.stderr
    assert "i2t: 60 lists left empty" in shown.stdout
