"""Write vectors: of a split by a trained model, or of photographs and captions by a pretrained encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from aoq.models.base import EmbeddingModel
from aoq.models.towers.preprocessing import stacked
from aoq.pipeline.build import UNITS
from aoq.pipeline.console import Report, show_progress
from aoq.pipeline.digests import digest, file_sha256, known_sha256
from aoq.pipeline.embedding_blocks import Side, sides_of, write_embeddings
from aoq.pipeline.engine import Engine
from aoq.pipeline.inputs import take_in
from aoq.pipeline.on_ray import Job, choose_runner
from aoq.pipeline.prepare.encoders import Encoder, open_encoder
from aoq.pipeline.prepare.images import decode
from aoq.pipeline.prepare.images_job import Sample, images_job
from aoq.pipeline.prepare.photographs import Photographs, open_photographs
from aoq.pipeline.search.store import Folder
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.pairs import open_pairs
from aoq.pipeline.stages.splits import open_checked, open_true_train_split
from aoq.pipeline.training.checkpoint import load_model

AT_ONCE = 32
"""Images or captions encoded at once."""


def embed_train_split(chain: Chain, stage: str, folder: Path, engine: Engine) -> str:
    """Write the vectors of the training split by the stage's model; return its weights' sha256."""
    device = engine.torch_device()
    weights = chain[stage].opened() / "model.safetensors"
    model = load_model(weights).to(device)
    assert isinstance(model, EmbeddingModel)  # the configuration allows only these to search
    with show_progress("embeddings") as report:
        write_embeddings(sides_of(model, open_pairs(chain, "train", engine.verify), device), folder, report)
    return known_sha256(weights)


def encode_train_split(chain: Chain, encoder_name: str, folder: Path, engine: Engine) -> str:
    """Write an encoder's vectors of the training split's photographs and captions; return its weights' sha256."""
    name, split = chain.experiment.dataset.train, open_true_train_split(chain, engine.verify)
    encoder = open_encoder(encoder_name)
    photographs = open_photographs(chain.folder, name, open_checked(chain, name, engine.verify).image_count)
    encoding = Encoding(encoder_name, encoder, chain.folder, name, photographs, split.image_count, split.captions)
    take_in("encoder", lambda: encoding.read)
    with show_progress("embeddings") as report:
        write_encoded(encoding, folder, folder / UNITS, engine, report)
    return encoder.images.fingerprint


@dataclass(frozen=True)
class Encoding:
    """The first photographs of a split with their captions, and an encoder by its name."""

    name: str
    encoder: Encoder
    folder: Path
    split: str
    photographs: Photographs
    count: int
    captions: Sequence[str]

    @property
    def read(self) -> str:
        """Identity of the encoder's weights and of the split's photographs and captions."""
        files = (self.folder / f"{self.split}_{name}" for name in ("images.parquet", "caps.txt"))
        return digest([self.encoder.images.fingerprint, *map(file_sha256, files)])

    @property
    def key(self) -> str:
        """Identity of the vectors."""
        return digest([self.read, self.count, digest(list(self.captions))])


def write_encoded(encoding: Encoding, vectors: Path, work: Path, engine: Engine, report: Report) -> None:
    """Write the vectors into the folder `vectors`; on Ray the nodes write blocks of them to `work`."""
    device = engine.torch_device()
    run = choose_runner(engine, partial(_ship, encoding=encoding, device=device))
    work.mkdir(parents=True, exist_ok=True)
    store = Folder(work, encoding.key)
    store.clear_unfinished()
    sides = encoded_sides(encoding.photographs, encoding.count, encoding.captions, encoding.encoder, device)
    write_embeddings(sides, vectors, report, run=run, store=store)


def _ship(
    sides: Mapping[str, Side], store: Folder, *, encoding: Encoding, device: torch.device
) -> Job[Mapping[str, Side]]:
    """Make the job of an encoding; with a GPU, each unit has one."""
    there = encoding.folder.absolute(), encoding.split, len(encoding.photographs.sha256)
    captions, read = list(encoding.captions), encoding.read
    sample = Sample.of(encoding.photographs.images, np.arange(encoding.count))
    opened = partial(_open_on_node, encoding.name, *there, encoding.count, captions, read, device.type)
    return images_job(store, encoding.encoder.images.module, device.type, sample, opened)


def _open_on_node(
    name: str, folder: Path, split: str, listed: int, count: int, captions: Sequence[str], read: str, device: str
) -> Mapping[str, Side]:
    photographs, encoder = open_photographs(folder, split, listed), open_encoder(name)
    if Encoding(name, encoder, folder, split, photographs, count, captions).read != read:
        raise ValueError(f"{folder}, or the weights of {name}, are not the same on all nodes.")
    return encoded_sides(photographs, count, captions, encoder, torch.device(device))


def encoded_sides(
    photographs: Photographs, count: int, captions: Sequence[str], encoder: Encoder, device: torch.device
) -> dict[str, Side]:
    """Encode photographs and captions as unit vectors, in order; threads read photographs ahead."""
    preprocessing, pool = encoder.images.preprocessing, ThreadPoolExecutor()
    encoder.images.to(device)

    def pixels(row: int) -> UInt8[np.ndarray, "height width 3"]:
        content = photographs.read(row)
        try:
            return preprocessing.pixels(decode(content, preprocessing.least).image)
        except ValueError as error:
            raise ValueError(f"{photographs.images.describe(row)}: {error}; prepare the folder again.") from None

    def encode_images(rows: list[int]) -> Float[Tensor, "some dims"]:
        parts = stacked(pool.map(pixels, rows))
        return torch.cat([encoder.images.encoded(part, device)[:, 0] for part in parts])

    def encode_captions(rows: list[int]) -> Float[Tensor, "some dims"]:
        return encoder.texts([captions[row] for row in rows], device)

    return {
        "images": Side(count, partial(_in_parts, encode_images)),
        "captions": Side(len(captions), partial(_in_parts, encode_captions)),
    }


def _in_parts(
    encode: Callable[[list[int]], Float[Tensor, "some dims"]], rows: Integer[np.ndarray, " rows"]
) -> Float[Tensor, "rows dims"]:
    parts = [encode(rows[start : start + AT_ONCE].tolist()) for start in range(0, len(rows), AT_ONCE)]
    return torch.nn.functional.normalize(torch.cat(parts).float(), dim=1)
