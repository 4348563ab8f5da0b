"""`aoq screen`, and views where tables are looked at."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.config.screen import Screen
from aoq.pipeline.data.noise import write_clean_pairs
from aoq.pipeline.tables.screens.judge import judge
from aoq.pipeline.tables.screens.knowledge import Knowledge
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import TINY, refusals


@pytest.fixture
def files(mined, tmp_path):
    """The world's captions, the teacher's vectors, and one pair that people said matches."""
    world, embeddings = (next((mined / stage).glob("*/MANIFEST.json")).parent for stage in ("world", "embeddings"))
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    refusals(
        """
 :: error: no rule is given; give at least one of --range-min,
--near-text 0.5 :: the rule near_text needs the captions' texts (--texts)
--near-text 0.5 --texts short.txt :: 2 texts are given for a table of 300
--caption-similarity 0.5 --captions short.npy :: 2 vectors of captions are given
--range-min 20 :: the rules take all 3,600 negatives, so every list would be empty; loosen them, or
--min-score nan :: min_score: Input should be a finite number
--positives none.csv :: none.csv does not exist
--judgements far.csv :: far.csv: pair 0 names caption '300', and there are captions 0 to 299
--alike-owners 0.5 :: the rule alike_owners needs the images' vectors (--image-vectors)
--doubtful-pair 0.5 --pair-probabilities none.parquet :: none.parquet does not exist; an
--doubtful-pair 0.5 --pair-probabilities short.parquet :: belongs to other captions: it has 2 rows
--doubtful-pair 0.5 --pair-probabilities high.parquet :: probabilities lie between 0 and 1
--doubtful-pair 0.5 --pair-probabilities short.npy :: short.npy is damaged or not a Parquet file
""",
    ),
)
def test_it_says_what_is_wrong_and_leaves_nothing(aoq, folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("one\ntwo\n")
    np.save("short.npy", np.eye(2, dtype=np.float32))
    Path("far.csv").write_text("caption_id,image_id,probability\n300,0,1\n")
    write_clean_pairs(Path("short.parquet"), np.ones(2, np.float32))
    write_clean_pairs(Path("high.parquet"), np.full(300, 1.5, np.float32))
    before = sorted(tmp_path.iterdir())
    shown = aoq("screen", folder, "view", *arguments, root=None)
    assert shown.exit_code == 1
    assert message in shown.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_lists_may_be_emptied_on_purpose(aoq, folder, tmp_path):
    shown = aoq("screen", folder, tmp_path / "view", "--range-min", 20, "--allow-empty", root=None)
    assert shown.exit_code == 0, shown.stderr
    assert "i2t: 60 lists left empty" in shown.stdout
