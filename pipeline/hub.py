"""Data sets of the Hugging Face hub, named `hf:OWNER/NAME[/CONFIG][@SPLIT]`."""

from __future__ import annotations

from functools import cache
from typing import Any

from aoq.pipeline.extras import import_extra

HUB = "hf:"


def is_of_hub(given: str) -> bool:
    return given.startswith(HUB)


@cache
def load_splits(given: str) -> dict[str, Any]:
    """Load the splits of a data set by name, or the named one; `datasets` downloads and caches them.

    Raises:
        ValueError: if it cannot be loaded, or has no such split.
        ImportError: names the extra that brings `datasets`.
    """
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    name, _, split = given.removeprefix(HUB).partition("@")
    owner, *rest = name.split("/", 2)
    try:
        splits = dict(library.load_dataset("/".join([owner, *rest[:1]]), *rest[1:]))
    except Exception as error:  # the hub's client raises errors of any kind
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"{name} of the Hugging Face hub cannot be loaded ({reason}); where the hub can be reached, save it with "
            "datasets' save_to_disk, and give that folder."
        ) from None
    if split and split not in splits:
        raise ValueError(f"{name} of the Hugging Face hub has no split {split!r}; its splits are {sorted(splits)}.")
    return {split: splits[split]} if split else splits
