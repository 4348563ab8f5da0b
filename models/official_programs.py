"""The official programs: what their weights and options are recognised by, and what the options mean in our models."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from torch import Tensor

from aoq.models.attention import Aggregation, Direction, Normalisation
from aoq.models.bfan import Focal

State = Mapping[str, Tensor]
Options = Mapping[str, object]

BFAN_TEMPERATURE = 20.0
NORMED = "project.parametrizations.weight.original1"
"""Our name of a weight-normalised projection."""
IMAGE, TEXT, THIRD = range(3)
SIGNS: list[tuple[int, str, str, str]] = [
    (
        IMAGE,
        r"cnn\.",
        "",
        "Its image encoder is a CNN on photographs; ours read precomputed regions (f30k_precomp)",
    ),
    (TEXT, r"\w*rnn\..*_l[1-9]", "", "Its text encoder has several GRU layers (--num_layers), and ours has one"),
    (IMAGE, "Rs_GCN_", "vsrn", "the image encoder has the graph layers Rs_GCN"),
    (IMAGE, "position_embedding", "pfan", "the image encoder has a position_embedding"),
    (THIRD, "SGR_module", "sgr", "the similarity encoder has an SGR_module"),
    (THIRD, "SAF_module", "saf", "the similarity encoder has an SAF_module"),
    (THIRD, "", "", "Its third part has neither an SGR_module nor a SAF_module (AVE is no model of the paper)"),
    (TEXT, r"embed\.glove", "naaf", "the text encoder has GloVe's embed.glove"),
    (IMAGE, r"fc\.weight_v$", "scan bfan naaf", "the image encoder is one linear layer, weight-normalised"),
    (IMAGE, r"fc\.", "vsepp scan bfan naaf", "the image encoder is one linear layer, and there is no third part"),
]
"""A part, how a weight in it begins, and the models that have it, or why it is none of ours; the first decides."""
TELLING = {
    "vsepp": ("measure",),
    "scan": ("cross_attn", "agg_func"),
    "bfan": ("focal_type",),
    "naaf": ("thres_safe",),
}
"""Options that no other of the programs has whose weights look alike."""


def recognise(parts: Sequence[State], options: Options, name: str | None = None) -> tuple[str, str]:
    """The model of official state dicts, and what tells; `name` chooses among those that the weights fit."""
    fits, evidence = _fitting(parts)
    if name is not None:
        if name not in fits:
            raise ValueError(f"These weights cannot be {name!r} ({evidence}); they fit {', '.join(fits)}.")
        return name, "you named it"
    return (fits[0], evidence) if len(fits) == 1 else _told_by(fits, options)


def _fitting(parts: Sequence[State]) -> tuple[list[str], str]:
    """The models that these weights may be, and why."""
    if len(parts) not in (2, 3):
        raise ValueError(
            f"An official model has 2 or 3 parts (image, text, captioner or similarity); got {len(parts)}."
        )
    for number, pattern, names, evidence in SIGNS:
        if number < len(parts) and any(re.match(pattern, key) for key in parts[number]):
            if not names:
                raise ValueError(f"{evidence}; it begins with {sorted(parts[number])[:4]}.")
            return names.split(), evidence
    raise ValueError(
        "These are not the weights of VSE++, SCAN, BFAN, PFAN, SGR, SAF, NAAF, VSRN or AOQ on precomputed regions; "
        f"the parts begin with {[sorted(part)[:4] for part in parts]}."
    )


def _told_by(fits: Sequence[str], options: Options) -> tuple[str, str]:
    """Which of the models has such options.

    Programs that hold the options of several models leave values to tell: NAAF has learnt a threshold, and the
    temperature is 20 in BFAN, at most 9 in SCAN.
    """
    told = [name for name in fits if all(key in options for key in TELLING[name])]
    if len(told) == 1:
        return told[0], f"the options have its {' and '.join(TELLING[told[0]])}"
    several = f"the options of {', '.join(told)} are there (--model chooses)"
    if "naaf" in told and options["thres_safe"]:
        return "naaf", f"{several}, and thres_safe = {options['thres_safe']} is naaf's"
    if "scan" in told and set(told) <= {"scan", "bfan", "naaf"}:
        temperature = options.get("lambda_softmax")
        name = "bfan" if "bfan" in told and temperature == BFAN_TEMPERATURE else "scan"
        return name, f"{several}, and lambda_softmax = {temperature} is {name}'s"
    telling = ", ".join(f"{' and '.join(TELLING[name])} ({name})" for name in fits)
    there = [key for name in fits for key in TELLING[name] if key in options]
    raise ValueError(
        f"These weights fit {', '.join(fits)} alike, and the options do not say which: of {telling} they have "
        f"{' and '.join(there) or 'none'}. Name the model with --model."
    )


class Told:
    """The official command-line options; those that are not there, and stand at the official default, are noted."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.assumed: dict[str, object] = {}

    def __call__(self, key: str, default: Any, supported: Any = None) -> Any:
        """An option, of the default's kind; `supported` is a Literal of the values that ours takes."""
        if key not in self.options:
            self.assumed[key] = default
        value = self.options.get(key, default)
        if supported is not None and value not in get_args(supported):
            raise ValueError(f"It was trained with {key} = {value!r}; ours supports {', '.join(get_args(supported))}.")
        if isinstance(default, float):
            if not isinstance(value, int | float):
                raise ValueError(f"The option {key} is {value!r}, and should be a number.")
            return float(value)
        return bool(value) if isinstance(default, bool) else value

    def expect(self, **values: object) -> None:
        """Raise if an option is there with any other value."""
        for key, expected in values.items():
            if self.options.get(key, expected) != expected:
                raise ValueError(f"It was trained with {key} = {self.options[key]!r}; ours supports {expected!r} only.")


