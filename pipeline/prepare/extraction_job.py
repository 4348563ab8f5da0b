"""Extraction on a cluster: blocks of images by name, and an extractor that every node opens for itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from typing_extensions import override

from aoq.pipeline.prepare.blocks import Extracting
from aoq.pipeline.prepare.extractors import open_extractor
from aoq.pipeline.prepare.extractors.extractor import Tokens
from aoq.pipeline.prepare.images_job import ImagesJob, Sample, bytes_of_room
from aoq.pipeline.prepare.reader import Loading, Reader
from aoq.pipeline.prepare.request import Request
from aoq.pipeline.search.cluster.job import versions_here
from aoq.pipeline.search.store import Folder


@dataclass(frozen=True, kw_only=True)
class ExtractionJob(ImagesJob[Extracting]):
    """An extractor by its name, and the way images are read."""

    extractor: str
    tokens: Tokens
    fingerprint: str
    loading: Loading

    @override
    def open_there(self) -> Extracting:
        extractor = open_extractor(self.extractor, self.tokens)
        if extractor.fingerprint != self.fingerprint:
            raise ValueError(f"the weights of {self.extractor} are not the same on all nodes; put the same everywhere.")
        extractor.to(self.loading.device)
        return Extracting(extractor, self.loading)


def ship_extraction(job: Extracting, store: Folder, *, request: Request, reader: Reader) -> ExtractionJob:
    """Name the extractor and its weights, with a sample of the reader's images; a unit has one GPU if there are any."""
    loading, device = job.loading, torch.device(job.loading.device.type)  # any GPU that Ray assigns
    return ExtractionJob(
        store=store,
        versions=versions_here(ExtractionJob.packages),
        memory=bytes_of_room(job.extractor.module),
        gpus=int(device.type == "cuda"),
        sample=Sample.of(reader.images, reader.rows),
        extractor=request.extractor,
        tokens=request.tokens,
        fingerprint=job.extractor.fingerprint,
        loading=Loading(loading.workers, loading.batch, device),
    )
