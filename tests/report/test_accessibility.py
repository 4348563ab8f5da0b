"""The report by axe-core, with all that is folded open."""

from __future__ import annotations

from tests.accessibility import serious_findings


def test_the_report_has_no_serious_finding(open_page, page, tmp_path):
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    opened = open_page((tmp_path / "report.html").as_uri())
    opened.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert serious_findings(opened) == []


def test_it_would_find_one(open_page, tmp_path):
    (tmp_path / "pale.html").write_text('<html lang="en"><title>a</title><p style="color: #ddd">pale</p><img src="">')
    found = " ".join(serious_findings(open_page((tmp_path / "pale.html").as_uri())))
    assert "light, 1280: Images must have alternative text" in found
    assert "dark, 390: Images must have alternative text" in found
    assert "contrast" in found
