"""Each page shows its part of a table; addresses that make no sense get an answer that says so."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.browse.source import Gallery, find_captions
from aoq.pipeline.console import visible
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.inspection import inspect_anchor
from aoq.pipeline.tables.table import NegativeTable


def entries(page):
    """The entries of the lists, as their text without tags, and the addresses in each."""
    for part in re.findall(r"<ol class=\"entries\">(.*?)</ol>", page, re.S):
        for entry in re.findall(r"<li[^>]*>(.*?)</li>", part, re.S):
            text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", entry)).split())
            yield text, [html.unescape(link) for link in re.findall(r'href="([^"]+)"', entry)]


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_a_list_is_that_of_the_table(browse, source, direction):
    table, anchor = source.tables[0], 7
    expected = inspect_anchor(table.lists, source.train.split, direction, anchor, 60, table.store, table.view)
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
    browse.mark(7, source.tables[0].lists.i2t.negative_ids[7, 3])
    everything = [*entries(browse.text("/image/7") + browse.text("/image/7?page=2"))]
    signs = {"above": "above a positive", "duplicate": "near-duplicate|same text", "marked": "✓ true match"}
    rules = "near_text|mutual_rank"
    expected = [
        one
        for one in everything
        if (not re.search(rules, one[0]) if show == "left" else re.search(signs.get(show, show), one[0]))
    ]
    shown = [*entries(browse.text(f"/image/7?show={show}"))]
    plain = [re.sub(r"[?&]show=\w+", "", " ".join(links)) for _, links in shown]
    assert [text for text, _ in shown] == ([text for text, _ in expected[:50]] or ["none"])
    assert plain == [" ".join(links) for _, links in expected[:50]] or not expected


def test_two_tables_side_by_side(browse, source):
    lists = [table.lists.i2t.negative_ids[7].tolist() for table in source.tables]
    shown = [*entries(browse.text("/image/7?table=0&beside=1"))]
    assert len(shown) == 100
    for side, part in enumerate((shown[:50], shown[50:])):
        for row, (text, _) in zip(lists[side][:50], part, strict=True):
            there = row in lists[1 - side]
            assert ("only here" in text) == (not there)
            assert not there or f"rank {lists[1 - side].index(row) + 1} beside" in text
    assert any("only here" in text for text, _ in shown)
    assert len([*entries(browse.text("/image/7?table=0&beside=0"))]) == 50


def test_where_one_is_a_negative(browse, source):
    table = source.tables[1].lists
    for kind, lists, row in (("image", table.t2i, 3), ("caption", table.i2t, 40)):
        places, anchors = np.nonzero((lists.negative_ids == row).T)
        page = browse.text(f"/{kind}/{row}/listed?table=1")
        shown = [*entries(page)]
        assert f"in {len(anchors)} of {len(lists)} lists" in page
        assert len(shown) == min(50, max(1, len(anchors)))
        for place, anchor, (text, links) in zip(places, anchors, shown, strict=False):
            assert f"rank {place + 1} {lists.scores[anchor, place]:.4f}" in text
            assert any(re.match(rf"/(caption|image)/{anchor}\?table=1", link) for link in links)


def test_search_finds_captions_and_is_paged(browse, source):
    shown = entries(browse.text("/search?q=ON") + browse.text("/search?q=ON&page=2"))
    rows = [int(re.search(r"/caption/(\d+)", " ".join(links)).group(1)) for _, links in shown]
    assert len(rows) > 50
    assert rows == find_captions(source.train.texts, "on")[: len(rows)]
    assert "0 captions have" in browse.text("/search?q=zebra")
    assert "Type words" in browse.text("/search")


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("/image/70", 404, "image 70: there are images 0 to 69."),
        ("/caption/350", 404, "captions 0 to 349"),
        ("/image/abc", 404, "images 0 to 69"),
        ("/image/" + "9" * 5000, 404, "images 0 to 69"),
        ("/image/1?page=abc", 400, "page=abc: give a whole number."),
        ("/image/1?table=2", 400, "there is no table 2; choose one of 0 to 1."),
        ("/image/1?show=<b>", 400, "choose one of above"),
        ("/picture/nothing/0", 404, "no pictures of nothing"),
        ("/query/image/12", 404, "there are images 0 to 11"),
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
        shown = [*entries(browse.text(f"/query/{kind}/5" if kind == "image" else f"/query/{kind}/9"))]
        best = np.sort(scores)[::-1][:20]
        assert [float(re.search(r"-?\d\.\d{4}", text).group()) for text, _ in shown] == pytest.approx(best, abs=1e-4)
        order = np.argsort(-scores, kind="stable")[:20]
        assert sum("✓ right" in text for text, _ in shown) == right[order].sum()


def test_two_runs_answer_side_by_side(source, pages_of):
    run = source.evaluations[0]
    other = replace(run, name="reversed", similarity=-np.asarray(run.similarity), metrics={"rsum": None})
    browse = pages_of(replace(source, evaluations=(run, other)))
    shown = [*entries(browse.text("/query/image/5?run=0&beside=1"))]
    assert len(shown) == 40
    for half, scores in ((shown[:20], run.similarity[5]), (shown[20:], -run.similarity[5])):
        order = np.argsort(-scores, kind="stable")[:20]
        assert [f"/query/caption/{row}?run=0&beside=1" for row in order] == [links[1] for _, links in half]
    assert len([*entries(browse.text("/query/image/5?run=1&page=2"))]) == 20
    assert re.search(r"reversed</a>.*(<td>–</td>){7}", browse.text("/"))  # a run without metrics


def test_evaluations_alone_have_pages_of_their_own(source, pages_of):
    browse = pages_of(Gallery(None, (), source.evaluations))
    assert "Queries" in browse.text("/")
    assert "Search training" not in browse.text("/")
    assert browse.get("/image/1").status_code == 404
    assert "12 images of split dev" in browse.text("/queries")


def test_lists_without_scores_and_padding_have_gaps(source, pages_of):
    """Tables that were imported from lists look like this."""
    table = source.tables[1].lists
    blank = [
        NegativeLists(
            np.where(np.arange(lists.h) < lists.h // 2, lists.negative_ids, np.int32(-1)),
            np.full_like(lists.scores, np.nan),
            np.full_like(lists.positive_score, np.nan),
        )
        for lists in (table.i2t, table.t2i)
    ]
    imported = replace(source.tables[1], lists=NegativeTable(*blank, positives=table.positives), store=None)
    browse = pages_of(replace(source, tables=(imported,)))
    shown = [*entries(browse.text("/image/7"))]
    assert len(shown) == 30
    assert all("no score" in text and "above a positive" not in text for text, _ in shown)
    listed = browse.text(f"/caption/{table.i2t.negative_ids[7, 0]}/listed")
    assert "no score" in listed
    assert "nan" not in re.sub(r"\w*nan\w+", "", listed.lower())
    assert "would be rank" not in browse.text("/image/7")
    assert '<td class="left">–</td>' in browse.text("/")


def test_a_damaged_file_of_marks_is_named_on_a_page(browse):
    browse.mark(1, 30)
    browse.marks.judged.path.write_text("image_id;caption_id;probability\n1;30;1\n")
    answer = browse.get("/image/1")
    assert answer.status_code == 500
    assert "is damaged or not marks" in answer.text
