"""An mkdocs hook that adds pages: the reference, and files at the top of the repository."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import commands
import configuration
import names
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
TOP = {name: f"{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")} | {"README": "index.md"}
"""Files at the top of the repository and their pages."""
REFERENCE = {"configuration": configuration.page, "commands": commands.page, "python": names.page}
TO_TOP = re.compile(rf"\]\(((?:\.\./)*)({'|'.join(TOP)})\.md")
TO_DOCS = re.compile(r"\]\(docs/")
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, none of which is in docs/."""
    for name, page in REFERENCE.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    for name, place in TOP.items():
        if name != "README":
            text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
            files.append(File.generated(config, place, content=TO_DOCS.sub("](", text)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Link to the pages of files at the top of the repository; unescape bars in a table's code."""
    up = "../" * (len(PurePosixPath(page.file.src_uri).parts) - 1)
    markdown = TO_TOP.sub(lambda link: f"]({up}{TOP[link[2]]}", markdown)
    return ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), markdown)
