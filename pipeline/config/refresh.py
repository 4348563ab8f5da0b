"""The [refresh] section: tables that are searched anew with the student, each for another student."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from aoq.pipeline.config.section import Section


class Refresh(Section):
    """A student of embeddings searches the whole training set; one of fragments orders the lists of the first table."""

    rounds: Annotated[int, Field(ge=0)] = 1
    """So often: the second round's student searches, and another is trained from scratch on what it finds."""
    h_captions: PositiveInt = 300
    h_images: PositiveInt = 60
    drifted_below: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Search only for anchors whose lists drifted: of the better half of such a list less than this share is still in
    the better half by the student's scores. The others keep their lists, with these scores. By default all search."""
