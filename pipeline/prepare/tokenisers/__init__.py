"""Tokenisers of pretrained text encoders, one file a library; a new one is a file and a line in `TOKENISERS`."""

from __future__ import annotations

from aoq.pipeline.prepare.tokenisers.by_open_clip import OpenClipTokeniser
from aoq.pipeline.prepare.tokenisers.by_transformers import TransformersTokeniser
from aoq.pipeline.prepare.tokenisers.of_static_vectors import StaticTokeniser
from aoq.pipeline.prepare.tokenisers.tokeniser import Tokeniser

TOKENISERS: dict[str, type[Tokeniser]] = {
    "transformers": TransformersTokeniser,
    "open_clip": OpenClipTokeniser,
    "static": StaticTokeniser,
}
