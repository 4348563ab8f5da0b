"""Encode a prepared split's photographs and captions, in this process or on Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from aoq.pipeline.digests import digest
from aoq.pipeline.embedding_blocks import Side, write_embeddings
from aoq.pipeline.engine import Engine
from aoq.pipeline.prepare.encoders import Encoder, open_encoder
from aoq.pipeline.prepare.images_job import ImagesJob, Sample, bytes_of_room
from aoq.pipeline.prepare.photographs import Photographs, open_photographs
from aoq.pipeline.produce.photographs import encoded_sides, encoding_of
from aoq.pipeline.progress import Report
from aoq.pipeline.reading import read_json
from aoq.pipeline.scratch import write_atomically
from aoq.pipeline.search.cluster.job import versions_here
from aoq.pipeline.search.runners import choose_runner
from aoq.pipeline.search.store import Folder

CAPTIONS = "captions.json"


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
        return digest([encoding_of(self.folder, self.split, self.encoder), self.count, self.captions_sha256])

    @property
    def captions_sha256(self) -> str:
        return digest(list(self.captions))

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


@dataclass(frozen=True, kw_only=True)
class EncodingJob(ImagesJob[Mapping[str, Side]]):
    """An encoder by its name, and the prepared folder; the captions are in the work folder."""

    name: str
    folder: Path
    split: str
    listed: int
    """Number of photographs of the split; the first `count` are encoded."""
    count: int
    captions_sha256: str
    encoding: str
    device: torch.device

    @override
    def open_there(self) -> dict[str, Side]:
        encoder = open_encoder(self.name)
        if encoding_of(self.folder, self.split, encoder) != self.encoding:
            raise ValueError(f"{self.folder}, or the weights of {self.name}, are not the same on all nodes.")
        captions = read_json(self.work / CAPTIONS, list[str])
        if digest(captions) != self.captions_sha256:
            raise ValueError(f"{self.work / CAPTIONS} was damaged after it was written; run again.")
        photographs = open_photographs(self.folder, self.split, self.listed)
        return encoded_sides(photographs, self.count, captions, encoder, self.device)


def ship_encoding(sides: Mapping[str, Side], store: Folder, *, encoding: Encoding, device: torch.device) -> EncodingJob:
    """Make the job of an encoding and write its captions into the work folder; with a GPU, each unit has one."""
    photographs, images = encoding.photographs, encoding.encoder.images
    job = EncodingJob(
        store=store,
        versions=versions_here(EncodingJob.packages),
        memory=bytes_of_room(images.module),
        gpus=int(device.type == "cuda"),
        sample=Sample.of(photographs.images, np.arange(encoding.count)),
        name=encoding.name,
        folder=encoding.folder.absolute(),
        split=encoding.split,
        listed=len(photographs.sha256),
        count=sides["images"].count,
        captions_sha256=encoding.captions_sha256,
        encoding=encoding_of(encoding.folder, encoding.split, encoding.encoder),
        device=torch.device(device.type),  # whichever GPU Ray lends
    )
    write_atomically(job.work / CAPTIONS, json.dumps(list(encoding.captions)).encode())
    return job
