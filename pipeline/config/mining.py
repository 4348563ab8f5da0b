"""The [mining] section: the table."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from aoq.pipeline.config.section import Section


class Mining(Section):
    """How many negatives the table keeps per image (captions) and per caption (images), and who searches."""

    h_captions: PositiveInt = 300
    h_images: PositiveInt = 60
    search: Annotated[str, Field(pattern="^(auto|onepass|faiss-flat|faiss:.+)$")] = "auto"
    """`aoq.pipeline.search.backends` describes them; the exact ones all find the same lists."""
    recall_floor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """What share of the true lists a search that is not exact must find, on sampled anchors."""

    @property
    def is_approximate(self) -> bool:
        return self.search.startswith("faiss:")
