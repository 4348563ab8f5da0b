"""aoq's sections of luigi.cfg: the user's file in the current directory overrides the one shipped with aoq."""

from __future__ import annotations

import configparser
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import aoq
from aoq.pipeline.engine import Engine
from aoq.pipeline.reading import reading

OWN = Path("luigi.cfg")
try:
    import luigi
    from luigi.configuration import get_config
except (configparser.Error, UnicodeError) as error:  # Luigi reads luigi.cfg when it is imported
    sys.exit(f"error: {OWN.absolute()} is damaged or not a luigi.cfg ({' '.join(str(error).split())}); correct it.")

SHIPPED = Path(aoq.__path__[0]) / "luigi.cfg"


class paths(luigi.Config):  # noqa: N801  (Luigi names the section after the class)
    """Relative paths start at the current directory."""

    data_root: luigi.Parameter = luigi.Parameter(default="data")
    artifact_root: luigi.Parameter = luigi.Parameter(default="artifacts")
    runs_root: luigi.Parameter = luigi.Parameter(default="runs")
    cache_root: luigi.Parameter = luigi.Parameter(default="~/.cache/aoq")


_PARAMETERS: dict[type, Callable[..., Any]] = {
    int: luigi.IntParameter,
    str: luigi.Parameter,
    bool: partial(luigi.BoolParameter, parsing=luigi.BoolParameter.EXPLICIT_PARSING),
}
_engine_fields = (each for each in fields(Engine) if each.name != "tasks")
_engine_parameters = {each.name: _PARAMETERS[type(each.default)](default=each.default) for each in _engine_fields}
engine: type[luigi.Config] = type("engine", (luigi.Config,), _engine_parameters)


def section_settings(section: type[luigi.Config]) -> dict[str, Any]:
    try:
        return dict(section().param_kwargs)
    except ValueError as error:
        raise ValueError(f"[{section.__name__}] in luigi.cfg: {error.__cause__ or error}.") from None


def configured_engine(**more: Any) -> Engine:
    """Return the engine that [engine] of luigi.cfg describes; `more` overrides its settings."""
    return Engine(**section_settings(engine) | more)


def set_engine(**options: object) -> None:
    """Set options of [engine] for the tasks of this process and its forks."""
    for option, value in options.items():
        get_config().set(engine.__name__, option, str(value))


def configured_path(option: str, chosen: str = "") -> Path:
    """Return the folder chosen on the command line, or else the one in [paths]."""
    return Path(chosen or section_settings(paths)[option]).expanduser().absolute()


def runs_root(artifact_root: Path) -> Path:
    """Return the folder of the readable links to artefacts: for the root in [paths] the one in [paths]."""
    is_configured = artifact_root == configured_path("artifact_root")
    return configured_path("runs_root") if is_configured else artifact_root / "runs"


def read_shipped_settings() -> None:
    """Add the settings of aoq's luigi.cfg that no other luigi.cfg sets.

    Luigi reads the one in the current directory. Without these settings it would wait for a scheduler that does not
    exist, fork after torch has computed (a deadlock), and exit with 0 although a task failed.
    """
    if OWN.exists():
        with reading(OWN.absolute(), "a luigi.cfg"):  # Luigi silently ignores an unreadable one
            OWN.open("rb").close()
    config = get_config()
    shipped = configparser.ConfigParser()
    shipped.read(SHIPPED, encoding="utf-8")
    for section in shipped.sections():
        for option, value in shipped.items(section):
            if not config.has_option(section, option):
                config.set(section, option, value)
