"""Companions: offline similarities of their groups, and triples against the losses' definitions."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from aoq.pipeline.losses import LOSSES, plateau
from aoq.pipeline.losses.aoq import adap_off_quin
from aoq.pipeline.losses.companions import with_companions
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import Similarities, offline_similarities, positive_pairs
from tests.losses.definitions import World, check_value, logit_loss, margin_loss, numbers_of

TRIPLES = 4


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["offtri", "offquin", "adapoffquin", "infonce"])
def test_every_pair_of_a_triple_is_an_anchor(name, seed):
    """Pair k of a triple has caption k + 1 and image k - 1, mod 3, offline; the others of both are the derived pairs.

    What is a true pair after all is no negative, and other pairs of the triple are no online negatives.
    """
    count = 3 * TRIPLES
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(count, count, generator=generator, dtype=torch.float64).requires_grad_()
    rows = torch.arange(count)
    rows[5] = rows[0]  # two triples share an image
    rows[2 * TRIPLES + 2] = rows[TRIPLES + 2]  # in one the offline negatives correspond
    pairs = Similarities(matrix, positive_pairs(rows, mask_positives=True))
    lists, is_positive = torch.full((4, count), NO_NEGATIVE, dtype=torch.float64), pairs.is_positive.clone()
    for me in range(count):
        after, before = (me + TRIPLES) % count, (me - TRIPLES) % count
        for place, pair in enumerate(((me, after), (before, me), (before, after), (after, before))):
            if rows[pair[0]] != rows[pair[1]]:
                lists[place, me] = matrix[pair]
        is_positive[me, [after, before]] = True
    world = World(matrix, is_positive, lists[:2, :, None], lists[2:])
    numbers = numbers_of(name) or {"temperature": 0.1}
    expected = logit_loss(name, world, 0.1) if name == "infonce" else margin_loss(name, world)
    value = with_companions(LOSSES[name].function)(pairs, **numbers)
    check_value(value.total, expected, [matrix])
    offline, hardest = world.columns[..., 0], torch.stack(world.pairs.online)
    share = (offline > hardest).sum().item() / (offline > NO_NEGATIVE).sum().item()
    assert value.figures["offline_harder_share"].item() == pytest.approx(share)


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
