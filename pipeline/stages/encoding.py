"""Write vectors: of a split by a trained model, or of photographs and captions by a pretrained encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from aoq.models.base import EmbeddingModel
from aoq.models.towers.preprocessing import stacked
from aoq.pipeline.build import UNITS, take_in
from aoq.pipeline.console import Reporter, show_progress
from aoq.pipeline.embedding import EncodedSide, model_sides, write_embeddings
from aoq.pipeline.engine import Engine
from aoq.pipeline.files import digest, file_sha256, known_sha256
from aoq.pipeline.on_ray import Job, choose_runner
from aoq.pipeline.prepare.blocks import images_job
from aoq.pipeline.prepare.extractors import Encoder, open_encoder
from aoq.pipeline.prepare.photographs import Photographs, open_photographs
from aoq.pipeline.search.units import Folder
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.splits import open_checked, open_pairs, open_true_train_split
from aoq.pipeline.training.checkpoint import load_model

ENCODED_AT_ONCE = 32
"""Images or captions encoded at once."""


def embed_train_split(chain: Chain, stage: str, folder: Path, engine: Engine) -> str:
    """Write the vectors of the training split by the stage's model; return its weights' sha256."""
    device = engine.torch_device()
    weights = chain[stage].opened() / "model.safetensors"
    model = load_model(weights, **chain.experiment.model.towers).to(device)
    assert isinstance(model, EmbeddingModel)  # the configuration allows only these to search
    with show_progress("embeddings") as report:
        sides = model_sides(model, open_pairs(chain, "train", engine.verify), device)
        write_embeddings(sides, folder, Folder.opened(folder / UNITS), report)
    return known_sha256(weights)


def encode_train_split(chain: Chain, encoder: str, folder: Path, engine: Engine) -> str:
    """Write an encoder's vectors of the training split's photographs and captions; return its weights' sha256."""
    name, split = chain.experiment.dataset.train, open_true_train_split(chain, engine.verify)
    listed = open_checked(chain, name, engine.verify).image_count
    encoding = Encoding(encoder, chain.folder, name, listed, split.image_count, split.captions)
    take_in("encoder", lambda: encoding.read)
    with show_progress("embeddings") as report:
        write_encoded(encoding, folder, folder / UNITS, engine, report)
    return encoding.encoder.images.fingerprint


@dataclass(frozen=True)
class Encoding:
    """An encoder by its name, and the first `count` of a split's `listed` photographs with their captions."""

    name: str
    folder: Path
    split: str
    listed: int
    count: int
    captions: Sequence[str]

    @cached_property
    def encoder(self) -> Encoder:
        return open_encoder(self.name)

    @cached_property
    def photographs(self) -> Photographs:
        return open_photographs(self.folder, self.split, self.listed)

    @property
    def read(self) -> str:
        """Identity of the encoder's weights and of the split's photographs and captions."""
        assert self.photographs  # a folder without any is refused before the encoder is opened
        files = (self.folder / f"{self.split}_{name}" for name in ("images.parquet", "caps.txt"))
        return digest([self.encoder.images.fingerprint, *map(file_sha256, files)])

    def sides(self, device: torch.device) -> dict[str, EncodedSide]:
        """Encode photographs and captions as unit vectors, in order; threads read photographs ahead."""
        photographs, encoder, pool = self.photographs, self.encoder, ThreadPoolExecutor()
        preprocessing = encoder.images.preprocessing
        encoder.images.to(device)

        def pixels(row: int) -> UInt8[np.ndarray, "height width 3"]:
            return preprocessing.pixels(photographs.decode(row, preprocessing.least))

        def encode_images(rows: list[int]) -> Float[Tensor, "some dims"]:
            parts = stacked(pool.map(pixels, rows))
            return torch.cat([encoder.images.encoded(part, device)[:, 0] for part in parts])

        def encode_captions(rows: list[int]) -> Float[Tensor, "some dims"]:
            return encoder.texts([self.captions[row] for row in rows], device)

        sides = {"images": (self.count, encode_images), "captions": (len(self.captions), encode_captions)}
        return {side: EncodedSide(count, partial(_in_parts, encode)) for side, (count, encode) in sides.items()}


def write_encoded(encoding: Encoding, vectors: Path, work: Path, engine: Engine, report: Reporter) -> None:
    """Write the vectors into the folder `vectors`, from blocks in the folder `work`, which nodes of Ray share."""
    device = engine.torch_device()
    run = choose_runner(engine, partial(_ship, encoding=encoding, device=device))
    blocks = Folder.opened(work, digest([encoding.read, encoding.count, digest(list(encoding.captions))]))
    write_embeddings(encoding.sides(device), vectors, blocks, report, run)


def _ship(
    sides: Mapping[str, EncodedSide], store: Folder, *, encoding: Encoding, device: torch.device
) -> Job[Mapping[str, EncodedSide]]:
    """Make the job of an encoding; with a GPU, each unit has one."""
    closed = replace(encoding, folder=encoding.folder.absolute(), captions=list(encoding.captions))
    images, opened = encoding.photographs.images, partial(_open_on_node, closed, encoding.read, device.type)
    return images_job(store, encoding.encoder.images.module, device.type, images, encoding.count, opened)


def _open_on_node(encoding: Encoding, read: str, device: str) -> Mapping[str, EncodedSide]:
    if encoding.read != read:
        raise ValueError(f"{encoding.folder}, or the weights of {encoding.name}, are not the same on all nodes.")
    return encoding.sides(torch.device(device))


def _in_parts(
    encode: Callable[[list[int]], Float[Tensor, "some dims"]], rows: Integer[np.ndarray, " rows"]
) -> Float[Tensor, "rows dims"]:
    parts = [encode(rows[start : start + ENCODED_AT_ONCE].tolist()) for start in range(0, len(rows), ENCODED_AT_ONCE)]
    return torch.nn.functional.normalize(torch.cat(parts).float(), dim=1)
