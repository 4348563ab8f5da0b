"""Open pretrained encoders of timm, transformers, open_clip and sentence-transformers, and static vectors.

Extractors, towers, encoders and tokenisers all use these functions. A name is LIBRARY:NAME_OR_PATH.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from aoq.models.towers.preprocessing import Preprocessing, seen_by_open_clip, seen_by_timm, seen_by_transformers
from aoq.pipeline.extras import import_extra, loading
from aoq.pipeline.reading import open_array

TOKENISER = "tokenizer.json"
VECTORS = ("embeddings", "embedding.weight")
"""Names of the vectors in a file of several tensors: model2vec's and sentence-transformers'."""

_Known = TypeVar("_Known")


def find_entry(name: str, known: Mapping[str, _Known], what: str) -> _Known:
    """Return the entry of LIBRARY among those known; `name` is LIBRARY:NAME_OR_PATH of, for example, an image tower."""
    library, _, model = name.partition(":")
    if library not in known or not model:
        names = ", ".join(f"{library}:NAME_OR_PATH" for library in known)
        raise ValueError(f"there is no {what} {name!r}; known are {names}.")
    return known[library]


@contextmanager
def _library(module: str, name: str) -> Iterator[tuple[Any, str]]:
    """Import a library for the encoder `name`; a failure inside becomes one sentence."""
    model = name.partition(":")[2]
    with loading(name, model):
        extra = module.partition(".")[0].replace("_", "-")  # extras are named after their libraries
        yield import_extra(module, extra, name), model


def load_timm(name: str, *, pretrained: bool) -> tuple[Any, Preprocessing]:
    """Load a network of timm without its classifier, by its name or from a folder with its `config.json`."""
    with _library("timm", name) as (library, model):
        local = f"local-dir:{Path(model).absolute()}" if Path(model).is_dir() else model
        network = library.create_model(local, pretrained=pretrained, num_classes=0)
        return network, seen_by_timm(name, library.data.resolve_model_data_config(network))


def load_transformers(name: str) -> Any:
    with _library("transformers", name) as (library, model):
        library.utils.logging.disable_progress_bar()
        return library.AutoModel.from_pretrained(model, dtype=torch.float32)


def preprocessing_of_transformers(name: str) -> Preprocessing:
    with _library("transformers.image_processing_base", name) as (library, model):
        config, _ = library.ImageProcessingMixin.get_image_processor_dict(model)
    return seen_by_transformers(name, config)


def tokeniser_of_transformers(name: str) -> Any:
    with _library("transformers", name) as (library, model):
        return library.AutoTokenizer.from_pretrained(model)


HALVES = {"clip": ("CLIP", "WithProjection"), "siglip": ("Siglip", "")}
"""Start of the class names of a pair's halves by its `model_type`, and their end with the layers of its own vectors."""


@dataclass(frozen=True)
class TransformersSource:
    """An encoder of transformers, or half of a pair such as a CLIP: its configuration, and the class that loads it."""

    name: str
    config: Any
    architecture: Any
    is_half: bool

    @classmethod
    def open(cls, name: str, kind: Literal["Text", "Vision"], *, native: bool) -> TransformersSource:
        """Read the configuration, but no weights."""
        with _library("transformers", name) as (library, model):
            config = library.AutoConfig.from_pretrained(model)
        if not hasattr(config, "vision_config"):
            return cls(name, config, library.AutoModel, False)
        if config.model_type not in HALVES:
            known = ", ".join(sorted(HALVES))
            raise ValueError(f"{name} is a {config.model_type}; the known models of images and texts are {known}.")
        part, (start, end) = getattr(config, f"{kind.lower()}_config"), HALVES[config.model_type]
        if config.model_type == "clip":  # the part's own configuration may give another size
            part.projection_dim = config.projection_dim
        return cls(name, part, getattr(library, f"{start}{kind}Model{end if native else ''}"), True)

    def build(self) -> nn.Module:
        """Build the network with random weights."""
        with _library("transformers", self.name):
            build = self.architecture._from_config if self.is_half else self.architecture.from_config
            return self._without_pooler(build(self.config, dtype=torch.float32))

    def load_into(self, network: nn.Module) -> None:
        """Copy the published weights into a network that `build` returned."""
        with _library("transformers", self.name) as (_, model):
            options = {"config": self.config, "dtype": torch.float32, "output_loading_info": True}
            with _quiet():
                loaded, about = self.architecture.from_pretrained(model, **options)
            missing = sorted(set(about["missing_keys"]) & network.state_dict().keys())
            if missing:
                raise ValueError(f"it lacks {missing[0]} and {len(missing) - 1} more weights, so it is another model")
            network.load_state_dict(self._without_pooler(loaded).state_dict())

    def numbers(self) -> dict[str, float]:
        with _quiet():
            return pair_numbers(load_transformers(self.name))

    def _without_pooler(self, network: Any) -> Any:
        """Remove BERT's extra layer on the first state, which does not affect the states; ResNets need their mean."""
        pooler = None if self.is_half else getattr(network, "pooler", None)
        if pooler is not None and any(True for _ in pooler.parameters()):
            network.pooler = None
        return network


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence libraries' warnings of random or missing weights: `load_into` checks them."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


def pair_numbers(pair: Any) -> dict[str, float]:
    """Return a pair's temperature (its logits are e^`logit_scale` times cosines), and its bias if it has one."""
    numbers = {"temperature": math.exp(-pair.logit_scale.item())}
    bias = getattr(pair, "logit_bias", None)
    return numbers if bias is None else numbers | {"bias": bias.item()}


