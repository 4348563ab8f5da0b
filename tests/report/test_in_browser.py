"""The report in Chromium, and by axe-core; pages that complain, or ask for anything from elsewhere, fail."""

import csv
import io

import pytest
from playwright.sync_api import expect

from tests.accessibility import serious_findings
from tests.report.conftest import SECTIONS


@pytest.fixture
def file(page, tmp_path):
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    return (tmp_path / "report.html").as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_fits_the_screen_and_shows_its_plots(open_page, file, width, scheme):
    page = open_page(file, width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plots = page.locator("figure svg")
    assert plots.count() > 8
    for plot in plots.all():
        box = plot.bounding_box()
        assert box["width"] > 100
        assert box["height"] > 50
    ink, paper = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
    dark = sum(map(int, paper.removeprefix("rgb(").removesuffix(")").split(", "))) < 200
    assert dark == (scheme == "dark")
    assert ink != paper


def test_it_has_no_serious_finding_with_all_folded_open(open_page, file):
    page = open_page(file)
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert serious_findings(page) == []


def test_axe_would_find_what_is_wrong(open_page, tmp_path):
    (tmp_path / "pale.html").write_text('<html lang="en"><title>a</title><p style="color: #ddd">pale</p><img src="">')
    findings = " ".join(serious_findings(open_page((tmp_path / "pale.html").as_uri())))
    assert "light, 1280: Images must have alternative text" in findings
    assert "dark, 390: Images must have alternative text" in findings
    assert "contrast" in findings


def test_an_address_opens_what_is_folded(open_page, file):
    page = open_page(file)
    page.get_by_role("link", name="Provenance", exact=True).press("Enter")
    expect(page.locator("#provenance-of-all")).to_have_attribute("open", "")
    expect(page.locator("#provenance")).to_be_in_viewport()


def test_a_table_is_sorted_filtered_and_copied_by_the_keyboard(open_page, file):
    page = open_page(file)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    table = page.get_by_role("region", name="Runs", exact=True)
    loss = table.get_by_role("button", name="loss")

    def column():
        return table.locator("tbody tr:visible td:nth-child(3)").all_inner_texts()

    for _ in range(2):
        loss.focus()
        page.keyboard.press("Enter")
    assert table.locator("th").nth(2).get_attribute("aria-sort") == "ascending"
    assert column() == sorted(column()) == ["offtri", "offtri", "sum"]
    page.get_by_role("searchbox", name="Filter rows of Runs").fill("TEACHER")
    assert column() == ["sum"]
    tools = page.locator(".tools", has=page.get_by_role("searchbox", name="Filter rows of Runs"))
    copied = {}
    for form in ("Markdown", "LaTeX", "CSV"):
        tools.get_by_role("button", name=f"Copy {form}").press("Enter")
        expect(tools.get_by_role("button", name="copied")).to_be_visible()
        copied[form] = page.evaluate("navigator.clipboard.readText()")
        expect(tools.get_by_role("button", name=f"Copy {form}")).to_be_visible()
    assert copied["Markdown"].splitlines()[0].startswith("| run | model | loss |")
    assert "| teacher | vsepp | sum | 0 | 2 × 16 |" in copied["Markdown"]
    assert copied["LaTeX"].splitlines()[0] == r"\begin{tabular}{lrrrrrrrr}"
    assert r"teacher & vsepp & sum & 0 & 2 × 16" in copied["LaTeX"]
    rows = list(csv.reader(io.StringIO(copied["CSV"])))
    assert [len(row) for row in rows] == [9, 9]
    assert rows[1][6] == "12 images, 60 captions of dev"


def test_numbers_are_sorted_as_numbers(open_page, file):
    page = open_page(file)
    results = page.get_by_role("region", name="Results", exact=True)
    results.get_by_role("button", name="i2t@1", exact=True).click()
    shown = [text.split("\n")[0] for text in results.locator("tbody td:nth-child(2)").all_inner_texts()]
    numbers = [float(text) for text in shown if text != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert shown[-1] == "–"  # what is not there stands last


def test_sections_are_reached_by_the_keyboard(open_page, file):
    page = open_page(file)
    for section in SECTIONS:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"#{section}"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_function("location.hash === '#provenance'")
    heading, bar = page.locator("#provenance").bounding_box(), page.locator("nav").bounding_box()
    assert bar["y"] + bar["height"] <= heading["y"] < 900


def test_a_word_shows_what_it_attends_to_and_lets_go_of_it(open_page, file):
    page = open_page(file)
    card = page.locator("[data-attended]").first
    words, boxes = card.locator("button"), card.locator("rect")

    def opacities():
        return [float(box.get_attribute("opacity")) for box in boxes.all()]

    def expected(word):
        return [0.55 * float(weight) for weight in word.get_attribute("data-weights").split()]

    def pressed():
        return [number for number, word in enumerate(words.all()) if word.get_attribute("aria-pressed") == "true"]

    (first,) = pressed()  # the word whose attention is narrowest
    assert sum(expected(words.nth(first))) == min(sum(expected(word)) for word in words.all())
    assert opacities() == pytest.approx(expected(words.nth(first)))
    other = (first + 1) % words.count()
    words.nth(other).focus()
    page.keyboard.press("Enter")
    assert opacities() == pytest.approx(expected(words.nth(other)))
    assert pressed() == [other]
    page.keyboard.press("Enter")
    assert not any(opacities())
