"""Official programs: how to recognise them by weights and options, and their options as ours."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from torch import Tensor

from aoq.models.base import Aggregation, AttentionDirection, Normalisation
from aoq.models.bfan import Focal

StateDict = Mapping[str, Tensor]
Options = Mapping[str, object]

BFAN_TEMPERATURE = 20.0
NORMED = "project.parametrizations.weight.original1"
"""Our name of a weight-normalised projection."""
_IMAGE, TEXT, THIRD = range(3)
SIGNS: list[tuple[int, str, str, str]] = [
    (
        _IMAGE,
        r"(module\.)?(cnn|backbone)\.",
        "",
        "Its image encoder is a CNN on photographs; ours read precomputed regions",
    ),
    (TEXT, r"bert\.", "", "Its text encoder is BERT; of VSE∞, checkpoints with a GRU are read"),
    (TEXT, r"\w*rnn\..*_l[1-9]", "", "Its text encoder has several GRU layers (--num_layers), and ours has one"),
    (_IMAGE, "Rs_GCN_", "vsrn", "the image encoder has the graph layers Rs_GCN"),
    (_IMAGE, r"mlp\.", "vse_infinity", "the image encoder has an mlp beside its linear layer"),
    (_IMAGE, "position_embedding", "pfan", "the image encoder has a position_embedding"),
    (THIRD, "SGR_module", "sgr", "the similarity encoder has an SGR_module"),
    (THIRD, "SAF_module", "saf", "the similarity encoder has an SAF_module"),
    (THIRD, "", "", "Its third part has neither an SGR_module nor a SAF_module (AVE is no model of the paper)"),
    (TEXT, r"embed\.glove", "naaf", "the text encoder has GloVe's embed.glove"),
    (_IMAGE, r"fc\.weight_v$", "scan bfan naaf", "the image encoder is one linear layer, weight-normalised"),
    (_IMAGE, r"fc\.", "vsepp scan bfan naaf", "the image encoder is one linear layer, and there is no third part"),
]
"""A part, a weight's prefix in it, and the models that have it, or why none of ours has; the first match decides."""
TELLING = {
    "vsepp": ("measure",),
    "scan": ("cross_attn", "agg_func"),
    "bfan": ("focal_type",),
    "naaf": ("thres_safe",),
}
"""Options that distinguish programs whose weights have the same names and shapes."""


def recognise(parts: Sequence[StateDict], options: Options, name: str | None = None) -> tuple[str, str]:
    """Recognise the model of official state dicts; return it with the evidence. `name` chooses among fitting models."""
    fits, evidence = _fitting(parts)
    if name is not None:
        if name not in fits:
            raise ValueError(f"These weights cannot be {name!r} ({evidence}); they fit {', '.join(fits)}.")
        return name, "you named it"
    return (fits[0], evidence) if len(fits) == 1 else _recognise_by_options(fits, options)


def _fitting(parts: Sequence[StateDict]) -> tuple[list[str], str]:
    """Find the models that these weights fit, and why."""
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
        "These are not the weights of VSE++, SCAN, BFAN, PFAN, SGR, SAF, NAAF, VSRN, AOQ or VSE∞ on precomputed "
        f"regions; the parts begin with {[sorted(part)[:4] for part in parts]}."
    )


def _recognise_by_options(fits: Sequence[str], options: Options) -> tuple[str, str]:
    """Return the model that has such options.

    Where a program has the options of several models, their values decide: NAAF has learnt a threshold, and the
    temperature is 20 in BFAN, at most 9 in SCAN.
    """
    candidates = [name for name in fits if all(key in options for key in TELLING[name])]
    if len(candidates) == 1:
        return candidates[0], f"the options have its {' and '.join(TELLING[candidates[0]])}"
    several = f"the options of {', '.join(candidates)} are there (--model chooses)"
    if "naaf" in candidates and options["thres_safe"]:
        return "naaf", f"{several}, and thres_safe = {options['thres_safe']} is naaf's"
    if "scan" in candidates and set(candidates) <= {"scan", "bfan", "naaf"}:
        temperature = options.get("lambda_softmax")
        name = "bfan" if "bfan" in candidates and temperature == BFAN_TEMPERATURE else "scan"
        return name, f"{several}, and lambda_softmax = {temperature} is {name}'s"
    telling = ", ".join(f"{' and '.join(TELLING[name])} ({name})" for name in fits)
    there = [key for name in fits for key in TELLING[name] if key in options]
    raise ValueError(
        f"These weights fit {', '.join(fits)}, and the options do not say which: among {telling} they have "
        f"{' and '.join(there) or 'none'}. Name the model with --model."
    )


