"""`aoq --version`: what a report of a problem should name."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import click


def show_versions(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """A line each for aoq, Python, torch and FAISS, with the devices that the latter two compute on."""
    if asked and not context.resilient_parsing:
        click.echo(f"aoq {version('aoq')}\nPython {platform.python_version()}\ntorch {_torch()}\nFAISS {_faiss()}")
        context.exit()


def _torch() -> str:
    import torch  # not above: all other commands start without it

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{torch.__version__} on {', '.join((_processor(), *gpus))}"


def _faiss() -> str:
    from aoq.pipeline.search.brute_force import gpus, has_faiss, load_faiss

    if not has_faiss():
        return 'is not installed: pip install "aoq[cpu]", or "aoq[gpu]"'
    seen = gpus()
    return f"{load_faiss().__version__} on CPU" + (f", {seen} GPU{'s' if seen > 1 else ''}" if seen else "")


def _processor() -> str:
    """Name the processor as Linux does; elsewhere its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU ({named[0] if named else platform.machine()})"
