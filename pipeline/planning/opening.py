"""Open a chain's data folder as the dataset stage read it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.data.folder import LARGE, Split, open_split, present_files, split_fingerprint
from aoq.pipeline.digests import known_sha256
from aoq.pipeline.inputs import SAMPLED, Verify, take_in
from aoq.pipeline.planning.chain import Chain

WHOLE = 1 << 30
"""Arrays up to this many bytes are hashed whole; larger ones by the fingerprint's blocks, unless requested."""


def open_checked(chain: Chain, name: str, verify: Verify = "sampled") -> Split:
    """Open a split of the chain's folder.

    Raises:
        ValueError: for a file that differs from the one that the dataset stage read.
    """
    made = next((chain[stage] for stage in ("world", "prepared") if stage in chain.stages), None)
    if made is None:
        _check(chain, name, verify)
    else:
        made.opened()
    return open_split(chain.folder, name)


def take_in_files(chain: Chain, name: str) -> dict[str, str]:
    """Hash every file of a split, whole, on its first reading."""
    paths = present_files(chain.folder, name).values()
    for path in paths:
        take_in(_named(chain, path.name), partial(known_sha256, path))
    return {path.name: known_sha256(path) for path in paths}


def _check(chain: Chain, name: str, verify: Verify) -> None:
    dataset = chain["dataset"]
    recorded = dataset.manifest().get("folder_sha256", {}) if dataset.exists() else {}
    for suffix, path in present_files(chain.folder, name).items():
        if path.name in recorded:
            whole = verify == "full" or suffix not in LARGE or path.stat().st_size <= WHOLE
            take_in(_named(chain, path.name), partial(_as_recorded, path, recorded[path.name], dataset, whole))
    if (expected := _fingerprints(chain).get(name)) is not None:
        take_in(_named(chain, name), partial(_as_fingerprinted, chain.folder, name, expected))


def _named(chain: Chain, file: str) -> str:
    """Name a file uniquely: two folders of one data root may have files of one name."""
    dataset = chain.experiment.dataset
    return f"data/{dataset.folder or ('prepared' if dataset.source else 'demo')}/{file}"


def _fingerprints(chain: Chain) -> dict[str, str]:
    """Fingerprints of splits in keys."""
    dataset, evaluation, known = chain.experiment.dataset, chain.stages.get("evaluation"), {}
    if evaluation is not None and evaluation.ingredients.get("content"):
        known[chain.experiment.evaluation.split] = evaluation.ingredients["content"]
    splits = chain["dataset"].ingredients["splits"]
    return {**known, dataset.dev: splits["dev"], dataset.train: splits["train"]}


def _as_recorded(path: Path, sha256: str, dataset: Artifact, whole: bool) -> str:
    if not whole:
        return SAMPLED + sha256
    if known_sha256(path) != sha256:
        raise ValueError(
            f"{path} is not the file that was read when the dataset was made; put that one back, or, if the change is "
            f"meant, delete {dataset.path} and what was made from it, and run again."
        )
    return sha256


def _as_fingerprinted(folder: Path, name: str, expected: str) -> str:
    if split_fingerprint(folder, name) != expected:
        raise ValueError(f"{folder}: split {name!r} was changed after the run was planned; run again.")
    return expected
