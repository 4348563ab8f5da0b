"""Static vectors of tokens in a folder: those of model2vec, of wordllama, of sentence-transformers, GloVe's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading
from aoq.pipeline.reading import open_array

TOKENISER = "tokenizer.json"
VECTORS = ("embeddings", "embedding.weight")
"""The name of the vectors where a file holds more tensors: model2vec's and sentence-transformers'."""


@dataclass(frozen=True)
class StaticVectors:
    """`static:NAME_OR_PATH`: one `.safetensors` or `.npy` file of a vector a token, beside its `tokenizer.json`.

    model2vec's file may hold a `mapping` of tokens to vectors, and `weights` of tokens.
    """

    name: str
    file: Path

    @classmethod
    def open(cls, name: str) -> StaticVectors:
        """The vectors are not read.

        Raises:
            ValueError: for what cannot be loaded, and where there is not one file of vectors.
        """
        with loading(name, name.partition(":")[2]):
            folder = static_folder(name)
            files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".npy"))
            if len(files) != 1 or not (folder / TOKENISER).is_file():
                found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
                raise ValueError(f"one .safetensors or .npy file and {TOKENISER} are needed, and there is {found}")
            return cls(name, files[0])

    def shape(self) -> tuple[int, int]:
        """Number of tokens, and length of a vector."""
        with loading(self.name, str(self.file)):
            if self.file.suffix == ".npy":
                shape = open_array(self.file).shape
                tokens = shape[0]
            else:
                with safe_open(self.file, framework="pt") as tensors:
                    names = [*tensors.keys()]
                    shape = tensors.get_slice(_vectors(names)).get_shape()
                    tokens = tensors.get_slice("mapping").get_shape()[0] if "mapping" in names else shape[0]
            if len(shape) != 2 or 0 in shape:
                raise ValueError(f"{self.file.name} holds an array of shape {tuple(shape)}, not (tokens, size)")
            return int(tokens), int(shape[1])

    def read(self) -> Float[Tensor, "tokens size"]:
        """The vector of every token."""
        with loading(self.name, str(self.file)):
            if self.file.suffix == ".npy":
                return torch.from_numpy(open_array(self.file, "c")).float()
            with safe_open(self.file, framework="pt") as tensors:
                found = {name: tensors.get_tensor(name) for name in [*tensors.keys()]}
            vectors = found[_vectors(found)].float()
            vectors = vectors[found["mapping"].long()] if "mapping" in found else vectors
            return vectors * found["weights"].float().unsqueeze(1) if "weights" in found else vectors


def static_folder(name: str) -> Path:
    """The folder of that path, or a copy of the repository of the hub."""
    model = name.partition(":")[2]
    if (folder := Path(model)).is_dir():
        return folder
    hub = import_extra("huggingface_hub", "transformers", name)
    return Path(hub.snapshot_download(model, allow_patterns=["*.safetensors", TOKENISER]))


def _vectors(names: Collection[str]) -> str:
    """The tensor that holds the vectors."""
    found = [name for name in VECTORS if name in names] or [*names]
    if len(found) != 1:
        raise ValueError(f"it holds the tensors {sorted(names)}, and none is called {' or '.join(VECTORS)}")
    return found[0]
