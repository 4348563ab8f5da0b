"""The pages by axe-core: of experiments, of a bare table's folder, and with marks."""

from __future__ import annotations

import pytest

from aoq.pipeline.browse.source import open_folders
from tests.accessibility import serious_findings

SHOWN = ["/", "/image/0?table=0&beside=1", "/caption/0/listed", "/suspects", "/agreement", "/query/image/0"]


@pytest.mark.parametrize("address", SHOWN)
def test_pages_of_experiments_have_no_serious_finding(served, open_page, address):
    assert serious_findings(open_page(f"{served}{address}")) == []


def test_a_page_of_a_folder_has_no_serious_finding(serve, folders, open_page):
    assert serious_findings(open_page(f"{serve(open_folders(folders[:1]))}/image/0")) == []


def test_marked_pairs_have_no_serious_finding(served, open_page):
    page = open_page(f"{served}/image/7")
    for place, mark in enumerate(("true match", "not a match")):
        page.locator(".entries li").nth(place).get_by_role("button", name=mark).click()
        page.locator(".entries li").nth(place).get_by_role("button", pressed=True).wait_for()
    assert serious_findings(page) == []
