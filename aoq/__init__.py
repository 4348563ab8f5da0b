"""Hard negatives for image–text retrieval, and for any two sets of items compared by their vectors.

    table = aoq.hard_negatives(images, captions, image_of, h=50)     # exact top-h lists, in memory
    table.i2t.negative_ids[17]                                       # the hardest captions for image 17
    loader = DataLoader(pairs, batch_sampler=aoq.BatchSampler(table, batch_size=128))
    loss = aoq.adap_off_quin(similarities, margin_online=0.2, margin_offline=0.0, alpha=0.3, beta=1.5).total

Each name is imported when it is first used, so `import aoq` loads neither torch nor other heavy packages.
`__init__.pyi` lists the names and the modules that define them.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
# A checkout holds the subpackages beside this folder; only mypy, griffe and pytest need the links that are in it.
if (_HERE / "pipeline").is_symlink() or not (_HERE / "pipeline").is_dir():
    __path__.insert(0, str(_HERE.parent))

_STUB = (_HERE / "__init__.pyi").read_text(encoding="utf-8")
_HOMES = {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)}

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