@dataclass(frozen=True)
class OpenClipSource:
    """A pair of open_clip as the library names it, with the tag or the file of its weights, if they are separate."""

    name: str
    architecture: str
    tag: str | None

    @classmethod
    def open(cls, name: str, *, is_file_allowed: bool = False) -> OpenClipSource:
        """Open NAME/TAG, such as ViT-B-32/laion2b_s34b_b79k; NAME/FILE if allowed; hf-hub:OWNER/NAME; or a folder with
        `open_clip_config.json`, as PATH or local-dir:PATH. Load nothing."""
        model = name.partition(":")[2]
        if (folder := Path(model.removeprefix("local-dir:"))).is_dir():
            return cls(name, f"local-dir:{folder.absolute()}", None)
        if model.startswith(("local-dir:", "hf-hub:")):
            return cls(name, model, None)
        architecture, _, tag = model.partition("/")
        with _library("open_clip", name) as (library, _):
            tags = library.list_pretrained_tags_by_model(architecture)
            if tag not in tags and not (is_file_allowed and tag):
                if Path(tag).is_file():  # keys hash the contents of folders, not of files
                    raise ValueError("put the file of weights into a folder with its open_clip_config.json")
                known = ", ".join(tags) or "none"
                raise ValueError(f"give the weights' tag after a slash; tags of {architecture}: {known}")
        return cls(name, architecture, tag)

    def build(self) -> Any:
        """Build the pair with random weights, as `visual` and `text`."""
        with _quiet():
            return self._create_sides(None, load_weights=False)

    def load(self) -> tuple[Any, Preprocessing]:
        """Load the pair with its weights, as the library builds it, and the preprocessing of its image side."""
        with _library("open_clip", self.name) as (library, _):
            network = library.create_model(self.architecture, self.tag)
            return network, seen_by_open_clip(self.name, network.visual.preprocess_cfg)

    def load_into(self, network: nn.Module) -> None:
        """Copy the published weights into a side that `build` returned, which may lack its last projection."""
        pair = self._create_sides(self.tag)
        state = (pair.visual if isinstance(network, type(pair.visual)) else pair.text).state_dict()
        with _library("open_clip", self.name):
            network.load_state_dict({name: state[name] for name in network.state_dict()})

    def numbers(self) -> dict[str, float]:
        return pair_numbers(self._create_sides(self.tag))

    def preprocessing(self, visual: Any) -> Preprocessing:
        """Return the preprocessing of an image side that `build` returned."""
        with _library("open_clip", self.name) as (library, _):
            tagged = library.get_pretrained_cfg(self.architecture, self.tag) if self.tag else {}
            return seen_by_open_clip(self.name, {k: tagged.get(k) or v for k, v in visual.preprocess_cfg.items()})

    def tokeniser(self) -> Any:
        with _library("open_clip", self.name) as (library, _):
            return library.get_tokenizer(self.architecture)

    def _create_sides(self, tag: str | None, *, load_weights: bool = True) -> Any:
        with _library("open_clip", self.name) as (library, _):
            return library.create_model(
                self.architecture,
                tag,
                device=torch.get_default_device(),
                force_custom_text=True,
                force_patch_dropout=0.0,
                load_weights=load_weights,
                pretrained_image=False,
                pretrained_text=False,
            )


def load_sentence_transformers(name: str) -> Any:
    """Load a model from the hub or a folder, on the CPU."""
    with _library("sentence_transformers", name) as (library, model):
        return library.SentenceTransformer(model, device="cpu")


@dataclass(frozen=True)
class StaticVectors:
    """One `.safetensors` or `.npy` file with a vector per token, beside its `tokenizer.json`: model2vec's, wordllama's,
    sentence-transformers', GloVe's. model2vec's file may hold a `mapping` of tokens to vectors, and their `weights`.
    """

    name: str
    file: Path

    @classmethod
    def open(cls, name: str) -> StaticVectors:
        """Find the file; read no vectors."""
        with loading(name, name.partition(":")[2]):
            folder = static_folder(name)
            files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".npy"))
            if len(files) != 1 or not (folder / TOKENISER).is_file():
                there = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
                raise ValueError(f"one .safetensors or .npy file and {TOKENISER} are needed; the folder has {there}")
            return cls(name, files[0])

    def shape(self) -> tuple[int, int]:
        with loading(self.name, str(self.file)):
            vectors, others = self._read()
            if vectors.ndim != 2 or 0 in vectors.shape:
                raise ValueError(f"{self.file.name} holds an array of shape {tuple(vectors.shape)}, not (tokens, size)")
            return len(others.get("mapping", vectors)), vectors.shape[1]

    def load_into(self, network: nn.Embedding) -> None:
        with loading(self.name, str(self.file)):
            vectors, others = self._read()
            vectors = vectors.float()
            vectors = vectors[others["mapping"].long()] if "mapping" in others else vectors
            vectors = vectors * others["weights"].float().unsqueeze(1) if "weights" in others else vectors
            network.load_state_dict({"weight": vectors})

    def _read(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Map the vectors, and any other tensors, into memory."""
        if self.file.suffix == ".npy":
            return torch.from_numpy(open_array(self.file, "c")), {}
        tensors = load_file(self.file)
        named = [name for name in VECTORS if name in tensors] or [*tensors]
        if len(named) != 1:
            raise ValueError(f"it holds the tensors {sorted(tensors)}, but none is called {' or '.join(VECTORS)}")
        return tensors.pop(named[0]), tensors


def static_folder(name: str) -> Path:
    """Return the folder of that path, or a local copy of the hub's repository."""
    model = name.partition(":")[2]
    if (folder := Path(model)).is_dir():
        return folder
    hub = import_extra("huggingface_hub", "transformers", name)
    return Path(hub.snapshot_download(model, allow_patterns=["*.safetensors", TOKENISER]))
