"""Hard negatives for image–text retrieval, and for any two sides that are compared by vectors.

    table = aoq.hard_negatives(images, captions, image_of, h=50)     # exact top-h lists, in memory
    table.i2t.negative_ids[17]                                       # the captions hardest for image 17
    loader = DataLoader(pairs, batch_sampler=aoq.BatchSampler(table, batch_size=128))
    loss = aoq.adap_off_quin(similarities, margin_online=0.2, margin_offline=0.0, alpha=0.3, beta=1.5).total

The public names stand in `__init__.pyi`, each with its home; a home is imported when one of its names is first used,
so `import aoq` loads neither torch nor anything else that is heavy.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

_HOMES = {
    name.asname or name.name: statement.module or ""
    for statement in ast.parse((Path(__file__).parent / "__init__.pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for name in statement.names
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("aoq")
    if name not in _HOMES:
        raise AttributeError(f"aoq has no {name!r}; its public names are {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
