"""Suspicion that a listed negative is a false one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, UInt32

from aoq.pipeline.config.screen import CERTAIN
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.screens.entries import entry_blocks
from aoq.pipeline.tables.screens.knowledge import Context
from aoq.pipeline.tables.screens.posterior import match_posterior
from aoq.pipeline.tables.screens.rules import bit

Suspicion = Float32[np.ndarray, "anchors h"]


def suspicion_of(context: Context, direction: Direction, flags: UInt32[np.ndarray, "anchors h"]) -> Suspicion:
    """Suspicion from 0 to 1; 0 for padding. The first of these that applies:

    1 if people judged that the pair matches, or it is the same text; the judge's probability if it has one; the
    fraction of the set rules that cast suspicion and that the pair meets, or its posterior if that is larger.
    """
    suspicion, screen, table = _share_of_rules(context, flags), context.screen, context.table
    posterior = None
    if screen.match_prior is not None and table[direction].h:
        posterior = match_posterior(table, direction, screen.match_prior)
    for entries in entry_blocks(direction, table[direction]):
        places = entries.anchors, entries.places
        if posterior is not None:
            suspicion[places] = np.maximum(suspicion[places], posterior(entries.scores))
        if screen.judgements is not None:
            judged = context.judged(entries)
            suspicion[places] = np.where(np.isnan(judged), suspicion[places], judged)
    suspicion[flags & sum(bit(rule) for rule in CERTAIN) > 0] = 1
    return suspicion


def _share_of_rules(context: Context, flags: UInt32[np.ndarray, "anchors h"]) -> Suspicion:
    suspecting = context.screen.suspecting
    met = np.zeros(flags.shape, np.float32)
    for rule in suspecting:
        met += flags & bit(rule) > 0
    return met / np.float32(max(1, len(suspecting)))
