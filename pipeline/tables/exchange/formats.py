"""Registry of the formats: their writers, how they are loaded, and how they hold images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aoq.pipeline.tables.exchange import bare_lists, jsonlines, lookups, negclip, nemo, parquet, vlm2vec
from aoq.pipeline.tables.exchange.outgoing import Outgoing, Written


@dataclass(frozen=True)
class Format:
    """A format; `write` fills the folder of one direction."""

    write: Callable[[Outgoing, Path], Written]
    load: str
    """Lines of its README that load it; `$folder` is replaced by the folder's name."""
    language: Literal["python", "bash", "yaml"] = "python"
    images: Literal["path", "lookup", "text", "id"] = "path"
    """Form of an image: its path; a row of a lookup, by path or content; a text alone; or its id."""
    queries: Literal["any", "text"] = "any"
    """Anchors that its reader accepts."""
    scores: Literal["optional", "always", "never", "of negatives"] = "never"
    directions: Literal["one", "each", "joined"] = "one"
    """One requested direction; both in turn; or both at once: the captions' lists, with the images' as `other`."""

    @property
    def has_texts(self) -> bool:
        """Return whether it has texts and positives; otherwise it has rows alone."""
        return self.images != "id"


FORMATS: dict[str, Format] = {
    "triplet": Format(parquet.write_triplets, parquet.LOAD, scores="optional"),
    "n-tuple": Format(parquet.write_tuples, parquet.LOAD, scores="optional"),
    "labeled-pair": Format(parquet.write_labeled_pairs, parquet.LOAD, scores="optional"),
    "labeled-list": Format(parquet.write_labeled_lists, parquet.LOAD, scores="optional"),
    "ids": Format(lookups.write_ids, lookups.LOAD_IDS, images="lookup", scores="optional"),
    "tevatron": Format(lookups.write_tevatron, lookups.LOAD_TEVATRON, images="lookup"),
    "colpali": Format(lookups.write_colpali, lookups.LOAD_COLPALI, images="lookup", queries="text"),
    "nemo": Format(nemo.write_nemo, nemo.LOAD, images="lookup", queries="text"),
    "ms-swift": Format(jsonlines.write_swift, jsonlines.LOAD_SWIFT, "bash"),
    "vlm2vec": Format(vlm2vec.write_vlm2vec, vlm2vec.LOAD, "yaml"),
    "negclip": Format(negclip.write_negclip, negclip.LOAD, "bash", directions="joined"),
    "pylate": Format(lookups.write_pylate, lookups.LOAD_PYLATE, images="text", scores="always"),
    "flagembedding": Format(
        jsonlines.write_flagembedding, jsonlines.LOAD_FLAGEMBEDDING, "bash", images="text", scores="optional"
    ),
    "trec": Format(
        bare_lists.write_run, bare_lists.LOAD_RUN, "bash", images="id", scores="of negatives", directions="each"
    ),
    "aoq": Format(bare_lists.write_official, bare_lists.LOAD_OFFICIAL, "bash", images="id", directions="each"),
}


def find_format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"there is no format {name!r}; formats are {', '.join(FORMATS)}.")
    return FORMATS[name]
