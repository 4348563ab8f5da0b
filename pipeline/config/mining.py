"""The [mining] section: the table."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt

from aoq.pipeline.config.section import Section

EXACT = ("auto", "onepass", "faiss-flat")
"""The built-in exact searches, known by name: to ask the registry of searches loads torch."""
FACTORY = "faiss:"


def _is_approximate(search: str) -> bool:
    """Ask the registry of searches about a name that is not built in; it refuses an unknown one."""
    if search in EXACT:
        return False
    if search.startswith(FACTORY) and search != FACTORY:
        return True
    from aoq.pipeline.search.backends import choose_backend

    return not choose_backend(search).is_exact


def _known(search: str) -> str:
    _is_approximate(search)
    return search


class Mining(Section):
    """How many negatives the table keeps per image (captions) and per caption (images), and who searches."""

    h_captions: PositiveInt = 300
    h_images: PositiveInt = 60
    search: Annotated[str, AfterValidator(_known)] = "auto"
    """`aoq.pipeline.search.backends` describes them; the exact ones all find the same lists."""
    recall_floor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """What fraction of the true lists a search that is not exact must find, on sampled anchors."""

    @property
    def is_approximate(self) -> bool:
        return _is_approximate(self.search)
