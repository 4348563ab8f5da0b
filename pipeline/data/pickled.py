"""Vocabularies as VSE++, VSRN and AOQ publish them: pickled objects, read without executing anything of theirs."""

from __future__ import annotations

import copyreg
import pickle
from pathlib import Path
from typing import Any


class _Vocabulary:
    """Stands in for the official class: it only holds what the file gives it."""


REBUILD = copyreg._reconstructor  # type: ignore[attr-defined]
PARTS = {
    ("copyreg", "_reconstructor"): REBUILD,
    ("copy_reg", "_reconstructor"): REBUILD,  # Python 2's names
    ("builtins", "object"): object,
    ("__builtin__", "object"): object,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary":
            return _Vocabulary
        if (module, name) in PARTS:
            return PARTS[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no vocabulary needs")


def read_pickled(path: Path) -> dict[str, Any]:
    """`word2idx`, `idx2word` and `idx` as SCAN's json has them; ValueError for anything else than a vocabulary."""
    try:
        with path.open("rb") as file:
            content = vars(_Reader(file, encoding="utf-8").load())
        return {**content, "idx2word": {str(i): word for i, word in content["idx2word"].items()}}
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the file is no pickled vocabulary ({error}).") from None
