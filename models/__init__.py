"""Similarity models, one file per paper. A new one is a file and a line in `MODELS`; its keywords are [model] keys."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ == "models":
    raise ImportError("import aoq.models, not models: a second copy would define every class twice.")

if TYPE_CHECKING:
    from aoq.models.base import MatchingModel


class Registry(UserDict[str, Any]):
    """Models by name, as classes or as `module.Class` in this package; a file is imported when its model is named."""

    def place(self, name: str) -> tuple[str, str]:
        """Return the module and the name of a model's class, without importing it."""
        entry = self.data[name]
        if isinstance(entry, type):
            return entry.__module__, entry.__name__
        module, _, kind = entry.rpartition(".")
        return f"{__name__}.{module}", kind

    def __getitem__(self, name: str) -> type[MatchingModel]:
        module, kind = self.place(name)
        return getattr(import_module(module), kind)


MODELS = Registry(
    vsepp="vsepp.VSEpp",
    vsrn="vsrn.VSRN",
    scan="scan.SCAN",
    pfan="pfan.PFAN",
    bfan="bfan.BFAN",
    sgr="sgraf.SGR",
    saf="sgraf.SAF",
    naaf="naaf.NAAF",
    imram="imram.IMRAM",
    maxsim="maxsim.MaxSim",
    vse_infinity="vse_infinity.VSEInfinity",
    dual_encoder="dual_encoder.DualEncoder",
)


def build_model(name: str, *, feature_size: int, vocabulary_size: int, **options: Any) -> MatchingModel:
    """Build a fresh model of `MODELS`; `options` are its further keyword arguments."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; known models are {sorted(MODELS)}.")
    return MODELS[name](feature_size=feature_size, vocabulary_size=vocabulary_size, **options)
