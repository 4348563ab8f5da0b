"""Near search by any index that a FAISS factory string describes, such as "IVF256,Flat|nprobe=32"."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int64, UInt8

from aoq.pipeline.search.faiss_flat import load_faiss

BLOCK = 65536


def empty_index(description: str, dimensions: int) -> Any:
    """An untrained index; after `|` stand search parameters as FAISS's ParameterSpace names them."""
    faiss = load_faiss()
    factory, _, parameters = description.partition("|")
    try:
        index = faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
        if parameters:
            faiss.ParameterSpace().set_index_parameters(index, parameters)
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rpartition("Error: ")[2]
        raise ValueError(
            f"FAISS makes no index of {description!r} in {dimensions} dimensions ({reason}); "
            'give a factory string, with parameters after "|" if need be: "faiss:IVF256,Flat|nprobe=32".'
        ) from None
    return index


def build_index(description: str, vectors: Float[np.ndarray, "items D"]) -> UInt8[np.ndarray, " bytes"]:
    """Trained on all vectors, with all of them in it; serialised."""
    index = empty_index(description, vectors.shape[1])
    if not index.is_trained:
        try:
            index.train(np.ascontiguousarray(vectors, dtype=np.float32))
        except RuntimeError as error:
            reason = str(error).splitlines()[0].rpartition("Error: ")[2]
            raise ValueError(
                f"FAISS cannot train {description!r} on {len(vectors)} vectors ({reason}); ask for fewer clusters."
            ) from None
    for start in range(0, len(vectors), BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32))
    return load_faiss().serialize_index(index)


def search_index(
    index: Any, description: str, anchors: Float[np.ndarray, "anchors D"], k: int
) -> tuple[Float[np.ndarray, "anchors k"], Int64[np.ndarray, "anchors k"]]:
    """As a `Search`, but where an index finds fewer than k, the rest of a row has ids of -1."""
    parameters = description.partition("|")[2]
    if parameters:
        load_faiss().ParameterSpace().set_index_parameters(index, parameters)
    return index.search(np.ascontiguousarray(anchors, dtype=np.float32), k)
