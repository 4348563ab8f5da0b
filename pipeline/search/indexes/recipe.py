"""Recipes of indexes: what FAISS is asked to build for a number of vectors, and what is set by measurement."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aoq.pipeline.search.brute_force import load_faiss

CELL_LEAST = 39
"""Vectors in a cell, on average; k-means needs as many to place a centre."""
WIDEST_GRAPH = 4096
MOST = 2**31 - 1


@dataclass(frozen=True)
class Recipe:
    """An index: `factory` is FAISS's factory string, `parameters` are set for every search.

    `breadth` names the parameter that is chosen by measurement, up to `widest`; it is empty if none is.
    """

    factory: str
    parameters: str = ""
    breadth: str = ""
    widest: int = 0

    def at(self, breadth: int) -> str:
        """All parameters of a search, as FAISS's ParameterSpace names them."""
        return f"{self.breadth}={breadth}" if self.breadth else self.parameters


def ivf(vectors: int) -> Recipe:
    """Cells of similar vectors, in 8-bit numbers: about 4 sqrt(N) of them, a power of two."""
    wished = 2 ** round(math.log2(4 * math.sqrt(vectors)))
    cells = max(1, min(wished, 2 ** int(math.log2(max(1, vectors // CELL_LEAST)))))
    return Recipe(f"IVF{cells},SQ8", breadth="nprobe", widest=cells)


def hnsw(vectors: int) -> Recipe:
    """A graph with 32 neighbours for each vector, in 8-bit numbers."""
    return Recipe("HNSW32,SQ8", breadth="efSearch", widest=min(vectors, WIDEST_GRAPH))


def as_described(description: str) -> Callable[[int], Recipe]:
    """Recipe of a factory string that the user gives; parameters follow a "|"."""
    factory, _, parameters = description.partition("|")
    return lambda vectors: Recipe(factory, parameters)


def empty_index(recipe: Recipe, dimensions: int) -> Any:
    """Make an untrained index; a recipe that FAISS does not know is refused."""
    faiss = load_faiss()
    asked = "|".join(filter(None, (recipe.factory, recipe.parameters)))
    _require_counts(asked, recipe.parameters)
    try:
        index = faiss.index_factory(dimensions, recipe.factory, faiss.METRIC_INNER_PRODUCT)
        set_parameters(index, recipe.parameters)
    except RuntimeError as error:
        raise ValueError(
            f"FAISS makes no index of {asked!r} in {dimensions} dimensions ({reason(error)}); "
            'give a factory string, with parameters after "|" if need be: "faiss:IVF256,Flat|nprobe=32".'
        ) from None
    return index


def set_parameters(index: Any, parameters: str) -> None:
    if parameters:
        load_faiss().ParameterSpace().set_index_parameters(index, parameters)


def _require_counts(asked: str, parameters: str) -> None:
    """Refuse what is no number: FAISS accepts any, and casts it to an integer of its own."""
    for parameter in filter(None, parameters.replace(";", ",").split(",")) if parameters else ():
        number = parameter.partition("=")[2]
        if not re.fullmatch(r"\d+(\.\d+)?", number) or float(number) > MOST:
            raise ValueError(f"{asked!r} sets {parameter!r}; parameters are NAME=N, with N from 0 to {MOST}.")


def reason(error: RuntimeError) -> str:
    return str(error).splitlines()[0].rpartition("Error: ")[2]
