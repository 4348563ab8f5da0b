"""Weights of the official implementations under our names, with the options that they were trained with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aoq.models import build_model
from aoq.models.official_programs import OfficialOptions, Options, StateDict, our_options, recognise

MOST_NAMES = 8

RENAMES: dict[str, list[tuple[str, str]]] = {
    "image": [
        (r"fc\.(weight|bias)", r"project.\1"),
        (r"fc\.weight_g", r"project.parametrizations.weight.original0"),
        (r"fc\.weight_v", r"project.parametrizations.weight.original1"),
        (r"fc_att\.(.*)", r"position_query.\1"),
        (r"position_embedding\.weight", r"block_embedding.weight"),
        *((rf"Rs_GCN_{n + 1}\.(.*)", rf"reasoning.{n}.\1") for n in range(4)),
        (r"(reasoning\.\d)\.g\.(.*)", r"\1.value.\2"),
        (r"(reasoning\.\d)\.W\.0\.(.*)", r"\1.output.\2"),
        (r"(reasoning\.\d)\.W\.1\.(.*)", r"\1.norm.\2"),
        (r"img_rnn\.(.*)", r"recurrence.\1"),
        (r"bn\.(.*)", r"norm.\1"),
        (r"mlp\.layers\.0\.(.*)", r"transform.0.\1"),
        (r"mlp\.bns\.0\.(.*)", r"transform.1.\1"),
        (r"mlp\.layers\.1\.(.*)", r"transform.3.\1"),
        (r"gpool\.gru\.(.*)", r"pool_regions.recurrence.\1"),
        (r"gpool\.linear\.weight", r"pool_regions.score.weight"),
    ],
    "text": [
        (r"embed\.(?:glove\.)?weight", "text.embedding.weight"),
        (r"(?:cap_)?rnn\.(.*)", r"text.recurrence.\1"),
        (r"gpool\.gru\.(.*)", r"pool_words.recurrence.\1"),
        (r"gpool\.linear\.weight", r"pool_words.score.weight"),
    ],
    "captioner": [
        (r"encoder\.vid2hid\.(.*)", r"captioner.project.\1"),
        (r"encoder\.rnn\.(.*)", r"captioner.recurrence.\1"),
        (r"decoder\.embedding\.weight", "captioner.embedding.weight"),
        (r"decoder\.attention\.linear1\.(.*)", r"captioner.attend.\1"),
        (r"decoder\.attention\.linear2\.(.*)", r"captioner.score.\1"),
        (r"decoder\.rnn\.(.*)_l0", r"captioner.cell.\1"),
        (r"decoder\.out\.(.*)", r"captioner.predict.\1"),
    ],
    "similarity": [
        (r"v_global_w\.(.*)", r"pool_image.\1"),
        (r"t_global_w\.(.*)", r"pool_caption.\1"),
        (r"(pool_\w+)\.embedding_(local|common)\.0\.(.*)", r"\1.\2.\3"),
        (r"(pool_\w+)\.embedding_local\.1\.(.*)", r"\1.local_norm.\2"),
        (r"(pool_\w+)\.embedding_global\.0\.(.*)", r"\1.whole.\2"),
        (r"(pool_\w+)\.embedding_global\.1\.(.*)", r"\1.whole_norm.\2"),
        (r"sim_tranloc_w\.(.*)", r"local_similarity.\1"),
        (r"sim_tranglo_w\.(.*)", r"global_similarity.\1"),
        (r"sim_eval_w\.(.*)", r"score.\1"),
        (r"SGR_module\.(\d)\.graph_(query|key)_w\.(.*)", r"reasoning.\1.\2.\3"),
        (r"SGR_module\.(\d)\.sim_graph_w\.(.*)", r"reasoning.\1.output.\2"),
        (r"SAF_module\.attn_sim_w\.(.*)", r"gate.\1"),
        (r"SAF_module\.bn\.(.*)", r"norm.\1"),
    ],
}
UNUSED = re.compile(r"mlp\.bns\.1\.")
"""Official weights without a use: VSE∞'s MLP has a BatchNorm too many."""


