"""Packages that only an extra installs, what they load from hubs, and functions compiled by numba."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

HUB = "hf:"
logger = logging.getLogger(__name__)


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import the module, or raise an ImportError that says what needs it and how to install it.

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
    """Turn any failure to load published weights or data into a ValueError of one line with the remedy."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # libraries and hubs raise errors of any kind
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        remedy = f"check the name; if the hub cannot be reached, give {local}"
        if Path(model).exists():
            remedy = "give a folder that its library saved"
        raise ValueError(f"{name} cannot be loaded ({reason}); {remedy}.") from None


def is_hub_name(name: str) -> bool:
    return name.startswith(HUB)


@cache
def load_splits(address: str) -> dict[str, Any]:
    """Load all splits of hf:OWNER/NAME, or the one after @; `datasets` downloads and caches them."""
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    name, _, split = address.removeprefix(HUB).partition("@")
    owner, *rest = name.split("/", 2)
    with loading(f"{name} of the Hugging Face hub", name, "the folder of datasets' save_to_disk"):
        splits = dict(library.load_dataset("/".join([owner, *rest[:1]]), *rest[1:]))
    if split and split not in splits:
        raise ValueError(f"{name} of the Hugging Face hub has no split {split!r}; its splits are {sorted(splits)}.")
    return {split: splits[split]} if split else splits


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function by numba; keep the code on disk if a folder is writable."""
    from numba import njit

    def with_cache(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor a home is writable
            _warn_of_compiling()
            return njit(nogil=True, **options)(function)

    return with_cache


@cache
def _warn_of_compiling() -> None:
    logger.warning(
        "no folder for compiled code is writable, so each process compiles it; set NUMBA_CACHE_DIR to a writable folder"
    )
