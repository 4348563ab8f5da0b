"""Photographs of a few pixels, tables of them, and an extractor that takes no time."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from aoq.pipeline.engine import Engine
from aoq.pipeline.prepare import extractors
from aoq.pipeline.prepare.extractors.extractor import Extractor
from aoq.pipeline.prepare.extractors.preprocessing import Preprocessing
from aoq.pipeline.prepare.prepare import prepare
from aoq.pipeline.prepare.request import Request

CPU = Engine("cpu", threads=1)


def picture(seed: int, width: int = 12, height: int = 8) -> Image.Image:
    """Blocks of colours."""
    blocks = np.random.default_rng(seed).integers(0, 256, (2, 3, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def write_csv(path: Path, columns: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


@pytest.fixture
def photos(tmp_path):
    """Twenty photographs, four of them for dev, two captions each."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = []
    for n in range(20):
        (folder / f"{n:02}.png").write_bytes(encoded(picture(n)))
        for text in ("a photograph", "seen from afar"):
            rows.append([f"{n:02}.png", f"{text} of {n}", "val" if n % 5 == 0 else "train"])
    return write_csv(folder / "photos.csv", ["image", "caption", "split"], rows)


class Means(nn.Module):
    """The mean colour of each quarter, times weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 2) * self.weights[:, None, None]


@pytest.fixture(autouse=True)
def means(monkeypatch):
    """The extractor `means:any`; `calls` counts images."""
    calls = []

    def opened(name: str, tokens: str) -> Extractor:
        module, seen = Means(), Preprocessing(4, 4, (4, 4), (0.0,) * 3, (1.0,) * 3, "nearest")

        def encode(images):
            calls.append(len(images))
            found = module(images)
            return found.mean(dim=(2, 3)) if tokens == "pooled" else found

        return Extractor.build("means", seen, module, encode)

    monkeypatch.setitem(extractors.LIBRARIES, "means", opened)
    return calls


@pytest.fixture
def prepared(tmp_path):
    """Prepare a source in one process, a folder for each."""

    def run(source: Path | str, name: str = "made", **options) -> Path:
        request = Request(str(source), **{"extractor": "means:any", **options})
        folder = tmp_path / name
        prepare(request, folder, tmp_path / f"{name}.work", CPU, batch=3, report=lambda *_: None)
        return folder

    return run
