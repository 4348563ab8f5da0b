"""Similarity models, one file a paper. A new one is a file and a line in `MODELS`; its keywords are [model] keys."""

from __future__ import annotations

from typing import Any

from aoq.models.base import MatchingModel
from aoq.models.bfan import BFAN
from aoq.models.dual_encoder import DualEncoder
from aoq.models.imram import IMRAM
from aoq.models.maxsim import MaxSim
from aoq.models.naaf import NAAF
from aoq.models.pfan import PFAN
from aoq.models.scan import SCAN
from aoq.models.sgraf import SAF, SGR
from aoq.models.vse_infinity import VSEInfinity
from aoq.models.vsepp import VSEpp
from aoq.models.vsrn import VSRN

MODELS: dict[str, type[MatchingModel]] = {
    "vsepp": VSEpp,
    "vsrn": VSRN,
    "scan": SCAN,
    "bfan": BFAN,
    "pfan": PFAN,
    "sgr": SGR,
    "saf": SAF,
    "naaf": NAAF,
    "imram": IMRAM,
    "maxsim": MaxSim,
    "vse_infinity": VSEInfinity,
    "dual_encoder": DualEncoder,
}


def build_model(name: str, *, feature_size: int, vocabulary_size: int, **options: Any) -> MatchingModel:
    """Build a fresh model of `MODELS`; `options` are its further keyword arguments."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; known models are {sorted(MODELS)}.")
    return MODELS[name](feature_size=feature_size, vocabulary_size=vocabulary_size, **options)
