"""PFAN's positions against their definition: blocks of the grid by exact areas, and loops over them."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from aoq.models.base import Images
from aoq.models.pfan import grid_blocks
from tests.models.conftest import Build


def defined_blocks(box, grid, most):
    """The blocks of largest overlap, the lower index first where overlaps are equal, and their shares; exactly."""
    x1, y1, x2, y2 = box
    areas = []
    for x in range(grid):
        for y in range(grid):
            wide = min(x2, Fraction(x + 1, grid)) - max(x1, Fraction(x, grid))
            high = min(y2, Fraction(y + 1, grid)) - max(y1, Fraction(y, grid))
            if wide > 0 and high > 0:
                areas.append((-wide * high, x * grid + y))
    kept = sorted(areas)[:most]
    total = sum(area for area, _ in kept)
    padding = most - len(kept)
    return [index for _, index in kept] + [grid * grid] * padding, [area / total for area, _ in kept] + [0] * padding


def check_blocks(box, *, grid=16, most=15):
    indices, shares = grid_blocks(torch.tensor([float(number) for number in box]), grid=grid, most=most)
    expected_indices, expected_shares = defined_blocks(box, grid, most)
    assert indices.tolist() == expected_indices
    assert shares.tolist() == pytest.approx([float(share) for share in expected_shares], abs=1e-5)


tenths = st.tuples(st.integers(0, 160), st.integers(0, 160)).map(sorted)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(across=tenths, down=tenths, grid=st.sampled_from([16, 4, 1]))
def test_blocks_are_those_of_largest_overlap(across, down, grid):
    """Edges at tenths of a block: two overlaps are alike, or differ by a hundredth of a block."""
    left, right, top, bottom = (Fraction(number * grid // 16, 10 * grid) for number in (*across, *down))
    check_blocks([left, top, right, bottom], grid=grid, most=min(15, grid * grid))


def test_blocks_of_special_boxes():
    """The whole image, whole blocks, a row at the border, no width, a point, and specks within one block."""
    for box in ("0 0 1 1", "1/16 2/16 3/16 5/16", "0 0 1 1/16", "3/4 0 1 1", "1/3 1/3 1/3 2/3", "0 0 0 0"):
        check_blocks([Fraction(number) for number in box.split()])
    for size in (800, 80_000):
        low = Fraction(size // 2 + size // 800, size), Fraction(3 * size // 4 + size // 800, size)
        check_blocks([*low, *(edge + Fraction(1, size) for edge in low)])


def test_a_box_beyond_the_image_counts_inside_it():
    beyond, inside = torch.tensor([[-0.5, 0.2, 0.4, 1.7], [0.0, 0.2, 0.4, 1.0]])
    for one, other in zip(grid_blocks(beyond), grid_blocks(inside), strict=True):
        assert torch.equal(one, other)


def boxes_of(images, regions):
    """Small ones and large ones, one without width, one over everything."""
    generator = torch.Generator().manual_seed(1)
    low = torch.rand(images, regions, 2, generator=generator) * 0.6
    size = (
        torch.rand(images, regions, 2, generator=generator) * torch.tensor([0.1, 0.9])[torch.arange(regions) % 2, None]
    )
    boxes = torch.cat([low, low + size], dim=2).clamp_max(1).double()
    boxes[0, 0, 2] = boxes[0, 0, 0]
    boxes[-1, -1] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    return boxes


@pytest.mark.parametrize("mask_padding", [False, True])
def test_position_is_its_definition(mask_padding):
    """softmax(share * softmax(tanh(<q, e_block>))) over the blocks, and over unused places unless these are masked."""
    model = Build("pfan", {"position_size": 3, "grid": 4, "mask_padding": mask_padding})().double()
    features = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(2)).double()
    boxes = boxes_of(2, 3)
    actual = model.position(features, Images(features, None, boxes))
    used = []
    for i in range(2):
        for r in range(3):
            query = model.position_query.weight @ features[i, r] + model.position_query.bias
            indices, shares = grid_blocks(boxes[i, r], grid=4, most=15)
            places = [(k, share) for k, share in zip(indices, shares, strict=True) if k < 16 or not mask_padding]
            places = places or [(torch.tensor(16), torch.tensor(0.0))]
            embeddings = [model.block_embedding.weight[k] for k, _ in places]
            relevance = torch.stack([(query @ e).tanh().exp() for e in embeddings])
            relevance = relevance / relevance.sum()
            weights = torch.stack([(share * x).exp() for (_, share), x in zip(places, relevance, strict=True)])
            position = sum(w * e for w, e in zip(weights / weights.sum(), embeddings, strict=True))
            assert_close(actual[i, r], position)
            used.append(int((indices < 16).sum()))
    assert min(used) == 0
    assert 0 < sorted(used)[1] < max(used) == 15
