"""`aoq to-judge`: pairs out, a judge's probabilities in."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.screens.view import bit, read_view
from aoq.pipeline.tables.table import read_table

SUFFIXES = (".csv", ".jsonl", ".parquet")


def read(path):
    """The rows; a CSV's are of texts."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    lines = path.read_text().splitlines()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in lines]
    return [*csv.DictReader(lines)]


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


def pair(row):
    return int(row["image_id"]), int(row["caption_id"])


@pytest.fixture
def world(mined):
    return next((mined / "world").glob("*/MANIFEST.json")).parent


def listed(table, top):
    """Every pair among the first of either list, with its score."""
    pairs = {}
    for direction in ("i2t", "t2i"):
        for anchor, place in np.ndindex(len(table[direction]), top):
            candidate = int(table[direction].negative_ids[anchor, place])
            key = (anchor, candidate) if direction == "i2t" else (candidate, anchor)
            pairs[key] = float(table[direction].scores[anchor, place])
    return pairs


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_a_judge_fills_in_is_what_the_screen_reads(aoq, folder, world, tmp_path, suffix):
    table, file = read_table(folder), tmp_path / f"pairs{suffix}"
    shown = aoq("to-judge", folder, file, "--top", 2, "--data", world, root=None)
    assert shown.exit_code == 0, shown.stderr
    pairs, rows = listed(table, 2), read(file)
    assert [pair(row) for row in rows] == sorted(pairs)
    assert f"{len(pairs)} pairs" in shown.stdout
    captions, ids = ((world / f"train_{name}.txt").read_text().splitlines() for name in ("caps", "ids"))
    for row in rows:
        image, caption = pair(row)
        assert (row["image"], row["caption"]) == (ids[image], captions[caption])
        assert float(row["similarity"]) == pytest.approx(pairs[image, caption], rel=1e-6)

    for n, row in enumerate(rows):
        row["probability"] = round(n / len(rows), 3) if n % 3 else None
    write(file, rows)
    assert aoq("screen", folder, tmp_path / "view", "--judgements", file, root=None).exit_code == 0
    view, expected = read_view(tmp_path / "view", table.manifest), {pair(row): row["probability"] for row in rows}
    for image, place in np.ndindex(*table.i2t.negative_ids.shape):
        probability = expected.get((image, int(table.i2t.negative_ids[image, place]))) or 0
        assert view.i2t.suspicion[image, place] == np.float32(probability)
        assert bool(view.i2t.flags[image, place]) == (probability >= 0.5)


def test_of_a_view_only_suspects_that_nobody_has_judged(aoq, folder, tmp_path):
    table = read_table(folder)
    assert aoq("screen", folder, tmp_path / "first", "--mutual-rank", 6, "--range-min", 1, root=None).exit_code == 0
    view = read_view(tmp_path / "first", table.manifest)
    suspects = set()
    for direction in ("i2t", "t2i"):
        for anchor, place in np.argwhere(view[direction].flags[:, :6] == bit("mutual_rank")).tolist():
            candidate = int(table[direction].negative_ids[anchor, place])
            suspects.add((anchor, candidate) if direction == "i2t" else (candidate, anchor))
    ask = ("to-judge", folder, tmp_path / "pairs.csv", "--top", 6, "--view", tmp_path / "first")
    assert aoq(*ask, root=None).exit_code == 0
    rows = read(tmp_path / "pairs.csv")
    assert {pair(row) for row in rows} == suspects
    assert [*rows[0]] == ["image_id", "caption_id", "similarity"]

    half = len(rows) // 2
    write(tmp_path / "judged.csv", [{**row, "probability": n % 2} for n, row in enumerate(rows[:half])])
    again = ("--mutual-rank", 6, "--range-min", 1, "--judgements", tmp_path / "judged.csv")
    assert aoq("screen", folder, tmp_path / "second", *again, root=None).exit_code == 0
    ask = ("to-judge", folder, tmp_path / "rest.csv", "--top", 6, "--view", tmp_path / "second")
    assert aoq(*ask, root=None).exit_code == 0
    assert read(tmp_path / "rest.csv") == rows[half:]


def mine(aoq, folder, *sides, ids):
    """A table of random vectors, this many a side, with these ids kept."""
    vectors, rng = [], np.random.default_rng(0)
    for name, count in zip(("images", "captions"), sides, strict=False):
        np.save(folder / f"{name}.npy", rng.normal(size=(count, 4)).astype(np.float32))
        (folder / f"{name}.txt").write_text("".join(f"{name[0]}{row}\n" for row in range(count)))
        vectors.append(folder / f"{name}.npy")
    given = [one for side in ids for one in (f"--{side}-ids", folder / f"{side}s.txt")]
    depths = ("--h-captions", 2, "--h-images", 2)[: 2 * len(sides)]
    mined = aoq("mine", *vectors, folder / "table", "--unpaired", "--normalise", *depths, *given, root=None)
    assert mined.exit_code == 0, mined.stderr
    return folder / "table"


def asked(aoq, table, *options):
    """The pairs by row, and what they are called."""
    file = table.parent / f"pairs{len(options)}.jsonl"
    shown = aoq("to-judge", table, file, *options, root=None)
    assert shown.exit_code == 0, shown.stderr
    return [(pair(row), row.get("image"), row.get("caption")) for row in read(file)]


def test_rows_go_by_the_ids_beside_the_table_unless_others_are_given(aoq, tmp_path):
    table = mine(aoq, tmp_path, 4, 3, ids=["image", "caption"])
    for (image, caption), *names in asked(aoq, table):
        assert names == [f"i{image}", f"c{caption}"]
    pq.write_table(pa.table({"name": [f"other{row}" for row in range(4)]}), tmp_path / "names.parquet")
    for (image, caption), *names in asked(aoq, table, "--image-ids", f"{tmp_path / 'names.parquet'}::name"):
        assert names == [f"other{image}", f"c{caption}"]


def test_both_rows_of_a_pair_of_one_set_go_by_one_kind_of_name(aoq, tmp_path):
    table = mine(aoq, tmp_path, 5, ids=["image"])
    for (first, second), *names in asked(aoq, table):
        assert names == [f"i{first}", f"i{second}"]
    (tmp_path / "texts.txt").write_text("".join(f"text {row}\n" for row in range(5)))
    for (first, second), *names in asked(aoq, table, "--texts", tmp_path / "texts.txt"):
        assert names == [f"text {first}", f"text {second}"]
    both = ("--texts", tmp_path / "texts.txt", "--image-ids", tmp_path / "images.txt")
    assert "give one of these" in aoq("to-judge", table, tmp_path / "no.csv", *both, root=None).stderr
    assert not (tmp_path / "no.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pairs.xlsx"], "pairs.xlsx should be a file that ends in one of .parquet, .csv, .tsv, .jsonl"),
        (["there.csv"], "there.csv is there already"),
        (["pairs.csv", "--texts", "short.txt"], "2 texts are given for a table of 300"),
        (["pairs.csv", "--data", ".", "--texts", "short.txt"], "leave out --texts\n"),
        (["pairs.csv", "--view", "empty"], "the view suspects none of the first 10 of each list"),
    ],
)
def test_it_says_what_is_wrong_and_leaves_nothing(aoq, folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    (tmp_path / "there.csv").write_text("")
    assert aoq("screen", folder, "empty", "--range-min", 1, root=None).exit_code == 0
    before = sorted(tmp_path.iterdir())
    shown = aoq("to-judge", folder, *arguments, root=None)
    assert shown.exit_code != 0
    assert message in shown.stderr
    assert sorted(tmp_path.iterdir()) == before
