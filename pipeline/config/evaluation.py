"""The [evaluation] section."""

from __future__ import annotations

from pydantic import PositiveInt

from aoq.pipeline.config.section import Section


class Evaluation(Section):
    split: str = "dev"
    folds: PositiveInt = 1
    """Consecutive folds of the images, averaged: 5 gives COCO's 1K protocol on `testall`."""
