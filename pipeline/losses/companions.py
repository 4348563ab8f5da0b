"""Companions as anchors: a batch of triples of true pairs that holds its own offline negatives.

A drawn pair (i, t) with its offline negatives and their companions makes three true pairs:

    P0 = (i, t)    P1 = (i_own, t_off)    P2 = (i_off, t_own)

In the 3 x 3 similarities of their images and captions, the terms of AOQ eq. (5) for P0 have fixed places: S(i,t_off)
in row 0, column 1; S(i_off,t) in row 2, column 0; S(i_off,t_off) and S(i_own,t_own) in the two places that share
neither row nor column with P0. Turning the triple, P0 to P1 to P2 to P0, moves them onto those of P1 and P2, and
none of them is a true pair. So each of the three is an anchor in turn:

    image k's offline caption is caption k+1, caption k's offline image is image k-1   (mod 3)
    pair k's derived pairs are (image k-1, caption k+1) and (image k+1, caption k-1)

and the loss is that of eq. (3), (4) or (5) summed over all B pairs of B/3 triples. Online negatives come from other
triples; the anchor's own triple holds its offline negatives, which have the offline margin and which the adaptive
weight compares with. (In the whole batch the hardest negative would almost always be the mined one, at the online
margin, and the weight never below beta.) Unlike in the paper, S(i,t_own) and S(i_own,t) are derived pairs too; no
teacher ranked them, and no screen judged them.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import LossFunction, OfflineSimilarities, Similarities


def with_companions(loss: LossFunction) -> LossFunction:
    """Turn a loss into one on batches of triples: all P0, then all P1, then all P2, in the order of the drawn pairs."""
    return lambda pairs, **numbers: loss(turn_triples(pairs), **numbers)


def turn_triples(pairs: Similarities) -> Similarities:
    """Move every pair's offline similarities out of the batch's matrix; online negatives exclude them.

    If i_own is i_off, P1 and P2 are pairs of one image, and the pairs between them are not negatives.
    """
    size, matrix = len(pairs.matrix), pairs.matrix
    if size % 3:
        raise ValueError(f"{size} pairs do not form triples; give a multiple of 3.")
    own = torch.arange(size, device=matrix.device)
    after, before = (own + size // 3) % size, (own - size // 3) % size
    similarities = [
        matrix[images, captions].masked_fill(pairs.is_positive[images, captions], NO_NEGATIVE)
        for images, captions in ((own, after), (before, own), (before, after), (after, before))
    ]
    triple = own % (size // 3)
    is_positive = pairs.is_positive | (triple[:, None] == triple[None, :])
    return replace(pairs, is_positive=is_positive, offline=OfflineSimilarities(*similarities))
