"""Companions: offline similarities of their groups, and triples against eqs. (3) to (5) written out pair by pair."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from aoq.pipeline.losses import LOSSES, plateau
from aoq.pipeline.losses.aoq import adap_off_quin
from aoq.pipeline.losses.companions import with_companions
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import Similarities, offline_similarities, positive_pairs

TRIPLES = 4
M1, M2, ALPHA, BETA = 0.2, 0.05, 0.3, 1.5


def clamp(x):
    return torch.clamp(x, min=0)


def definition(matrix, rows, name):
    """Pair k of a triple has caption k + 1 and image k - 1, mod 3, offline; the others of both are the derived pairs.

    `rows` are the images that the pairs are of; what is a true pair after all is no negative.
    """
    total = 0
    for me in range(3 * TRIPLES):
        after, before = (me + TRIPLES) % (3 * TRIPLES), (me - TRIPLES) % (3 * TRIPLES)
        others = [b for b in range(3 * TRIPLES) if b % TRIPLES != me % TRIPLES and rows[b] != rows[me]]
        for offline, online in (
            ((me, after), max((matrix[me, b] for b in others), key=Tensor.item)),
            ((before, me), max((matrix[b, me] for b in others), key=Tensor.item)),
        ):
            weight = BETA if name == "adapoffquin" else 1
            if rows[offline[0]] != rows[offline[1]]:
                weight = BETA - (matrix[offline] - online) / ALPHA if name == "adapoffquin" else 1
                total = total + clamp(M2 - matrix[me, me] + matrix[offline])
            total = total + weight * clamp(M1 - matrix[me, me] + online)
        for pair in ((before, after), (after, before)) if name != "offtri" else ():
            if rows[pair[0]] != rows[pair[1]]:
                total = total + clamp(M2 - matrix[me, me] + matrix[pair])
    return total


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["offtri", "offquin", "adapoffquin"])
def test_every_pair_of_a_triple_is_an_anchor(name, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(3 * TRIPLES, 3 * TRIPLES, generator=generator, dtype=torch.float64)
    rows = torch.arange(3 * TRIPLES)
    rows[5] = rows[0]  # two triples share an image
    rows[2 * TRIPLES + 2] = rows[TRIPLES + 2]  # in one the offline negatives correspond
    slow, fast = values.clone().requires_grad_(), values.clone().requires_grad_()
    expected = definition(slow, rows, name)
    expected.backward()
    pairs = Similarities(fast, positive_pairs(rows, mask_positives=True))
    numbers = {"alpha": ALPHA, "beta": BETA} if name == "adapoffquin" else {}
    loss = with_companions(LOSSES[name].function)(pairs, margin_online=M1, margin_offline=M2, **numbers).total
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(fast.grad, slow.grad)


def test_a_collapsed_model_costs_what_a_batch_of_anchors_costs():
    numbers = {"margin_online": 0.2, "margin_offline": 0.0, "alpha": 0.3, "beta": 1.5}
    loss = partial(with_companions(adap_off_quin), **numbers)
    assert plateau(loss, 12) == pytest.approx(2 * 1.5 * 0.2 * 12)
    with pytest.raises(ValueError, match="10 pairs do not form triples"):
        plateau(loss, 10)


def test_derived_pairs_that_are_true_pairs_are_no_negatives():
    images, captions = F.normalize(torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)), dim=2)
    offline = offline_similarities(images, captions, torch.tensor([0, 1, 5, 6, 5, 7]))
    assert (offline.offline_pair == NO_NEGATIVE).tolist() == [True, False]
    assert (offline.companion_pair == NO_NEGATIVE).tolist() == [True, False]
    with pytest.raises(ValueError, match="4 images and 4 captions are not 3 groups of pairs"):
        offline_similarities(images[:4], captions[:4])
    found = offline_similarities(images, captions, companions=False)
    torch.testing.assert_close(found.image_to_caption, (images[:3] * captions[3:]).sum(1))
    torch.testing.assert_close(found.caption_to_image, (images[3:] * captions[:3]).sum(1))
    assert found.offline_pair is found.companion_pair is None
