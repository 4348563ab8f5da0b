"""Golden cases: numbers of the official implementations, read from $AOQ_GOLDEN_DIR (default tests/golden)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

GOLDEN = Path(os.environ.get("AOQ_GOLDEN_DIR", Path(__file__).parent / "golden"))


@dataclass(frozen=True)
class GoldenCase:
    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def weights(self, part: str) -> dict[str, Tensor]:
        """The official state dict of one part, e.g. `img_enc`; empty if the case has none."""
        prefix = f"weights/{part}."
        return {key[len(prefix) :]: value for key, value in self.tensors.items() if key.startswith(prefix)}

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.tensors if key.startswith(prefix))

    def check(self, key: str, actual: Tensor | np.ndarray | float) -> None:
        """|actual - golden| <= atol + rtol * max|golden|, with the case's own tolerance; integers are equal."""
        expected = self.tensors[key]
        actual = torch.as_tensor(actual)
        assert actual.shape == expected.shape, f"{key}: {tuple(actual.shape)} is not {tuple(expected.shape)}"
        if not expected.is_floating_point():
            assert torch.equal(actual.to(expected.dtype), expected), key
            return
        tolerance = self.meta["tolerance"]
        for prefix, special in tolerance.get("per_prefix", {}).items():
            if key.startswith(prefix):
                tolerance = special
        bound = tolerance["atol"] + tolerance["rtol"] * float(expected.abs().max()) if expected.numel() else 0.0
        error = float((actual.detach().double() - expected.double()).abs().max()) if expected.numel() else 0.0
        assert error <= bound, f"{key}: off by {error:.3g}, allowed {bound:.3g}"


@pytest.fixture
def golden() -> Callable[[str], GoldenCase]:
    def load(name: str) -> GoldenCase:
        return GoldenCase(
            load_file(GOLDEN / f"{name}.safetensors"),
            json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8")),
        )

    return load


@pytest.fixture
def golden_file() -> Callable[[str], Path]:
    return lambda name: GOLDEN / name
