"""Hard negatives for image–text retrieval, and for any two sets of items compared by their vectors.

    table = aoq.hard_negatives(images, captions, image_of, h=50)     # exact top-h lists, in memory
    table.i2t.negative_ids[17]                                       # the hardest captions for image 17
    loader = DataLoader(pairs, batch_sampler=aoq.BatchSampler(table, batch_size=128))
    loss = aoq.adap_off_quin(similarities, margin_online=0.2, margin_offline=0.0, alpha=0.3, beta=1.5).total

Each name is imported when it is first used, so `import aoq` loads neither torch nor other heavy packages.
`__init__.pyi` lists the names and the modules that define them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
# A checkout holds the subpackages beside this folder; only mypy, griffe and pytest need the links in it.
if (_HERE / "pipeline").is_symlink() or not (_HERE / "pipeline").is_dir():
    __path__.insert(0, str(_HERE.parent))


@cache
def _homes() -> dict[str, str]:
    """Read the public names and their modules from the stub, when the first name is used."""
    from ast import ImportFrom, parse

    imports = (node for node in parse((_HERE / "__init__.pyi").read_bytes()).body if isinstance(node, ImportFrom))
    return {node.names[0].name: str(node.module) for node in imports}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("aoq")
    if name == "__all__":
        return sorted(_homes())
    if name not in _homes():
        raise AttributeError(f"aoq has no {name!r}; its public names are {', '.join(sorted(_homes()))}")
    return getattr(import_module(_homes()[name]), name)


def __dir__() -> list[str]:
    return [*_homes(), "__version__"]
