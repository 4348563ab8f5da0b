"""A griffe extension: docstrings as Markdown with their examples as code."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object
from names import as_markdown  # which the hook has imported


class Docstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