@dataclass(frozen=True)
class OfficialModel:
    """An official checkpoint as ours: `build_model(name, **options).load_state_dict(weights)`.

    `evidence` says how it was recognised; `assumed` are the official options that were absent, at their defaults.
    """

    name: str
    options: dict[str, object]
    weights: dict[str, Tensor]
    evidence: str
    assumed: dict[str, object]


def from_official(parts: Sequence[StateDict], options: Options, name: str | None = None) -> OfficialModel:
    """Convert official state dicts: image encoder, text encoder, and a captioner or similarity encoder if any.

    `options` are the official command-line options. The weights of VSE++, SCAN, BFAN and NAAF may have the same names
    and shapes; there the options decide, or `name`. Raises unless the model takes exactly these weights.
    """
    recognised, evidence = recognise(parts, options, name)
    kinds = ("image", "text", "captioner" if recognised == "vsrn" else "similarity")
    weights: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for part, kind in zip(parts, kinds, strict=False):
        weights |= our_weights(part, kind)
        origin |= {_our_name(key, kind): f"{key} ({kind})" for key in part}
    take = OfficialOptions(options)
    ours = our_options(recognised, weights, take)
    if recognised == "naaf":  # what it has learnt besides its weights: the official code keeps it among the options
        numbers = {"threshold": ("thres", 0.0), "safe_threshold": ("thres_safe", 0.0), "alpha": ("alpha", 2.0)}
        weights |= {name: torch.tensor(take(*official)) for name, official in numbers.items()}
        statistics = [take(key, 0.0) for key in ("mean_pos", "stnd_pos", "mean_neg", "stnd_neg")]
        weights["statistics"] = torch.tensor(statistics)
    _check_weights(recognised, ours, weights, origin)
    return OfficialModel(recognised, ours, weights, evidence, take.assumed)


def our_weights(part: StateDict, kind: str) -> dict[str, Tensor]:
    """Rename one official state dict (a key of `RENAMES`) to our names; 1x1 convolutions become matrices."""
    names = {key: _our_name(key, kind) for key in part if not UNUSED.match(key)}
    if placeless := [key for key, name in names.items() if name == key]:
        raise ValueError(f"These official {kind} weights have no place in our models: {_listed(placeless)}.")
    ours = {name: part[key].squeeze(-1) if part[key].ndim == 3 else part[key] for key, name in names.items()}
    # torch < 0.4.1 did not save BatchNorm's batch counter.
    means = [name for name in ours if name.endswith("running_mean")]
    return {name.replace("running_mean", "num_batches_tracked"): torch.tensor(0) for name in means} | ours


def _our_name(key: str, kind: str) -> str:
    for pattern, replacement in RENAMES[kind]:
        key = re.sub(f"^{pattern}$", replacement, key)
    return key


def _check_weights(name: str, options: Mapping[str, Any], weights: StateDict, origin: Mapping[str, str]) -> None:
    """Report all mismatches of a strict load at once; `origin` are the official names."""
    with torch.device("meta"):  # shapes are enough, and cost nothing
        expected = build_model(name, **options).state_dict()
    shapes = {key: (tuple(weights[key].shape), tuple(expected[key].shape)) for key in expected if key in weights}
    problems = {
        "missing (our names)": [key for key in expected if key not in weights],
        "without a place": [origin.get(key, key) for key in weights if key not in expected],
        "of another shape": [f"{origin.get(key, key)} is {a}, not {b}" for key, (a, b) in shapes.items() if a != b],
    }
    if any(problems.values()):
        listed = [f"{what}: {_listed(names)}" for what, names in problems.items() if names]
        raise ValueError(f"These are not the weights of one whole {name}; {'; '.join(listed)}.")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
