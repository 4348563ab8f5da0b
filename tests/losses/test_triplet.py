"""Triplet losses against VSE++ and SGRAF's official ones, and against loops."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from aoq.pipeline.losses import plateau
from aoq.pipeline.losses.aoq import adap_off_quin, off_quin
from aoq.pipeline.losses.similarities import Similarities, positive_pairs
from aoq.pipeline.losses.triplet import online_triplet, sum_triplet

BY_NAME = {"max": online_triplet, "sum": sum_triplet}


def similarities(matrix, image_rows=None):
    rows = torch.arange(len(matrix)) if image_rows is None else image_rows
    return Similarities(matrix, positive_pairs(rows, mask_positives=image_rows is not None))


@pytest.mark.parametrize("case", ["triplet_vse_easy", "triplet_vse_mixed", "triplet_vse_random"])
def test_equals_vsepp(golden, case):
    case = golden(case)
    for variant in case.meta["config"]["variants"]:
        images, captions = (case[f"in/{key}"].clone().requires_grad_() for key in ("im", "s"))
        matrix = images @ captions.T
        if variant["measure"] == "order":  # minus the norm of how far each caption exceeds each image
            matrix = -((captions[None, :, :] - images[:, None, :]).clamp(min=0) ** 2).sum(dim=2).sqrt()
        loss = BY_NAME[variant["name"].split("_")[0]](similarities(matrix), margin=variant["margin"]).total
        case.check(f"out/{variant['name']}/loss", loss)
        loss.backward()
        case.check(f"out/{variant['name']}/grad/im", images.grad)
        case.check(f"out/{variant['name']}/grad/s", captions.grad)


def test_equals_sgraf_on_scores(golden):
    case = golden("triplet_scores")
    for key in (key for key in case.keys("out/") if key.endswith("/loss")):
        kind, margin = key.split("/")[1].split("_m")
        matrix = case["in/scores"].clone().requires_grad_()
        loss = BY_NAME[kind](similarities(matrix), margin=float(margin)).total
        case.check(key, loss)
        loss.backward()
        case.check(key.replace("/loss", "/grad/scores"), matrix.grad)


def test_other_captions_of_the_image_are_no_negatives():
    matrix = torch.tensor([[0.5, 0.9, 0.1], [0.9, 0.5, 0.2], [0.0, 0.1, 0.6]])
    rows = torch.tensor([4, 4, 9])
    for loss, chosen in ((online_triplet, max), (sum_triplet, sum)):
        expected = 0.0
        for anchor in range(3):
            for similarity in (matrix, matrix.T):
                others = [similarity[anchor, other].item() for other in range(3) if rows[other] != rows[anchor]]
                expected += chosen(max(0.0, 0.2 - matrix[anchor, anchor].item() + other) for other in others)
        assert loss(similarities(matrix, rows), margin=0.2).total.item() == pytest.approx(expected)


def test_plateaus():
    margins = {"margin_online": 0.2, "margin_offline": 0.0}
    assert plateau(partial(online_triplet, margin=0.2), 128) == pytest.approx(2 * 0.2 * 128)
    assert plateau(partial(sum_triplet, margin=0.2), 8) == pytest.approx(2 * 0.2 * 8 * 7)
    assert plateau(partial(off_quin, **margins), 128) == pytest.approx(2 * 0.2 * 128)
    adaptive = partial(adap_off_quin, **margins, alpha=0.3, beta=1.5)
    assert plateau(adaptive, 128) == pytest.approx(2 * 1.5 * 0.2 * 128)
