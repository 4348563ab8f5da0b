"""`aoq screen` and `aoq to-judge`: rules in, flags out; pairs out, a judge's probabilities in."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from pyarrow.json import read_json

from aoq.pipeline.config.screen import ScreenSection
from aoq.pipeline.data.noise import write_clean_pairs
from aoq.pipeline.tables.screens.judge import judge
from aoq.pipeline.tables.screens.judgements import write_pairs
from aoq.pipeline.tables.screens.knowledge import Knowledge
from aoq.pipeline.tables.screens.view import bit, read_view
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import QUERIES, TINY, run


@pytest.fixture
def given(world, embeddings, tmp_path):
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


def test_it_judges_as_the_rules_do(folder, given, tmp_path):
    arguments = [part for option, file in given.items() for part in (option, file)]
    for rule, value in RULES.items():
        arguments += [f"--{rule.replace('_', '-')}", *([] if value is True else [value])]
    shown = run("screen", folder, tmp_path / "view", *arguments)
    table = read_table(folder)
    known = Knowledge(
        given["--texts"].read_text().splitlines(),
        np.load(given["--images"]),
        np.load(given["--captions"]),
        np.array([[3, 7]], np.int32),
        PROBABILITIES,
    )
    view = judge(table, ScreenSection(**RULES, positives="known.json", pair_probabilities="clean_pairs.parquet"), known)
    read = read_view(tmp_path / "view", table.manifest)
    for direction in ("i2t", "t2i"):
        np.testing.assert_array_equal(read[direction].flags, view[direction].flags)
        counts = view.manifest["directions"][direction]
        for rule in RULES:
            assert [rule, str(counts["meets"][rule]), str(counts["takes"][rule])] in [
                line.split()[:3] for line in shown.stdout.splitlines()
            ]
    assert sorted(path.name for path in tmp_path.glob(".*")) == []

    stats = json.loads(run("stats", folder, "--view", tmp_path / "view", "--json").stdout)
    assert stats["i2t"]["screen"] == view.manifest["directions"]["i2t"]
    assert "lists left empty" in run("stats", folder, "--view", tmp_path / "view").stdout


def test_inspect_shows_flags_and_chooses_by_them(aoq, folder, tmp_path):
    run("screen", folder, tmp_path / "view", "--mutual-rank", 5)
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


def test_lists_may_be_emptied_on_purpose(folder, tmp_path):
    table = read_table(folder)
    with pytest.raises(ValueError, match="so every list would be empty; loosen them, or give --allow-empty"):
        table.screen(absolute_margin=3.0)
    for options in ({"allow_empty": True}, {"suspected": "downweight"}):
        assert (table.screen(absolute_margin=3.0, **options).flags("i2t") > 0).all()
    shown = run("screen", folder, tmp_path / "view", "--range-min", 20, "--allow-empty")
    assert "i2t: 60 lists left empty" in shown.stdout


SUFFIXES = (".csv", ".jsonl", ".parquet")


def read(path):
    readers = {".parquet": pq.read_table, ".csv": csv.read_csv, ".jsonl": read_json}
    return readers[path.suffix](path).to_pylist()


def pair(row):
    return int(row["image_id"]), int(row["caption_id"])


def pairs_at(table, chosen):
    """The pairs at the chosen places of either direction's lists, with their scores."""
    pairs = {}
    for direction in ("i2t", "t2i"):
        lists = table[direction]
        for anchor, place in np.argwhere(chosen(direction)).tolist():
            candidate = int(lists.negative_ids[anchor, place])
            key = (anchor, candidate) if direction == "i2t" else (candidate, anchor)
            pairs[key] = float(lists.scores[anchor, place])
    return pairs


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_a_judge_fills_in_is_what_the_screen_reads(folder, world, tmp_path, suffix):
    table, file = read_table(folder), tmp_path / f"pairs{suffix}"
    shown = run("to-judge", folder, file, "--top", 2, "--data", world)
    pairs, rows = pairs_at(table, lambda one: table[one].negative_ids[:, :2] >= 0), read(file)
    assert [pair(row) for row in rows] == sorted(pairs)
    assert f"{len(pairs)} pairs" in shown.stdout
    captions, ids = ((world / f"train_{name}.txt").read_text().splitlines() for name in ("caps", "ids"))
    for row in rows:
        image, caption = pair(row)
        assert (row["image"], row["caption"]) == (ids[image], captions[caption])
        assert float(row["similarity"]) == pytest.approx(pairs[image, caption], rel=1e-6)

    for n, row in enumerate(rows):
        row["probability"] = round(n / len(rows), 3) if n % 3 else None
    write_pairs(file, pa.Table.from_pylist(rows))
    run("screen", folder, tmp_path / "view", "--judgements", file)
    view, expected = read_view(tmp_path / "view", table.manifest), {pair(row): row["probability"] for row in rows}
    for image, place in np.ndindex(*table.i2t.negative_ids.shape):
        probability = expected.get((image, int(table.i2t.negative_ids[image, place]))) or 0
        assert view.i2t.suspicion[image, place] == np.float32(probability)
        assert bool(view.i2t.flags[image, place]) == (probability >= 0.5)