class OfficialOptions:
    """Official command-line options; absent ones take the official default and are noted."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.assumed: dict[str, object] = {}

    def __call__(self, key: str, default: Any, supported: Any = None) -> Any:
        """Return an option of the default's kind; `supported` is a Literal of the values that ours takes."""
        if key not in self.options:
            self.assumed[key] = default
        value = self.options.get(key, default)
        if supported is not None and value not in get_args(supported):
            raise ValueError(f"It was trained with {key} = {value!r}; ours supports {', '.join(get_args(supported))}.")
        if isinstance(default, float):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"The option {key} is {value!r}, and should be a finite number.")
            return float(value)
        return bool(value) if isinstance(default, bool) else value

    def expect(self, **values: object) -> None:
        """Raise if an option is present with another value."""
        for key, expected in values.items():
            if self.options.get(key, expected) != expected:
                raise ValueError(f"It was trained with {key} = {self.options[key]!r}; ours supports {expected!r} only.")


_SCAN = {
    "direction": ("cross_attn", "t2i", AttentionDirection),
    "aggregation": ("agg_func", "LogSumExp", Aggregation),
    "normalisation": ("raw_feature_norm", "clipped_l2norm", Normalisation),
    "temperature": ("lambda_softmax", 9.0),
    "temperature_lse": ("lambda_lse", 6.0),
}
RENAMED: dict[str, dict[str, tuple[Any, ...]]] = {
    "scan": _SCAN,
    "pfan": _SCAN,
    "bfan": {"focal": ("focal_type", "equal", Focal), "temperature": ("lambda_softmax", BFAN_TEMPERATURE)},
    "naaf": {"temperature": ("lambda_softmax", 20.0), "alpha": ("alpha", 2.0)},
}
"""Our options that follow from an official one: its name, its default, and the values that ours takes."""
_SGRAF = {"regions": ("pool_image.local_norm.weight", 0), "similarity_size": ("score.weight", 1)}
_SIZES: dict[str, dict[str, tuple[str, int]]] = {
    "pfan": {"feature_size": ("position_query.weight", 1), "position_size": ("block_embedding.weight", 1)},
    "sgr": _SGRAF,
    "saf": _SGRAF,
}
"""Our options that are the length of a weight (our name) along an axis."""


def our_options(name: str, weights: StateDict, take: OfficialOptions) -> dict[str, object]:
    """Return our options for these weights (under our names), from their sizes and the official options."""
    project = NORMED if NORMED in weights else "project.weight"
    options: dict[str, object] = {
        "feature_size": _size(weights, project, 1),
        "vocabulary_size": _size(weights, "text.embedding.weight", 0),
        "embedding_size": _size(weights, project, 0),
        "word_size": _size(weights, "text.embedding.weight", 1),
    }
    if name == "vsrn":
        return options | _vsrn(weights, take)
    if name == "vse_infinity":
        return options | _vse_infinity(weights, take)
    options["bidirectional"] = "text.recurrence.weight_ih_l0_reverse" in weights
    if name == "vsepp":
        take.expect(measure="cosine", use_abs=False, no_imgnorm=False)
        return options
    options["normalise_images"] = not take("no_imgnorm", False)
    options["normalise_captions"] = not take("no_txtnorm", False)
    options["weight_norm"] = NORMED in weights
    options |= {ours: take(*official) for ours, official in RENAMED.get(name, {}).items()}
    options |= {ours: _size(weights, *place) for ours, place in _SIZES.get(name, {}).items()}
    if name == "pfan":
        options["grid"] = math.isqrt(_size(weights, "block_embedding.weight", 0) - 1)
    elif name == "sgr":
        options["steps"] = len({key.split(".")[1] for key in weights if key.startswith("reasoning.")})
    return options


def _vsrn(weights: StateDict, take: OfficialOptions) -> dict[str, object]:
    take.expect(measure="cosine", rnn_type="gru")
    has_captioner = any(key.startswith("captioner.") for key in weights)
    options: dict[str, object] = {
        "variant": "f30k" if "norm.weight" in weights else "coco",
        "normalise_axis": "regions",
        "absolute": take("use_abs", False),
        "normalise_images": not take("no_imgnorm", False),
        "caption_weight": 1.0 if has_captioner else 0.0,
    }
    if has_captioner:
        options["caption_hidden_size"] = _size(weights, "captioner.project.weight", 0)
        options["caption_word_size"] = _size(weights, "captioner.embedding.weight", 1)
        options["caption_bidirectional"] = "captioner.recurrence.weight_ih_l0_reverse" in weights
        options["caption_max_length"] = int(take("max_len", 60.0))
        options["caption_dropout"] = take("input_dropout_p", 0.2)
    return options


def _vse_infinity(weights: StateDict, take: OfficialOptions) -> dict[str, object]:
    """Return the options of VSE∞; the last word of its vocabulary is <mask>."""
    take.expect(precomp_enc_type="basic", no_imgnorm=False, no_txtnorm=False)
    return {"vocabulary_size": _size(weights, "text.embedding.weight", 0) - 1, "augment_words": "mask"}


def _size(weights: StateDict, key: str, axis: int) -> int:
    if key not in weights:
        raise ValueError(f"The weight {key} (our name) is missing.")
    shape = tuple(weights[key].shape)
    if len(shape) <= axis:
        raise ValueError(f"The weight {key} (our name) is of shape {shape}, and should have {axis + 1} axes.")
    return shape[axis]
