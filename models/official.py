"""Weights of the official implementations (VSE++, SCAN, VSRN, AOQ-VSRN) under our names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

State = Mapping[str, Tensor]
Options = Mapping[str, object]

# In the order of the official list of state dicts.
RENAMES: dict[str, list[tuple[str, str]]] = {
    "image": [
        (r"fc\.(weight|bias)", r"project.\1"),
        (r"Rs_GCN_1\.(.*)", r"reasoning.0.\1"),
        (r"Rs_GCN_2\.(.*)", r"reasoning.1.\1"),
        (r"Rs_GCN_3\.(.*)", r"reasoning.2.\1"),
        (r"Rs_GCN_4\.(.*)", r"reasoning.3.\1"),
        (r"(reasoning\.\d)\.g\.(.*)", r"\1.value.\2"),
        (r"(reasoning\.\d)\.W\.0\.(.*)", r"\1.output.\2"),
        (r"(reasoning\.\d)\.W\.1\.(.*)", r"\1.norm.\2"),
        (r"img_rnn\.(.*)", r"recurrence.\1"),
        (r"bn\.(.*)", r"norm.\1"),
    ],
    "text": [(r"embed\.weight", "text.embedding.weight"), (r"rnn\.(.*)", r"text.recurrence.\1")],
    "captioner": [
        (r"encoder\.vid2hid\.(.*)", r"captioner.project.\1"),
        (r"encoder\.rnn\.(.*)", r"captioner.recurrence.\1"),
        (r"decoder\.embedding\.weight", "captioner.embedding.weight"),
        (r"decoder\.attention\.linear1\.(.*)", r"captioner.attend.\1"),
        (r"decoder\.attention\.linear2\.(.*)", r"captioner.score.\1"),
        (r"decoder\.rnn\.(.*)_l0", r"captioner.cell.\1"),
        (r"decoder\.out\.(.*)", r"captioner.predict.\1"),
    ],
}


@dataclass(frozen=True)
class OfficialModel:
    """An official checkpoint as ours: `build_model(name, **options).load_state_dict(weights)`."""

    name: str
    options: dict[str, object]
    weights: dict[str, Tensor]


def from_official(parts: Sequence[State], options: Options) -> OfficialModel:
    """Recognise official state dicts (image encoder, text encoder, and VSRN's captioner if there is one).

    `options` are the official command-line options. The state dicts of VSE++, SCAN, BFAN and NAAF may have the
    same names and shapes, so there the options decide.
    """
    if len(parts) not in (2, 3):
        raise ValueError(f"An official model has 2 or 3 parts (image, text, captioner), got {len(parts)}.")
    if "Rs_GCN_1.theta.weight" in parts[0]:
        name, ours = "vsrn", _vsrn_options(parts, options)
    elif {"fc.weight", "fc.bias"} == set(parts[0]) and len(parts) == 2:
        name, ours = _fragments_or_global(parts[1], options)
    else:
        raise ValueError(
            "These are not the weights of VSE++, SCAN, VSRN or AOQ-VSRN on precomputed regions; the parts begin "
            f"with {[sorted(part)[:4] for part in parts]}."
        )
    weights: dict[str, Tensor] = {}
    for part, kind in zip(parts, RENAMES, strict=False):
        weights |= our_weights(part, kind)
    shapes = {
        "feature_size": weights["project.weight"].shape[1],
        "vocabulary_size": weights["text.embedding.weight"].shape[0],
        "embedding_size": weights["project.weight"].shape[0],
        "word_size": weights["text.embedding.weight"].shape[1],
    }
    return OfficialModel(name, {**shapes, **ours}, weights)


def our_weights(part: State, kind: str) -> dict[str, Tensor]:
    """One official state dict ("image", "text" or "captioner") under our names.

    1x1 convolutions become matrices; BatchNorm's batch counter, which torch < 0.4.1 did not save, becomes 0.
    """
    ours = {_our_name(key, kind): value.squeeze(-1) if value.ndim == 3 else value for key, value in part.items()}
    for key in list(ours):
        if key.endswith("running_mean"):
            ours.setdefault(key.replace("running_mean", "num_batches_tracked"), torch.tensor(0))
    return ours


def _our_name(key: str, kind: str) -> str:
    name = key
    for pattern, replacement in RENAMES[kind]:
        name = re.sub(f"^{pattern}$", replacement, name)
    if name == key:
        raise ValueError(f"The official {kind} weight {key!r} has no place in our models.")
    return name


def _vsrn_options(parts: Sequence[State], options: Options) -> dict[str, object]:
    _expect(options, "VSRN", measure="cosine", rnn_type="gru")
    found: dict[str, object] = {
        "variant": "f30k" if "bn.weight" in parts[0] else "coco",
        "normalise_axis": "regions",
        "absolute": bool(options.get("use_abs", False)),
        "normalise_images": not options.get("no_imgnorm", False),
        "caption_weight": 1.0 if len(parts) == 3 else 0.0,
    }
    if len(parts) == 3:
        found["caption_hidden_size"] = parts[2]["encoder.vid2hid.weight"].shape[0]
        found["caption_word_size"] = parts[2]["decoder.embedding.weight"].shape[1]
        found["caption_bidirectional"] = "encoder.rnn.weight_ih_l0_reverse" in parts[2]
        found["caption_max_length"] = options.get("max_len", 60)
        found["caption_dropout"] = options.get("input_dropout_p", 0.2)
    return found


def _fragments_or_global(text: State, options: Options) -> tuple[str, dict[str, object]]:
    found: dict[str, object] = {"bidirectional": "rnn.weight_ih_l0_reverse" in text}
    if {"cross_attn", "raw_feature_norm", "agg_func"} <= set(options):
        _expect(options, "SCAN", raw_feature_norm="clipped_l2norm", no_imgnorm=False, no_txtnorm=False)
        _expect_one_of(options, "SCAN", agg_func=["Mean", "LogSumExp"], cross_attn=["t2i", "i2t"])
        found["direction"], found["aggregation"] = options["cross_attn"], options["agg_func"]
        found["temperature"] = options.get("lambda_softmax")
        found["temperature_lse"] = options.get("lambda_lse", 6.0)
        return "scan", found
    if "measure" in options and "focal_type" not in options:
        _expect(options, "VSE++", measure="cosine", use_abs=False, no_imgnorm=False)
        return "vsepp", found
    raise ValueError(
        "These weights fit VSE++, SCAN, BFAN and NAAF alike, and the options do not say which: SCAN's have "
        "'cross_attn', 'raw_feature_norm' and 'agg_func', VSE++'s have 'measure'; "
        f"found {sorted(options)}. BFAN and NAAF have no model here."
    )


def _expect(options: Options, model: str, **values: object) -> None:
    _expect_one_of(options, model, **{key: [value] for key, value in values.items()})


def _expect_one_of(options: Options, model: str, **values: Sequence[object]) -> None:
    for key, allowed in values.items():
        if key in options and options[key] not in allowed:
            raise ValueError(
                f"The official {model} was trained with {key}={options[key]!r}; ours supports {list(allowed)}."
            )
