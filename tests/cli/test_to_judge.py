"""`aoq to-judge`: pairs out, a judge's probabilities in."""

from __future__ import annotations

from json import dumps

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as json
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.screens.view import bit, read_view
from aoq.pipeline.tables.table import read_table

SUFFIXES = (".csv", ".jsonl", ".parquet")


def read(path):
    readers = {".parquet": pq.read_table, ".csv": csv.read_csv, ".jsonl": json.read_json}
    return readers[path.suffix](path).to_pylist()


def write(path, rows):
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{dumps(row)}\n" for row in rows))
    else:
        {".parquet": pq.write_table, ".csv": csv.write_csv}[path.suffix](table, path)


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
def test_what_a_judge_fills_in_is_what_the_screen_reads(aoq, folder, world, tmp_path, suffix):
    table, file = read_table(folder), tmp_path / f"pairs{suffix}"
    shown = aoq("to-judge", folder, file, "--top", 2, "--data", world, root=None)
    assert shown.exit_code == 0, shown.stderr
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
    suspects = pairs_at(table, lambda one: view[one].flags[:, :6] == bit("mutual_rank"))
    ask = ("to-judge", folder, tmp_path / "pairs.csv", "--top", 6, "--view", tmp_path / "first")
    assert aoq(*ask, root=None).exit_code == 0
    rows = read(tmp_path / "pairs.csv")
    assert {pair(row) for row in rows} == suspects.keys()
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
