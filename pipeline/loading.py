"""Load published weights from a hub or a folder; a failure is one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_REASON = 200


@contextmanager
def loading(name: str, model: str, local: str = "the path of a folder with the weights") -> Iterator[None]:
    """Turn a failure inside into one line: the encoder that could not be loaded, and the remedy.

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
            else f"check the name; where the hub is not reached, give {local}"
        )
        raise ValueError(f"{name} cannot be loaded ({reason}); {remedy}.") from None
