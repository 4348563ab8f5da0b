"""A [mining] section that asks too much is refused before the teacher trains."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.config.tables import Mining
from aoq.pipeline.mining.depths import too_long

TEACHER = 'first_round = {epochs = 1, batch_size = 16, loss.name = "online"}\nmining = {h_captions = %d, h_images = 4}'


@pytest.mark.parametrize("h", [195, 196])
def test_lists_that_are_too_long_are_announced_when_the_first_round_begins(make, caplog, h):
    """Each of 40 images has 5 of 200 captions, so 195 are negatives."""
    make("deep", "dataset", "first_round", teacher=TEACHER % h)
    warned = [record.message for record in caplog.records if "cannot be mined" in record.message]
    assert len(warned) == (h > 195)
    assert all(said.endswith("got 200; lower mining.h_captions to at most 195.") for said in warned)


def test_the_other_direction_is_named():
    images, captions = 40, 200
    positives = np.repeat(np.arange(images, dtype=np.int32), 5)
    assert too_long(Mining(h_captions=9, h_images=39), images, captions, positives) == ""
    said = too_long(Mining(h_captions=9, h_images=40), images, captions, positives)
    assert said.endswith("got 40; lower mining.h_images to at most 39.")
