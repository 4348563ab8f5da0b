"""Which model official weights are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aoq.models.official_options import BFAN_TEMPERATURE, Options, State

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
    image, text, *third = parts
    if _has(image, r"cnn\."):
        raise ValueError(
            "Its image encoder is a CNN on photographs, and ours read region features; take a checkpoint that was "
            "trained on precomputed ones (--data_name coco_precomp, f30k_precomp)."
        )
    if _has(text, r"\w*rnn\..*_l[1-9]"):
        raise ValueError("Its text encoder has several GRU layers (--num_layers), and ours has one.")
    if _has(image, "Rs_GCN_"):
        return ["vsrn"], "the image encoder has the graph layers Rs_GCN"
    if _has(image, "position_embedding"):
        return ["pfan"], "the image encoder has a position_embedding"
    if third:
        return _similarity_encoder(third[0])
    if _has(text, r"embed\.glove"):
        return ["naaf"], "the text encoder has GloVe's embed.glove"
    if _has(image, r"fc\.weight_v$"):
        return ["scan", "bfan", "naaf"], "the image encoder is one linear layer, weight-normalised"
    if _has(image, r"fc\."):
        return ["vsepp", "scan", "bfan", "naaf"], "the image encoder is one linear layer, and there is no third part"
    raise ValueError(
        "These are not the weights of VSE++, SCAN, BFAN, PFAN, SGR, SAF, NAAF, VSRN or AOQ on precomputed regions; "
        f"the parts begin with {[sorted(part)[:4] for part in parts]}."
    )


def _similarity_encoder(part: State) -> tuple[list[str], str]:
    for name, key in (("sgr", "SGR_module"), ("saf", "SAF_module")):
        if _has(part, key):
            return [name], f"the similarity encoder has an {key}"
    raise ValueError(
        "Its third part has neither an SGR_module nor a SAF_module (the official --module_name AVE is no model of the "
        f"paper), and beside a plain image encoder it can be nothing else; it begins with {sorted(part)[:4]}."
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


def _has(part: State, pattern: str) -> bool:
    return any(re.match(pattern, key) for key in part)
