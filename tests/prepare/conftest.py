"""Photographs of a few pixels, tables of them, and an extractor that takes no time."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.config.dataset import Source
from aoq.pipeline.engine import Engine
from aoq.pipeline.prepare import extractors
from aoq.pipeline.prepare.extractor import GridExtractor
from aoq.pipeline.prepare.prepare import prepare_folder

CPU = Engine("cpu", threads=1)
TINY = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
SEEN = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "resample": 3}
WORDS = ["<pad>", "<s>", "</s>", "a", "photograph", "of", "seen", "from", "afar", *map(str, range(20))]


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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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

    def opened(name: str, tokens: str) -> GridExtractor:
        module, seen = Means(), Preprocessing(4, 4, (4, 4), (0.0,) * 3, (1.0,) * 3, "nearest")

        def encode(images):
            calls.append(len(images))
            found = module(images)
            return found.mean(dim=(2, 3)) if tokens == "pooled" else found

        return GridExtractor.build("means", seen, module, encode)

    monkeypatch.setitem(extractors.LIBRARIES, "means", opened)
    return calls


@pytest.fixture
def prepared(tmp_path):
    """Prepare a source, by default in one process, a folder for each."""

    def run(source, name="made", *, engine=CPU, thumbnails=True, batch=3, report=lambda *_: None, **options):
        section, folder = Source(path=str(source), **{"extractor": "means:any", **options}), tmp_path / name
        how = {"thumbnails": thumbnails, "batch": batch, "report": report}
        prepare_folder(section, folder, tmp_path / f"{name}.work", engine, **how)
        return folder

    return run


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """A model, its tokeniser, and their folder."""
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    return *save_clip(folder), folder


def save_clip(folder: Path, **tokenising):
    """A tiny CLIP and its tokeniser, saved in the folder."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    text = {**TINY, "vocab_size": len(WORDS), "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 8}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**TINY, "image_size": 32, "patch_size": 8}, projection_dim=6
    )
    model = transformers.CLIPModel(config).eval()
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, "<pad>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokeniser = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", **tokenising
    )
    model.save_pretrained(folder)
    tokeniser.save_pretrained(folder)
    crop = {"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}
    kinds = {"image_processor_type": "CLIPImageProcessor", "processor_class": "CLIPProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(crop | SEEN | kinds))
    return model, tokeniser
