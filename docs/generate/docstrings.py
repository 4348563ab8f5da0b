"""A griffe extension that converts docstrings to Markdown."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object
from names import as_markdown  # the hook has put this folder on the path


class Docstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
