"""TOML files by name: experiments, and studies in a folder of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aoq
from aoq.pipeline.reading import read_toml
from aoq.pipeline.terminal import did_you_mean

CONFIGS = (Path("configs"), Path(aoq.__path__[0]) / "configs")
"""Folders of experiments: those in the current directory take precedence over shipped ones of the same name."""


def names_in(folders: tuple[Path, ...] = CONFIGS) -> list[str]:
    """Names of the experiments in the folders, or of the studies in theirs."""
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def read_named(what: str, name: str, folders: tuple[Path, ...]) -> tuple[Path, dict[str, Any]]:
    """Read the first TOML file `<name>.toml` in the folders, or the file `name`; return its path and content."""
    named = [Path(name)] if name.endswith(".toml") else [folder / f"{name}.toml" for folder in folders]
    path = next((path for path in named if path.exists()), None)
    if path is not None and not path.stem.strip("."):
        raise ValueError(f"the {what} file {path} has no name before .toml, and runs are named so; give it one.")
    if path is None and name.endswith(".toml"):
        raise ValueError(f"there is no {what} file {Path(name).absolute()}.")
    if path is None:
        known = names_in(folders)
        if question := did_you_mean(name, known):
            raise ValueError(f"unknown {what} {name!r}; {question} `aoq list` shows all.")
        raise ValueError(f"unknown {what} {name!r}; known are {known}, or give the path of a .toml file.")
    return path, read_toml(path)
