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

_IMAGE, TEXT, THIRD = range(3)
NO_CNN = "Its image encoder is a CNN on photographs; ours read precomputed regions"
SIGNS: list[tuple[int, str, str, str]] = [
    (_IMAGE, r"(module\.)?(cnn|backbone)\.", "", NO_CNN),
    (TEXT, r"bert\.", "", "Its text encoder is BERT; of VSE∞, checkpoints with a GRU are read"),
    (TEXT, r"\w*rnn\..*_l[1-9]", "", "Its text encoder has several GRU layers (--num_layers), and ours has one"),
    (_IMAGE, "Rs_GCN_", "vsrn", "the image encoder has the graph layers Rs_GCN"),
    (_IMAGE, r"mlp\.", "vse_infinity", "the image encoder has an mlp beside its linear layer"),
    (_IMAGE, "position_embedding", "pfan", "the image encoder has a position_embedding"),
    (THIRD, "SGR_module", "sgr", "the similarity encoder has an SGR_module"),
    (THIRD, "SAF_module", "saf", "the similarity encoder has an SAF_module"),
    (THIRD, "", "", "Its third part has neither an SGR_module nor a SAF_module (AVE is not in the paper)"),
    (TEXT, r"embed\.glove", "naaf", "the text encoder has GloVe's embed.glove"),
    (_IMAGE, r"fc\.weight_v$", "scan bfan naaf", "the image encoder is one linear layer, weight-normalised"),
    (_IMAGE, r"fc\.", "vsepp scan bfan naaf", "the image encoder is one linear layer, and there is no third part"),
]
"""A part, a weight's prefix in it, and the models that have it, or why none of ours has; the first match decides."""
TELLING = {"vsepp": ("measure",), "scan": ("cross_attn", "agg_func"), "bfan": ("focal_type",), "naaf": ("thres_safe",)}
"""Options that distinguish programs whose weights have the same names and shapes."""

EXPECTED: dict[str, dict[str, object]] = {
    "vsepp": {"measure": "cosine", "use_abs": False, "no_imgnorm": False},
    "vsrn": {"measure": "cosine", "rnn_type": "gru"},
    "vse_infinity": {"precomp_enc_type": "basic", "no_imgnorm": False, "no_txtnorm": False},
}
"""Values that official options must have if they are there."""
BFAN_TEMPERATURE = 20.0
_SCAN: dict[str, tuple[Any, ...]] = {
    "direction": ("cross_attn", "t2i", AttentionDirection),
    "aggregation": ("agg_func", "LogSumExp", Aggregation),
    "normalisation": ("raw_feature_norm", "clipped_l2norm", Normalisation),
    "temperature": ("lambda_softmax", 9.0),
    "temperature_lse": ("lambda_lse", 6.0),
}
MAPPED_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "scan": _SCAN,
    "pfan": _SCAN,
    "bfan": {"focal": ("focal_type", "equal", Focal), "temperature": ("lambda_softmax", BFAN_TEMPERATURE)},
    "naaf": {"temperature": ("lambda_softmax", 20.0), "alpha": ("alpha", 2.0)},
    "vsrn": {"absolute": ("use_abs", False)},
    "captioner": {"caption_max_length": ("max_len", 60), "caption_dropout": ("input_dropout_p", 0.2)},
}
"""Our options that map to an official one: its name, its default, and the values that ours takes."""
NEGATED = {"normalise_images": "no_imgnorm", "normalise_captions": "no_txtnorm"}
"""Our options that are the opposite of an official one, false by default."""
PROJECT, NORMED = "project.weight", "project.parametrizations.weight.original1"
"""Our names of a projection, plain or weight-normalised."""
_SGRAF_SIZES = {"regions": ("pool_image.local_norm.weight", 0), "similarity_size": ("score.weight", 1)}
SIZES: dict[str, dict[str, tuple[str, int]]] = {
    "pfan": {"feature_size": ("position_query.weight", 1), "position_size": ("block_embedding.weight", 1)},
    "sgr": _SGRAF_SIZES,
    "saf": _SGRAF_SIZES,
    "captioner": {
        "caption_hidden_size": ("captioner.project.weight", 0),
        "caption_word_size": ("captioner.embedding.weight", 1),
    },
}
"""Our options that are the length of a weight (our name) along an axis."""


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
    """Return the model that has such options; where several have them, their values decide."""
    candidates = [name for name in fits if all(key in options for key in TELLING[name])]
    if len(candidates) == 1:
        return candidates[0], f"the options have its {' and '.join(TELLING[candidates[0]])}"
    several = f"the options of {', '.join(candidates)} are there (--model chooses)"
    if "naaf" in candidates and options["thres_safe"]:  # it has learnt a threshold
        return "naaf", f"{several}, and thres_safe = {options['thres_safe']} is naaf's"
    if "scan" in candidates and "vsepp" not in candidates:
        temperature = options.get("lambda_softmax")  # 20 in BFAN, at most 9 in SCAN
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
        """Return an option of the default's type; `supported` is a Literal of the values that ours takes."""
        if key not in self.options:
            self.assumed[key] = default
        value, kind = self.options.get(key, default), type(default)
        if supported is not None and value not in get_args(supported):
            raise ValueError(f"It was trained with {key} = {value!r}; ours supports {', '.join(get_args(supported))}.")
        if kind in (int, float) and not (isinstance(value, int | float) and math.isfinite(value)):
            raise ValueError(f"The option {key} is {value!r}, but should be a finite number.")
        return value if kind is str else kind(value)


