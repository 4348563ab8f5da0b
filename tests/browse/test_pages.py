"""Each page shows its part of a table; addresses that make no sense get an answer that says so."""

from __future__ import annotations

import html
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.browse.lists import ListFile
from aoq.pipeline.browse.source import Gallery
from aoq.pipeline.console import visible
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.files import read_manifest
from aoq.pipeline.tables.inspection import inspect_anchor
from aoq.pipeline.tables.pairs import paired
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.tables.writing import write_table


def entries(page):
    """The entries of the lists, as their text without tags, and the addresses in each."""
    found = []
    for part in re.findall(r"<ol class=\"entries\">(.*?)</ol>", page, re.S):
        for entry in re.findall(r"<li[^>]*>(.*?)</li>", part, re.S):
            text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", entry)).split())
            found.append((text, [html.unescape(link) for link in re.findall(r'href="([^"]+)"', entry)]))
    return found


@pytest.fixture(scope="module")
def tables(folders):
    return [read_table(folder) for folder in folders]


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_a_list_is_that_of_the_table(browse, source, tables, world, direction):
    table, split, anchor = tables[0], source.train.split, 7
    view = read_view(next((world / "artifacts" / "screen").glob("*/view")), table.manifest)
    expected = inspect_anchor(table, split, direction, anchor, 60, source.tables[0].store, view)
    kind, other = ("image", "caption") if direction == "i2t" else ("caption", "image")
    pages = ["", "?page=2"] if direction == "i2t" else [""]
    shown = [entry for page in pages for entry in entries(browse.text(f"/{kind}/{anchor}{page}"))]
    assert len(shown) == len(expected.negatives)
    for negative, (text, links) in zip(expected.negatives, shown, strict=True):
        assert text.startswith(f"{negative.rank} {visible(negative.text)} {negative.score:.4f}")
        assert ("above a positive" in text) == negative.above_positive
        assert all(flag in text for flag in (*negative.flags, negative.duplicate))
        assert f"/{other}/{negative.row}?table=0" in links
        assert f"/{other}/{negative.row}/listed?table=0" in links


@pytest.mark.parametrize("show", ["above", "duplicate", "left", "near_text", "mutual_rank", "marked"])
def test_filters_leave_what_they_say(browse, source, show):
    browse.mark(7, source.tables[0].lists["i2t"][7].negative_ids[3])
    everything = entries(browse.text("/image/7")) + entries(browse.text("/image/7?page=2"))
    signs = {"above": "above a positive", "duplicate": "near-duplicate|same text", "marked": "✓ true match"}
    rules = "near_text|mutual_rank"
    expected = [
        one
        for one in everything
        if (not re.search(rules, one[0]) if show == "left" else re.search(signs.get(show, show), one[0]))
    ]
    shown = entries(browse.text(f"/image/7?show={show}"))
    plain = [re.sub(r"[?&]show=\w+", "", " ".join(links)) for _, links in shown]
    assert [text for text, _ in shown] == ([text for text, _ in expected[:50]] or ["none"])
    assert plain == [" ".join(links) for _, links in expected[:50]] or not expected


def test_two_tables_side_by_side(browse, source):
    lists = [table.lists["i2t"][7].negative_ids.tolist() for table in source.tables]
    shown = entries(browse.text("/image/7?table=0&beside=1"))
    assert len(shown) == 100
    for side, part in enumerate((shown[:50], shown[50:])):
        for row, (text, _) in zip(lists[side][:50], part, strict=True):
            there = row in lists[1 - side]
            assert ("only here" in text) == (not there)
            assert not there or f"rank {lists[1 - side].index(row) + 1} beside" in text
    assert any("only here" in text for text, _ in shown)
    assert len(entries(browse.text("/image/7?table=0&beside=0"))) == 50


def test_where_one_is_a_negative(browse, source, tables):
    table = tables[1]
    for kind, lists, row in (("image", table.t2i, 3), ("caption", table.i2t, 40)):
        places, anchors = np.nonzero((lists.negative_ids == row).T)
        shown = entries(browse.text(f"/{kind}/{row}/listed?table=1"))
        assert f"in {len(anchors)} of {len(lists)} lists" in browse.text(f"/{kind}/{row}/listed?table=1")
        assert len(shown) == min(50, max(1, len(anchors)))
        for place, anchor, (text, links) in zip(places, anchors, shown, strict=False):
            assert f"rank {place + 1} {lists.scores[anchor, place]:.4f}" in text
            assert any(re.match(rf"/(caption|image)/{anchor}\?table=1", link) for link in links)


def test_search_finds_captions_and_is_paged(browse, source):
    captions = source.train.split.captions
    found = [row for row, text in enumerate(captions) if " on " in f" {text} ".lower()]
    assert len(found) > 50
    shown = entries(browse.text("/search?q=ON")) + entries(browse.text("/search?q=ON&page=2"))
    rows = [int(re.search(r"/caption/(\d+)", " ".join(links)).group(1)) for _, links in shown]
    assert set(found[:20]) <= set(rows)
    assert rows == sorted(rows)
    assert "0 captions have" in browse.text("/search?q=zebra")
    assert "Type words" in browse.text("/search")


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("/image/70", 404, "image 70: split 'train' has images 0 to 69."),
        ("/caption/350", 404, "captions 0 to 349"),
        ("/image/abc", 404, "images 0 to 69"),
        ("/image/-1", 404, "images 0 to 69"),
        ("/image/" + "9" * 5000, 404, "images 0 to 69"),
        ("/caption/350/listed", 404, "captions 0 to 349"),
        ("/image/1?page=abc", 400, "page=abc: give a whole number."),
        ("/image/1?page=0", 400, "choose one of 1 to 2"),
        ("/image/1?page=3", 400, "there is no page 3; choose one of 1 to 2."),
        ("/image/1?table=2", 400, "there is no table 2; choose one of 0 to 1."),
        ("/image/1?beside=x", 400, "beside=x"),
        ("/image/1?show=<b>", 400, "choose one of above"),
        ("/search?q=on&page=99", 400, "page 99"),
        ("/picture/nothing/0", 404, "no pictures of nothing"),
        ("/query/image/12", 404, "split 'dev' has images 0 to 11"),
        ("/query/image/1?run=5", 400, "there is no run 5"),
        ("/nowhere", 404, "not found"),
    ],
)
def test_wrong_addresses_say_what_there_is(browse, address, code, message):
    answer = browse.get(address)
    assert answer.status_code == code
    assert message in html.unescape(answer.text)
    assert "<b>" not in answer.text


