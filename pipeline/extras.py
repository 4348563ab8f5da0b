"""Packages that only an extra installs, and weights that only a hub or a folder holds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONGEST_REASON = 200


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import the module, or raise an ImportError that says who needs it and how to install it.

    >>> import_extra("colorsys", "report", "a report").__name__
    'colorsys'
    >>> import_extra("no_such_package.part", "browse", "aoq browse")
    Traceback (most recent call last):
    ImportError: aoq browse needs no_such_package (No module named 'no_such_package'): `pip install "aoq[browse]"`.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f'{purpose} needs {package} ({error}): `pip install "aoq[{extra}]"`.') from error


@contextmanager
def loading(name: str, model: str, local: str = "the path of a folder with the weights") -> Iterator[None]:
    """Turn any failure to load published weights into one line that names the encoder and the remedy.

    Raises:
        ValueError: of one line.
    """
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # libraries and hubs raise errors of any kind
        reason = " ".join(str(error).split())[:LONGEST_REASON].rstrip(".") or type(error).__name__
        remedy = (
            "give a folder that its library saved"
            if Path(model).exists()
            else f"check the name; if the hub cannot be reached, give {local}"
        )
        raise ValueError(f"{name} cannot be loaded ({reason}); {remedy}.") from None