def our_options(name: str, weights: StateDict, take: OfficialOptions) -> dict[str, object]:
    """Return our options for these weights (under our names), from their sizes and the official options."""
    for key, expected in EXPECTED.get(name, {}).items():
        if take.options.get(key, expected) != expected:
            raise ValueError(f"It was trained with {key} = {take.options[key]!r}; ours supports {expected!r} only.")
    project, words = NORMED if NORMED in weights else PROJECT, "text.embedding.weight"
    sizes = {"feature_size": (project, 1), "vocabulary_size": (words, 0)}
    sizes |= {"embedding_size": (project, 0), "word_size": (words, 1)}
    options: dict[str, object] = {}
    has_captioner = any(key.startswith("captioner.") for key in weights)
    if name == "vsrn":
        options["variant"] = "f30k" if "norm.weight" in weights else "coco"
        options["normalise_images"] = not take("no_imgnorm", False)
        options["caption_weight"] = float(has_captioner)
    elif name != "vse_infinity":
        options["bidirectional"] = "text.recurrence.weight_ih_l0_reverse" in weights
        if name != "vsepp":
            options |= {ours: not take(theirs, False) for ours, theirs in NEGATED.items()}
            options["weight_norm"] = NORMED in weights
    for part in (name, "captioner") if has_captioner else (name,):
        options |= {ours: take(*theirs) for ours, theirs in MAPPED_OPTIONS.get(part, {}).items()}
        sizes |= SIZES.get(part, {})
    options = {ours: _weight_size(weights, *place) for ours, place in sizes.items()} | options
    if has_captioner:
        options["caption_bidirectional"] = "captioner.recurrence.weight_ih_l0_reverse" in weights
    if name == "pfan":
        options["grid"] = math.isqrt(_weight_size(weights, "block_embedding.weight", 0) - 1)
    elif name == "sgr":
        options["steps"] = len({key.split(".")[1] for key in weights if key.startswith("reasoning.")})
    elif name == "vse_infinity":  # the last word of its vocabulary is <mask>
        options |= {"vocabulary_size": _weight_size(weights, words, 0) - 1, "augment_words": "mask"}
    return options


def _weight_size(weights: StateDict, key: str, axis: int) -> int:
    if key not in weights:
        raise ValueError(f"The weight {key} (our name) is missing.")
    shape = tuple(weights[key].shape)
    if len(shape) <= axis:
        raise ValueError(f"The weight {key} (our name) has shape {shape}, but should have {axis + 1} axes.")
    return shape[axis]
