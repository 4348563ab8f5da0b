"""Similarity models, one file a paper. A new model is one file and one line in `MODELS`."""

from __future__ import annotations

from typing import Any

from models.base import MatchingModel
from models.bfan import BFAN
from models.imram import IMRAM
from models.naaf import NAAF
from models.pfan import PFAN
from models.scan import SCAN
from models.sgraf import SAF, SGR
from models.vsepp import VSEpp
from models.vsrn import VSRN

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
}


def build_model(name: str, *, feature_size: int, vocabulary_size: int, **options: Any) -> MatchingModel:
    """A fresh model of `MODELS`; `options` are its further keyword arguments."""
    if name not in MODELS:
        raise ValueError(f"There is no model {name!r}; known models are {sorted(MODELS)}.")
    return MODELS[name](feature_size=feature_size, vocabulary_size=vocabulary_size, **options)
