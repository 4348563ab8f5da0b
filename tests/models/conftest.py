"""Small random worlds, and every registered model with random weights and statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from models import MODELS, build_model
from models.base import Captions, Images, MatchingModel

VOCABULARY, FEATURES = 30, 5
SIZES = {"embedding_size": 8, "word_size": 6}
# Further options worth the contract tests; a new model is tested with its defaults.
OPTIONS: dict[str, list[dict[str, object]]] = {
    "vsepp": [{}, {"bidirectional": True}],
    "vsrn": [
        {"variant": "coco", "caption_hidden_size": 7, "caption_word_size": 6, "caption_bidirectional": True},
        {"variant": "f30k", "normalise_axis": "features", "caption_hidden_size": 7, "caption_word_size": 6},
    ],
    "scan": [
        {"direction": direction, "aggregation": aggregation}
        for direction in ("t2i", "i2t")
        for aggregation in ("Mean", "LogSumExp")
    ],
}
CASES = [(name, options) for name in MODELS for options in OPTIONS.get(name, [{}])]


def randomise(model: MatchingModel, generator: torch.Generator) -> None:
    """All weights and statistics non-trivial: fresh ones leave VSRN's graph layers out."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.6, 0.6, generator=generator)
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                low, high = (0.5, 1.5) if name.endswith("var") else (-0.5, 0.5)
                buffer.uniform_(low, high, generator=generator)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Build:
    """A model of one case, as often as a test needs a fresh one."""

    name: str
    options: dict[str, object]

    def __call__(self, seed: int = 0) -> MatchingModel:
        model = build_model(self.name, feature_size=FEATURES, vocabulary_size=VOCABULARY, **SIZES, **self.options)
        randomise(model, torch.Generator().manual_seed(seed))
        return model.eval()


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def build(request: pytest.FixtureRequest) -> Build:
    return Build(*request.param)


@pytest.fixture
def world(generator: torch.Generator) -> Callable[..., tuple[Images, Captions]]:
    """(images, captions): region features, and 0-padded word ids in mixed order of lengths."""

    def make(
        images: int = 5, lengths: tuple[int, ...] = (4, 1, 7, 2, 4), regions: int = 6, masked: bool = False
    ) -> tuple[Images, Captions]:
        features = torch.rand(images, regions, FEATURES, generator=generator)
        mask = torch.rand(images, regions, generator=generator) < 0.6 if masked else None
        if mask is not None:
            mask[torch.arange(images), torch.arange(images) % regions] = True
        words = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
        words[torch.arange(max(lengths)) >= torch.tensor(lengths).unsqueeze(1)] = 0
        return Images(features, mask), Captions(words, torch.tensor(lengths))

    return make
