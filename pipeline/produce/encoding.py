"""Encode a prepared split's photographs and captions, in this process or on Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from aoq.pipeline.console import Report
from aoq.pipeline.digests import digest
from aoq.pipeline.embedding_blocks import Side, write_embeddings
from aoq.pipeline.engine import Engine
from aoq.pipeline.on_ray import Job, choose_runner
from aoq.pipeline.prepare.encoders import Encoder, open_encoder
from aoq.pipeline.prepare.images_job import Sample, images_job
from aoq.pipeline.prepare.photographs import Photographs, open_photographs
from aoq.pipeline.produce.photographs import encoded_sides, encoding_of
from aoq.pipeline.search.store import Folder


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
    def key(self) -> str:
        """Identity of the vectors."""
        captions = digest(list(self.captions))
        return digest([encoding_of(self.folder, self.split, self.encoder), self.count, captions])

    def sides(self, device: torch.device) -> dict[str, Side]:
        return encoded_sides(self.photographs, self.count, self.captions, self.encoder, device)


def write_encoded(encoding: Encoding, vectors: Path, work: Path, engine: Engine, report: Report) -> None:
    """Write the vectors into the folder `vectors`; on Ray the nodes write blocks of them to `work`."""
    device = engine.torch_device()
    run = choose_runner(engine, partial(ship_encoding, encoding=encoding, device=device))
    work.mkdir(parents=True, exist_ok=True)
    store = Folder(work, encoding.key)
    store.clear_unfinished()
    write_embeddings(encoding.sides(device), vectors, report, run=run, store=store)


def ship_encoding(
    sides: Mapping[str, Side], store: Folder, *, encoding: Encoding, device: torch.device
) -> Job[Mapping[str, Side]]:
    """Make the job of an encoding; with a GPU, each unit has one."""
    photographs, listed = encoding.photographs, len(encoding.photographs.sha256)
    there = encoding.folder.absolute(), encoding.split
    key = encoding_of(encoding.folder, encoding.split, encoding.encoder)
    opened = partial(_open, encoding.name, *there, listed, encoding.count, list(encoding.captions), key, device.type)
    sample = Sample.of(photographs.images, np.arange(encoding.count))
    return images_job(store, encoding.encoder.images.module, device.type, sample, opened)


def _open(
    name: str, folder: Path, split: str, listed: int, count: int, captions: Sequence[str], key: object, device: str
) -> Mapping[str, Side]:
    encoder = open_encoder(name)
    if encoding_of(folder, split, encoder) != key:
        raise ValueError(f"{folder}, or the weights of {name}, are not the same on all nodes.")
    photographs = open_photographs(folder, split, listed)
    return encoded_sides(photographs, count, captions, encoder, torch.device(device))
