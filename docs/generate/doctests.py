"""A griffe extension: docstrings as Markdown that shows their examples as code."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object
from names import fenced  # which the hook has imported


class Doctests(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