def our_options(name: str, weights: State, told: Told) -> dict[str, object]:
    """What builds the model of these weights (under our names): their sizes, and what the options say."""
    embedding_size, feature_size = _sizes(weights, NORMED if NORMED in weights else "project.weight", 2)
    vocabulary_size, word_size = _sizes(weights, "text.embedding.weight", 2)
    return {
        "feature_size": feature_size,
        "vocabulary_size": vocabulary_size,
        "embedding_size": embedding_size,
        "word_size": word_size,
        **OPTIONS[name](weights, told),
    }


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
        "absolute": told("use_abs", False),
        "normalise_images": not told("no_imgnorm", False),
        "caption_weight": 1.0 if has_captioner else 0.0,
    }
    if has_captioner:
        found["caption_hidden_size"] = _sizes(weights, "captioner.project.weight", 2)[0]
        found["caption_word_size"] = _sizes(weights, "captioner.embedding.weight", 2)[1]
        found["caption_bidirectional"] = _is_bidirectional(weights, "captioner.recurrence")
        found["caption_max_length"] = int(told("max_len", 60.0))
        found["caption_dropout"] = told("input_dropout_p", 0.2)
    return found


def _encoders(weights: State, told: Told) -> dict[str, object]:
    """The options of the encoders that SCAN and its descendants share."""
    return {
        "bidirectional": _is_bidirectional(weights),
        "normalise_images": not told("no_imgnorm", False),
        "normalise_captions": not told("no_txtnorm", False),
        "weight_norm": NORMED in weights,
    }


def _scan(weights: State, told: Told) -> dict[str, object]:
    return {
        **_encoders(weights, told),
        "direction": told("cross_attn", "t2i", Direction),
        "aggregation": told("agg_func", "LogSumExp", Aggregation),
        "normalisation": told("raw_feature_norm", "clipped_l2norm", Normalisation),
        "temperature": told("lambda_softmax", 9.0),
        "temperature_lse": told("lambda_lse", 6.0),
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
        "focal": told("focal_type", "equal", Focal),
        "temperature": told("lambda_softmax", BFAN_TEMPERATURE),
    }


def _naaf(weights: State, told: Told) -> dict[str, object]:
    return {
        **_encoders(weights, told),
        "temperature": told("lambda_softmax", 20.0),
        "alpha": told("alpha", 2.0),
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
