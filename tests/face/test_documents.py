"""The Python in README.md and docs/python.md runs as it stands, links lead somewhere, and there is one version."""

import re
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.tables.audit import audit

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOOPS = BLOCKS.findall((ROOT / "docs" / "python.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(len(LOOPS)))
def test_each_loop_runs(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(LOOPS[number], f"loop {number + 1}", "exec"), names)
    if "loss" in names:
        assert names["loss"].isfinite()
    if (tmp_path / "negatives").exists():
        assert audit(tmp_path / "negatives") == []


def test_the_readmes_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    images, captions, image_of = rng.normal(size=(100, 8)), rng.normal(size=(300, 8)), np.arange(300) // 3
    (block,) = BLOCKS.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    exec(compile(block, "README.md", "exec"), {"images": images, "captions": captions, "image_of": image_of})
    assert audit(tmp_path / "negatives") == []


DOCS = ROOT / "docs"
MADE = {DOCS / "reference" / f"{name}.md" for name in ("configuration", "commands", "python")}
"""Pages that `make docs` makes."""
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_to_what_is_there(page):
    for address, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if address.startswith(("http:", "https:")):
            continue
        target = (page.parent / address).resolve() if address else page
        if target in MADE:
            continue
        assert target.exists(), address
        if anchor and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            names = [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]
            assert anchor[1:] in names, f"{address}{anchor}"


def test_version_citation_and_changelog_agree():
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    cited = dict(re.findall(r"^(version|date-released): (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    unreleased, latest, *_ = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert unreleased == "Unreleased"
    assert latest == f"{version} ({cited['date-released']})"
    assert cited["version"] == version
