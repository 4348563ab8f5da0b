"""The report in Chromium; the fixture fails a test whose page complains or asks for anything from elsewhere."""

from __future__ import annotations

import pytest


@pytest.fixture
def file(page, tmp_path):
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    return (tmp_path / "report.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen_and_shows_its_plots(open_page, file, width, scheme):
    page = open_page(file, width=width, scheme=scheme)
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


def test_pictures_are_decoded(open_page, file):
    page = open_page(file)
    page.evaluate("for (const image of document.images) image.loading = 'eager'")
    page.wait_for_function("[...document.images].every(image => image.complete)")
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")


def test_sections_are_reached_by_the_keyboard(open_page, file):
    page = open_page(file)
    for section in ("results", "training", "cross", "right", "attention", "tables", "examples", "provenance"):
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


def test_strange_captions_show_as_they_were_written(open_page, file):
    page = open_page(file)
    text = page.inner_text("main")
    for caption in ('<script>alert("x")</script> & "two" dogs <b>', "👩‍🚀 a dog 🐕", "כלב רץ על הדשא"):
        assert caption in text
    hebrew = page.locator("li", has_text="כלב רץ").first
    assert hebrew.evaluate("element => element.matches(':dir(rtl)')")
