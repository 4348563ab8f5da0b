"""Every place that names the version names the same one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_version_citation_and_changelog_agree():
    (version,) = re.findall(r'^version = "(.*)"$', read("pyproject.toml"), re.MULTILINE)
    cited = dict(re.findall(r"^(version|date-released): (.*)$", read("CITATION.cff"), re.MULTILINE))
    unreleased, latest, *_ = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert unreleased == "Unreleased"
    assert latest == f"{version} ({cited['date-released']})"
    assert cited["version"] == version
