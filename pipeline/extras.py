"""Import packages that only an extra installs, where they are used."""

from __future__ import annotations

import importlib
from typing import Any


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
