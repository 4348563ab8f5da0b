"""Extraction on a cluster: blocks of images by name, and an extractor that every node opens for itself."""

from __future__ import annotations

from functools import partial

import torch

from aoq.pipeline.on_ray import Job
from aoq.pipeline.prepare.blocks import Extracting
from aoq.pipeline.prepare.extractors import open_extractor
from aoq.pipeline.prepare.extractors.extractor import Tokens
from aoq.pipeline.prepare.images_job import Sample, images_job
from aoq.pipeline.prepare.reader import Loading, Reader
from aoq.pipeline.prepare.request import Request
from aoq.pipeline.search.store import Folder


def ship_extraction(job: Extracting, store: Folder, *, request: Request, reader: Reader) -> Job[Extracting]:
    """Name the extractor and its weights, with a sample of the reader's images; a unit has one GPU if there are any."""
    device = torch.device(job.loading.device.type)  # any GPU that Ray assigns
    loading = Loading(job.loading.workers, job.loading.batch, device)
    opened = partial(_open, request.extractor, request.tokens, job.extractor.fingerprint, loading)
    return images_job(store, job.extractor.module, device.type, Sample.of(reader.images, reader.rows), opened)


def _open(name: str, tokens: Tokens, fingerprint: str, loading: Loading) -> Extracting:
    extractor = open_extractor(name, tokens)
    if extractor.fingerprint != fingerprint:
        raise ValueError(f"the weights of {name} are not the same on all nodes; put the same everywhere.")
    extractor.to(loading.device)
    return Extracting(extractor, loading)
