"""Run axe-core on a page."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

SCREENS = (("light", 1280), ("dark", 390))
OPTIONS = {"resultTypes": ["violations"]}  # describing what passes takes half of the time


def serious_findings(page: Page) -> list[str]:
    """Return serious and critical findings on the open page, on a wide light screen and a narrow dark one."""
    found = []
    for scheme, width in SCREENS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("document.getAnimations().every(one => one.playState !== 'running')")  # colours fade
        for finding in Axe().run(page, options=OPTIONS).response["violations"]:
            if finding["impact"] in ("serious", "critical"):
                shown = [node["html"] for node in finding["nodes"]]
                found.append(f"{scheme}, {width}: {finding['help']}: {shown}")
    return found
