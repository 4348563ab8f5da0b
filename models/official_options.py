"""The options of our models, from official weights and command-line options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from torch import Tensor

from aoq.models.attention import Aggregation, Direction, Normalisation
from aoq.models.bfan import Focal

State = Mapping[str, Tensor]
Options = Mapping[str, object]

BFAN_TEMPERATURE = 20.0


class Told:
    """The official command-line options; those that are not there, and stand at the official default, are noted."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.assumed: dict[str, object] = {}

    def get(self, key: str, default: object) -> object:
        if key not in self.options:
            self.assumed[key] = default
        return self.options.get(key, default)

    def flag(self, key: str) -> bool:
        return bool(self.get(key, False))

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float):
            raise ValueError(f"The option {key} is {value!r}, and should be a number.")
        return float(value)

    def choice(self, key: str, default: str, supported: Sequence[str]) -> object:
        value = self.get(key, default)
        if value not in supported:
            raise ValueError(f"It was trained with {key} = {value!r}; ours supports {', '.join(supported)}.")
        return value

    def expect(self, **values: object) -> None:
        """Raise if an option is there with any other value."""
        for key, expected in values.items():
            if self.options.get(key, expected) != expected:
                raise ValueError(f"It was trained with {key} = {self.options[key]!r}; ours supports {expected!r} only.")


def our_options(name: str, weights: State, told: Told) -> dict[str, object]:
    """What builds the model of these weights (under our names): their sizes, and what the options say."""
    normed = "project.parametrizations.weight.original1"
    embedding_size, feature_size = _sizes(weights, normed if normed in weights else "project.weight", 2)
    vocabulary_size, word_size = _sizes(weights, "text.embedding.weight", 2)
    sizes: dict[str, object] = {
        "feature_size": feature_size,
        "vocabulary_size": vocabulary_size,
        "embedding_size": embedding_size,
        "word_size": word_size,
    }
    return {**sizes, **OPTIONS[name](weights, told)}


def _sizes(weights: State, key: str, dims: int) -> tuple[int, ...]:
    if key not in weights:
        raise ValueError(f"The weight {key} (our name) is missing.")
    shape = tuple(weights[key].shape)
    if len(shape) != dims:
        raise ValueError(f"The weight {key} (our name) is of shape {shape}, and should have {dims} axes.")
    return shape


def _is_bidirectional(weights: State, recurrence: str = "text.recurrence") -> bool:
    return f"{recurrence}.weight_ih_l0_reverse" in weights


def _vsepp(weights: State, told: Told) -> dict[str, object]:
    told.expect(measure="cosine", use_abs=False, no_imgnorm=False)
    return {"bidirectional": _is_bidirectional(weights)}


def _vsrn(weights: State, told: Told) -> dict[str, object]:
    told.expect(measure="cosine", rnn_type="gru")
    has_captioner = any(key.startswith("captioner.") for key in weights)
    found: dict[str, object] = {
        "variant": "f30k" if "norm.weight" in weights else "coco",
        "normalise_axis": "regions",
        "absolute": told.flag("use_abs"),
        "normalise_images": not told.flag("no_imgnorm"),
        "caption_weight": 1.0 if has_captioner else 0.0,
    }
    if has_captioner:
        found["caption_hidden_size"] = _sizes(weights, "captioner.project.weight", 2)[0]
        found["caption_word_size"] = _sizes(weights, "captioner.embedding.weight", 2)[1]
        found["caption_bidirectional"] = _is_bidirectional(weights, "captioner.recurrence")
        found["caption_max_length"] = int(told.number("max_len", 60.0))
        found["caption_dropout"] = told.number("input_dropout_p", 0.2)
    return found


def _encoders(weights: State, told: Told) -> dict[str, object]:
    """The options of the encoders that SCAN and its descendants share."""
    return {
        "bidirectional": _is_bidirectional(weights),
        "normalise_images": not told.flag("no_imgnorm"),
        "normalise_captions": not told.flag("no_txtnorm"),
        "weight_norm": "project.parametrizations.weight.original1" in weights,
    }


def _scan(weights: State, told: Told) -> dict[str, object]:
    return {
        **_encoders(weights, told),
        "direction": told.choice("cross_attn", "t2i", get_args(Direction)),
        "aggregation": told.choice("agg_func", "LogSumExp", get_args(Aggregation)),
        "normalisation": told.choice("raw_feature_norm", "clipped_l2norm", get_args(Normalisation)),
        "temperature": told.number("lambda_softmax", 9.0),
        "temperature_lse": told.number("lambda_lse", 6.0),
    }


def _pfan(weights: State, told: Told) -> dict[str, object]:
    blocks, position_size = _sizes(weights, "block_embedding.weight", 2)
    return {
        **_scan(weights, told),
        "feature_size": _sizes(weights, "position_query.weight", 2)[1],
        "position_size": position_size,
        "grid": math.isqrt(blocks - 1),
    }


def _bfan(weights: State, told: Told) -> dict[str, object]:
    return {
        **_encoders(weights, told),
        "focal": told.choice("focal_type", "equal", get_args(Focal)),
        "temperature": told.number("lambda_softmax", BFAN_TEMPERATURE),
    }


def _naaf(weights: State, told: Told) -> dict[str, object]:
    return {
        **_encoders(weights, told),
        "temperature": told.number("lambda_softmax", 20.0),
        "alpha": told.number("alpha", 2.0),
    }


def _saf(weights: State, told: Told) -> dict[str, object]:
    return {
        **_encoders(weights, told),
        "regions": _sizes(weights, "pool_image.local_norm.weight", 1)[0],
        "similarity_size": _sizes(weights, "score.weight", 2)[1],
    }


def _sgr(weights: State, told: Told) -> dict[str, object]:
    steps = {key.split(".")[1] for key in weights if key.startswith("reasoning.")}
    return {**_saf(weights, told), "steps": len(steps)}


OPTIONS: dict[str, Callable[[State, Told], dict[str, object]]] = {
    "vsepp": _vsepp,
    "vsrn": _vsrn,
    "scan": _scan,
    "bfan": _bfan,
    "pfan": _pfan,
    "sgr": _sgr,
    "saf": _saf,
    "naaf": _naaf,
}
