"""The losses as loops over anchors and their negatives, from the papers' sentences; autograd goes through them."""

import inspect
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aoq.pipeline.losses import LOSSES
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities, positive_pairs

SIZE = 7
ROWS = torch.tensor([0, 1, 1, 2, 3, 4, 5])  # a batch with two captions of one image
M1, M2, ALPHA, BETA = 0.2, 0.05, 0.3, 1.5
NUMBERS = {"margin": M1, "margin_online": M1, "margin_offline": M2, "alpha": ALPHA, "beta": BETA}


def numbers_of(name):
    """Those of the numbers above that the loss takes."""
    taken = inspect.signature(LOSSES[name].function).parameters
    return {number: value for number, value in NUMBERS.items() if number in taken}


@dataclass
class World:
    """Similarities in the batch, and with what is drawn; NO_NEGATIVE is none."""

    matrix: Tensor
    is_positive: Tensor
    columns: Tensor
    """For each image and each caption a column per group or, group by group, one for each anchor that draws."""
    derived: Tensor | tuple = ()
    probability: Tensor | None = None
    groups: int = 1

    @property
    def pairs(self):
        if (self.columns == NO_NEGATIVE).all():
            offline = None
        elif self.groups > 1:
            offline = OfflineSimilarities.of_columns(*self.columns, groups=self.groups)
        else:
            offline = OfflineSimilarities(*self.columns[..., 0], *self.derived, match_probability=self.probability)
        return Similarities(self.matrix, self.is_positive, offline)

    def drawn(self, side, a):
        """The negatives drawn for the anchor, and those for others."""
        there = {c: s for c, s in enumerate(self.columns[side, a]) if s > NO_NEGATIVE / 2}
        width = self.columns.shape[2]
        own = [c for c in there if width == self.groups or c % len(self.matrix) == a]
        return [there[c] for c in own], [s for c, s in there.items() if c not in own]

    def certainty(self, side, a):
        return 1.0 if self.probability is None else 1 - self.probability[side, a].item()


def random_world(seed, drawn):
    """None drawn ("batch"), one an anchor ("table", "soft") or several ("own", "shared"), some missing; and leaves."""
    generator = torch.Generator().manual_seed(seed)
    groups, width = {"own": (2, 2), "shared": (2, 2 * SIZE)}.get(drawn, (1, 1))
    leaves = [
        (torch.rand(shape, generator=generator, dtype=torch.float64) * 1.4 - 0.4).requires_grad_()
        for shape in ((SIZE, SIZE), (2, SIZE, width), (2, SIZE))
    ]
    missing = torch.rand(2, SIZE, width, generator=generator) < (1.0 if drawn == "batch" else 0.2)
    missing[0, 2] = True
    columns = leaves[1].masked_fill(missing, NO_NEGATIVE)
    guided = torch.rand(SIZE, SIZE, generator=generator) < 0.2
    probability = torch.rand(2, SIZE, generator=generator, dtype=torch.float64).round(decimals=1)  # some are 0 or 1
    is_positive = positive_pairs(ROWS, mask_positives=True) | guided
    return World(leaves[0], is_positive, columns, leaves[2], probability if drawn == "soft" else None, groups), leaves


def check_value(found, expected, leaves):
    torch.testing.assert_close(found, expected)
    ours, theirs = (
        torch.autograd.grad(one, leaves, retain_graph=True, materialize_grads=True) for one in (found, expected)
    )
    torch.testing.assert_close(ours, theirs)


def margin_loss(name, world):
    """AOQ's eqs. (1) to (5) and their variants, pair by pair."""
    matrix, is_positive, total = world.matrix, world.is_positive, 0
    power, size = 2 if name == "squaredoffquin" else 1, len(matrix)

    def hinge(margin, a, negative):
        return torch.clamp(margin - matrix[a, a] + negative, min=0) ** power

    for a in range(size):
        captions = [b for b in range(size) if not is_positive[a, b]]
        images = [b for b in range(size) if not is_positive[b, a]]
        for side, negatives in enumerate((matrix[a, captions], matrix[images, a])):
            own, others = world.drawn(side, a)
            negatives = [*negatives, *others]
            for online in negatives if name == "sum" else [max(negatives)]:
                weight = float(name != "onlyoffline")
                if name.startswith("adap"):
                    compared = [matrix[a, a]] if name == "adapposquin" else own
                    weight = BETA - (max(compared) - online) / ALPHA if compared else BETA
                total = total + weight * hinge(M1, a, online)
            if own and LOSSES[name].offline != "none":
                total = total + hinge(M2 * world.certainty(side, a), a, max(own))
        pairs = [similarities[a] for similarities in world.derived] if LOSSES[name].offline == "quintuplet" else []
        if name == "onlinequin":
            i, t = max(images, key=lambda b: matrix[b, a]), max(captions, key=lambda b: matrix[a, b])
            pairs = [matrix[pair] for pair in ((i, t), (t, i)) if not is_positive[pair]]
        total = total + sum(hinge(M2, a, negative) for negative in pairs)
    return total


def clipped_weight(own, s):
    """The weight of eq. (5) for a negative of the batch, 0 or more; 1 without an offline negative."""
    return max(0.0, BETA - (max(own).item() - s.item()) / ALPHA) if own else 1.0


def logit_loss(name, world, temperature, *, hardness_weight=0.0, bias=0.0):
    """InfoNCE: -log of the positive's share, column by column; weights are plain numbers. And SigLIP, pair by pair."""
    matrix, total = world.matrix, 0

    def cost(s, match):
        return torch.log(1 + torch.exp(-match * (s / temperature + bias)))

    for side, (similarity, positive) in enumerate(((matrix, world.is_positive), (matrix.T, world.is_positive.T))):
        for a in range(len(matrix)):
            (own, others), certainty = world.drawn(side, a), world.certainty(side, a)
            inside = [similarity[a, b] for b in range(len(matrix)) if not positive[a, b]]
            if name == "sigmoid":
                total = total + sum(certainty * cost(s, -1) for s in own) + sum(cost(s, -1) for s in others)
                if side == 0:  # pairs of the batch count once
                    total = total + cost(matrix[a, a], 1) + sum(cost(s, -1) for s in inside)
                continue
            positive_term, weighted = torch.exp(matrix[a, a] / temperature), [(certainty, s) for s in own]
            weighted += [(clipped_weight(own, s) if name == "adapinfonce" else 1.0, s) for s in (*inside, *others)]
            below = sum(w * math.exp(hardness_weight * s.item()) * torch.exp(s / temperature) for w, s in weighted)
            total = total - torch.log(positive_term / (positive_term + below))
    return total
