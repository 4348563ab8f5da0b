"""Hard negatives for image–text retrieval, and for any two sets of items compared by their vectors.

    table = aoq.hard_negatives(images, captions, image_of, h=50)     # exact top-h lists, in memory
    table.i2t.negative_ids[17]                                       # the hardest captions for image 17
    loader = DataLoader(pairs, batch_sampler=aoq.BatchSampler(table, batch_size=128))
    loss = aoq.adap_off_quin(similarities, margin_online=0.2, margin_offline=0.0, alpha=0.3, beta=1.5).total

Each name is imported when it is first used, so `import aoq` loads neither torch nor other heavy packages.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
# A checkout holds the subpackages beside this folder; only mypy, griffe and pytest need the links that are in it.
if (_HERE / "pipeline").is_symlink() or not (_HERE / "pipeline").is_dir():
    __path__.insert(0, str(_HERE.parent))

_MODULES = {
    "models": "build_model",
    "models.base": "Captions Code EmbeddingModel Images MatchingModel",
    "pipeline.evaluation.evaluate": "evaluate recalls",
    "pipeline.losses": "plateau",
    "pipeline.losses.aoq": "adap_off_quin adap_off_tri adap_pos_quin adaptive_weight off_quin off_tri online_quin "
    "only_offline squared_off_quin",
    "pipeline.losses.companions": "with_companions",
    "pipeline.losses.info_nce": "LearntTemperature adap_info_nce info_nce",
    "pipeline.losses.pace": "Pace",
    "pipeline.losses.sigmoid": "sigmoid_loss",
    "pipeline.losses.similarities": "LossValue OfflineSimilarities Similarities guided_matches offline_similarities "
    "positive_pairs",
    "pipeline.losses.triplet": "online_triplet sum_triplet",
    "pipeline.mining.hard_negatives": "hard_negatives",
    "pipeline.search.lists": "NegativeLists",
    "pipeline.tables.audit": "audit",
    "pipeline.tables.statistics": "compare describe",
    "pipeline.tables.table": "NegativeTable read_table",
    "pipeline.training.batch_sampler": "BatchSampler",
    "pipeline.training.checkpoint": "load_model",
    "pipeline.training.rotation": "Rotation",
}
_HOMES = {name: f"aoq.{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("aoq")
    if name not in _HOMES:
        raise AttributeError(f"aoq has no {name!r}; its public names are {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
