"""Say before a teacher trains that its lists would be longer than there are negatives."""

from __future__ import annotations

import re

import numpy as np
from jaxtyping import Integer

from aoq.pipeline.config.tables import Mining
from aoq.pipeline.search.problem import Problem


def too_long(mining: Mining, images: int, captions: int, positives: Integer[np.ndarray, "*shape"]) -> str:
    """Say which option of [mining] these counts are too small for, and the most that it may be; "" if none is."""
    one, other = (np.broadcast_to(np.float32(0), (count, 1)) for count in (images, captions))
    try:
        Problem(one, other, positives, mining.h_captions, mining.h_images)
    except ValueError as error:  # which names its own fields
        return re.sub(r"\bh_(captions|images)\b", r"mining.h_\1", str(error))
    return ""
