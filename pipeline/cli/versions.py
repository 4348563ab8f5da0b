"""`aoq --version`: what a report of a problem should name."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import click

from aoq.pipeline.cli.output import echo


def show_versions(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """A line each for aoq, Python, torch and FAISS, with the devices that the latter two compute on."""
    if not asked or context.resilient_parsing:
        return
    import torch  # not above: all other commands start without it

    from aoq.pipeline.search.faiss_flat import gpus, has_faiss, load_faiss

    devices = [_processor(), *map(torch.cuda.get_device_name, range(torch.cuda.device_count()))]
    faiss = 'is not installed: pip install "aoq[cpu]", or "aoq[gpu]"'
    if has_faiss():
        seen = gpus()
        faiss = f"{load_faiss().__version__} on CPU" + (f", {seen} GPU{'s' if seen > 1 else ''}" if seen else "")
    echo(f"aoq {version('aoq')}\nPython {platform.python_version()}")
    echo(f"torch {torch.__version__} on {', '.join(devices)}\nFAISS {faiss}")
    context.exit()


def _processor() -> str:
    """Name the processor as Linux does; elsewhere its architecture."""
    named = None
    with suppress(OSError):
        named = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return f"CPU ({named[1].strip() if named else platform.machine()})"
