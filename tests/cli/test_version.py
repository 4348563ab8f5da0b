"""`aoq --version` says what a report of a problem should name, and costs other commands nothing."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version

import faiss
import torch
from click.testing import CliRunner

from aoq.pipeline.cli import main


def lines():
    shown = CliRunner().invoke(main, ["--version"])
    assert shown.exit_code == 0
    return shown.stdout.splitlines()


def test_versions_and_devices_are_said():
    aoq, python, of_torch, of_faiss = lines()
    assert aoq == f"aoq {version('aoq')}"
    assert python == f"Python {platform.python_version()}"
    assert of_torch.startswith(f"torch {torch.__version__} on CPU (")
    assert of_faiss.startswith(f"FAISS {faiss.__version__} on CPU")


def test_gpus_are_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"Card {number}")
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    *_, of_torch, of_faiss = lines()
    assert of_torch.endswith("Card 0, Card 1")
    assert of_faiss.endswith("on CPU, 2 GPUs")


def test_without_faiss_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert lines()[3] == 'FAISS is not installed: pip install "aoq[cpu]", or "aoq[gpu]"'
