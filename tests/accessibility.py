"""Run axe-core on a page."""

from __future__ import annotations

import itertools

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

SCHEMES, WIDTHS = ("light", "dark"), (1280, 390)
ASKED = {"resultTypes": ["violations"]}
"""What passes is not described node by node, which takes half of the time."""


def serious_findings(page: Page) -> list[str]:
    """Serious and critical findings on the open page, light and dark, on a wide screen and a narrow one."""
    found = []
    for scheme, width in itertools.product(SCHEMES, WIDTHS):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("document.getAnimations().every(one => one.playState !== 'running')")  # colours fade
        for finding in Axe().run(page, options=ASKED).response["violations"]:
            if finding["impact"] in ("serious", "critical"):
                shown = [node["html"] for node in finding["nodes"]]
                found.append(f"{scheme}, {width}: {finding['help']}: {shown}")
    return found