def test_of_a_view_only_suspects_that_nobody_has_judged(folder, tmp_path):
    table = read_table(folder)
    run("screen", folder, tmp_path / "first", "--mutual-rank", 6, "--range-min", 1)
    view = read_view(tmp_path / "first", table.manifest)
    suspects = pairs_at(table, lambda one: view[one].flags[:, :6] == bit("mutual_rank"))
    ask = ("to-judge", folder, tmp_path / "pairs.csv", "--top", 6, "--view", tmp_path / "first")
    run(*ask)
    rows = read(tmp_path / "pairs.csv")
    assert {pair(row) for row in rows} == suspects.keys()
    assert [*rows[0]] == ["image_id", "caption_id", "similarity"]

    half = len(rows) // 2
    judged = [{**row, "probability": n % 2} for n, row in enumerate(rows[:half])]
    write_pairs(tmp_path / "judged.csv", pa.Table.from_pylist(judged))
    again = ("--mutual-rank", 6, "--range-min", 1, "--judgements", tmp_path / "judged.csv")
    run("screen", folder, tmp_path / "second", *again)
    ask = ("to-judge", folder, tmp_path / "rest.csv", "--top", 6, "--view", tmp_path / "second")
    run(*ask)
    assert read(tmp_path / "rest.csv") == rows[half:]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_spreadsheets_compute_no_caption(folder, tmp_path, suffix):
    (tmp_path / "texts.txt").write_text(
        "".join(f"{'=+-@'[row % 4]}cmd\n" for row in range(len(read_table(folder).t2i)))
    )
    run("to-judge", folder, tmp_path / f"pairs{suffix}", "--texts", tmp_path / "texts.txt")
    before = "'" if suffix in (".csv", ".tsv") else ""
    for row in read(tmp_path / f"pairs{suffix}"):
        assert row["caption"] == f"{before}{'=+-@'[pair(row)[1] % 4]}cmd"


def asked(table, *options):
    """The pairs by row, and what they are called."""
    file = Path(f"pairs{len(options)}.jsonl")
    run("to-judge", table, file, *options)
    return [(pair(row), row.get("image"), row.get("caption")) for row in read(file)]


def test_rows_go_by_the_ids_beside_the_table_unless_others_are_given(files):
    for (query, document), *names in asked("corpus"):
        assert names == [f"q{query}", f"d{document}"]
    pq.write_table(pa.table({"name": [f"other{row}" for row in range(QUERIES)]}), "names.parquet")
    for (query, document), *names in asked("corpus", "--image-ids", "names.parquet::name"):
        assert names == [f"other{query}", f"d{document}"]


def test_both_rows_of_a_pair_of_one_set_go_by_one_kind_of_name(files):
    for (first, second), *names in asked("set"):
        assert names == [f"i{first}", f"i{second}"]
    for (first, second), *names in asked("set", "--texts", "item.txt"):
        assert names == [f"text of item {first}", f"text of item {second}"]


def test_a_margin_compares_with_the_mean_positive_that_stats_recommend(folder, tmp_path):
    assert "--margin-positive [mean|own]" in run("screen", "--help").stdout
    counts = {}
    for mean in ((), ("--margin-positive", "mean")):
        run("screen", folder, tmp_path / f"view{len(mean)}", "--absolute-margin", 0.05, *mean, "--allow-empty")
        counts[mean] = json.loads((tmp_path / f"view{len(mean)}" / "manifest.json").read_text())["directions"]
    (lowest, mean) = counts.values()
    assert mean["i2t"]["left"] > lowest["i2t"]["left"]
    assert mean["t2i"] == lowest["t2i"]
