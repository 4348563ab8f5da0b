"""The pages in a real browser: every control, the keyboard, a phone's width, captions of all kinds, and axe-core."""

import re

import pytest
from playwright.sync_api import expect

from aoq.pipeline.browse.source import open_folders
from aoq.pipeline.tables.screens.judgements import read_judgements
from tests.accessibility import serious_findings

ADDRESSES = ["/", "/search?q=dogs", "/image/0", "/image/0?table=0&beside=1", "/caption/0", "/image/0/listed"]
ADDRESSES += ["/caption/0/listed", "/queries", "/queries?q=dogs", "/query/image/0", "/query/caption/0"]
ADDRESSES += ["/suspects", "/suspects?show=all&table=1", "/agreement"]


@pytest.mark.parametrize(("width", "scheme", "addresses"), [(1280, "light", ADDRESSES[::4]), (390, "dark", ADDRESSES)])
def test_pages_fit_and_load_all_they_show(served, open_page, width, scheme, addresses):
    page = open_page(served, width=width, scheme=scheme)
    for address in addresses:
        page.goto(f"{served}{address}", wait_until="load")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
        assert page.evaluate("getComputedStyle(document.body).fontSize") == "16px", address  # the stylesheet is there
        for box in page.evaluate("[...document.images].map(image => image.getBoundingClientRect().toJSON())"):
            assert box["width"] == pytest.approx(box["height"]), address  # whatever the picture is, when it is there
        for picture in page.locator("img").all()[:3]:
            picture.scroll_into_view_if_needed()
            page.wait_for_function(
                "element => element.complete && element.naturalWidth > 0", arg=picture.element_handle()
            )


@pytest.mark.parametrize("address", ["/", "/image/0?table=0&beside=1", "/suspects", "/query/image/0"])
def test_pages_of_experiments_have_no_serious_finding(served, open_page, address):
    assert serious_findings(open_page(f"{served}{address}")) == []


def test_pages_of_folders_and_marks_have_no_serious_finding(serve, folders, open_page):
    page = open_page(f"{serve(open_folders(folders[:1]))}/image/7")
    for place, mark in enumerate(("true match", "not a match")):
        page.locator(".entries li").nth(place).get_by_role("button", name=mark).click()
        page.locator(".entries li").nth(place).get_by_role("button", pressed=True).wait_for()
    assert serious_findings(page) == []


def test_from_a_search_to_a_negative_to_where_it_is_listed(served, open_page):
    page = open_page(served)
    page.get_by_role("searchbox").fill("on")
    page.keyboard.press("Enter")
    first = page.locator(".entries li").first
    expect(first).to_be_visible()
    page.get_by_role("link", name="next →").click()
    expect(page.locator(".pages")).to_contain_text("page 2 of")
    page.get_by_role("link", name="← previous").click()
    first.locator("a").first.click()
    expect(page.locator("h1")).to_contain_text("Image")
    text = first.locator("p a").inner_text()
    first.locator("p a").click()
    expect(page.locator("h1")).to_contain_text("Caption")
    expect(page.locator(".anchor .own")).to_have_text(text)
    page.get_by_role("link", name="where this caption is a negative").click()
    expect(page.locator("main")).to_contain_text(re.compile(r"in \d+ of 70 lists"))


def test_pairs_are_marked_by_keys(served, open_page, tmp_path):
    page = open_page(f"{served}/image/7")
    ids = [entry.get_attribute("id") for entry in page.locator(".entries li").all()[:3]]
    rows = [int(name.split("-")[1]) for name in ids]

    def focused():
        return page.evaluate("document.activeElement.id")

    for key, place in (("j", 0), ("j", 1), ("k", 0), ("j", 1)):
        page.keyboard.press(key)
        assert focused() == ids[place]
    page.keyboard.press("m")
    expect(page.locator(f"#{ids[1]}").get_by_role("button", pressed=True)).to_have_text("✓ true match")
    page.wait_for_function("id => document.activeElement.id === id", arg=ids[1])  # it goes on where it was
    page.keyboard.press("j")
    page.keyboard.press("n")
    expect(page.locator(f"#{ids[2]}").get_by_role("button", pressed=True)).to_have_text("✗ not a match")
    page.wait_for_load_state()  # keys are taken from then on
    judged = read_judgements(tmp_path / "matches.marks.csv", 70, 350)
    assert dict(zip(map(tuple, judged.pairs.tolist()), judged.probabilities.tolist(), strict=True)) == {
        (7, rows[1]): 1.0,
        (7, rows[2]): 0.0,
    }
    page.keyboard.press("u")
    expect(page.get_by_role("button", pressed=True)).to_have_count(1)
    page.wait_for_load_state()
    page.keyboard.press("u")
    expect(page.get_by_role("button", pressed=True)).to_have_count(0)
    page.wait_for_load_state()
    page.get_by_role("searchbox").focus()
    page.keyboard.type("jump")
    assert page.get_by_role("searchbox").input_value() == "jump"


def test_suspects_are_gone_through_by_keys(served, open_page, source):
    page = open_page(f"{served}/suspects")
    total = len(source.tables[0].suspects)
    order = [f"p{image}-{caption}" for _, image, caption, _ in source.tables[0].suspects[:5]]
    for done, key in enumerate("mnm"):
        page.keyboard.press(key)
        expect(page.locator("main")).to_contain_text(f"{done + 1} of them marked")
        page.wait_for_function("id => document.activeElement.id === id", arg=order[done + 1])
    expect(page.locator("header")).to_contain_text("2 matches, 1 not")
    page.keyboard.press("u")
    expect(page.locator("main")).to_contain_text("2 of them marked")
    page.wait_for_function("id => document.activeElement.id === id", arg=order[2])
    page.keyboard.press("j")  # skips one
    page.keyboard.press("n")
    page.wait_for_function("id => document.activeElement.id === id", arg=order[4])
    assert total > 5


def test_everything_is_reached_with_the_keyboard(served, open_page):
    page = open_page(f"{served}/image/7?show=duplicate")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    wanted = page.locator("a, button, input:not([type=hidden]), select").count()
    seen = {page.evaluate("document.activeElement.outerHTML")}
    reached = 1
    for _ in range(wanted - 1):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        seen.add(page.evaluate("document.activeElement.outerHTML"))
        reached += 1
    assert page.evaluate("document.activeElement.matches('a, button, input, select')")
    assert reached == wanted
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement === document.body || document.activeElement.className === 'skip'")