def test_pictures_are_read_from_thumbs_alone(browse, source):
    key = source.train.key
    there = browse.get(f"/picture/{key}/0")
    assert there.mimetype == "image/jpeg"
    assert "max-age" in there.headers["Cache-Control"]
    for row in (2, 3, 4, 5, 6):  # no picture, none there, two outside, a name that no file can have
        missing = browse.get(f"/picture/{key}/{row}")
        assert missing.status_code == 200
        assert b"no picture" in missing.data
    assert browse.get(f"/picture/{key}/70").status_code == 404


def test_answers_stand_in_the_order_of_their_scores(browse, source):
    run = source.evaluations[0]
    for kind, scores, right in (
        ("image", run.similarity[5], run.album.split.image_of == 5),
        ("caption", run.similarity[:, 9], np.arange(12) == run.album.split.image_of[9]),
    ):
        shown = entries(browse.text(f"/query/{kind}/5" if kind == "image" else f"/query/{kind}/9"))
        best = np.sort(scores)[::-1][:20]
        assert [float(re.search(r"-?\d\.\d{4}", text).group()) for text, _ in shown] == pytest.approx(best, abs=1e-4)
        order = np.argsort(-scores, kind="stable")[:20]
        assert sum("✓ right" in text for text, _ in shown) == right[order].sum()


def test_two_runs_answer_side_by_side(source, pages_of):
    run = source.evaluations[0]
    other = replace(run, name="reversed", similarity=-np.asarray(run.similarity), metrics={"rsum": None})
    browse = pages_of(replace(source, evaluations=(run, other)))
    page = browse.text("/query/image/5?run=0&beside=1")
    shown = entries(page)
    assert len(shown) == 40
    assert "reversed" in page
    for half, scores in ((shown[:20], run.similarity[5]), (shown[20:], -run.similarity[5])):
        order = np.argsort(-scores, kind="stable")[:20]
        assert [f"/query/caption/{row}?run=0&beside=1" for row in order] == [links[1] for _, links in half]
    assert len(entries(browse.text("/query/image/5?run=1&page=2"))) == 20
    start = browse.text("/")
    assert re.search(r"reversed</a>.*(<td>–</td>){7}", start)  # a run without metrics


def test_evaluations_alone_have_pages_of_their_own(source, pages_of):
    browse = pages_of(Gallery(None, (), source.evaluations))
    assert "Queries" in browse.text("/")
    assert "Search training" not in browse.text("/")
    assert browse.get("/image/1").status_code == 404
    assert "12 images of split dev" in browse.text("/queries")


def test_lists_without_scores_and_padding_have_gaps(source, pages_of, tables, tmp_path):
    """Tables that were imported from lists look like this."""
    table = tables[1]
    blank = [
        NegativeLists(
            np.where(np.arange(lists.h) < lists.h // 2, lists.negative_ids, np.int32(-1)),
            np.full_like(lists.scores, np.nan),
            np.full_like(lists.positive_score, np.nan),
        )
        for lists in (table.i2t, table.t2i)
    ]
    made = {
        direction: ({"direction": direction, "h": lists.h}, [lists])
        for direction, lists in zip(("i2t", "t2i"), blank, strict=True)
    }
    write_table(tmp_path / "table", {"dataset": "", "teacher": None}, made, paired(source.train.split.image_of))
    manifest = read_manifest(tmp_path / "table")
    files = {name: ListFile(tmp_path / "table", name, manifest, None) for name in ("i2t", "t2i")}
    imported = replace(source.tables[1], teacher="", lists=files, store=None)
    browse = pages_of(replace(source, tables=(imported,)))
    shown = entries(browse.text("/image/7"))
    assert len(shown) == 30
    assert all("no score" in text and "above a positive" not in text for text, _ in shown)
    listed = browse.text(f"/caption/{table.i2t.negative_ids[7, 0]}/listed")
    assert "no score" in listed
    assert "nan" not in re.sub(r"\w*nan\w+", "", listed.lower())
    assert "would be rank" not in browse.text("/image/7")
    assert '<td class="left">–</td>' in browse.text("/")


def test_a_damaged_table_is_said(source, pages_of, folders, tmp_path):
    copy = tmp_path / "table"
    shutil.copytree(folders[1], copy)
    content = bytearray((copy / "i2t.parquet").read_bytes())
    content[400:440] = bytes(40)
    (copy / "i2t.parquet").write_bytes(content)
    files = {name: ListFile(copy, name, read_manifest(copy), None) for name in ("i2t", "t2i")}
    browse = pages_of(replace(source, tables=(replace(source.tables[1], lists=files),)))
    for address in ("/image/7", "/caption/7/listed"):
        answer = browse.get(address)
        assert answer.status_code == 500
        assert "is damaged or not a Parquet file" in answer.text
