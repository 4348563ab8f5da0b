"""The GPU gives what the CPU gives: steps, rounds, a resumed run, searches."""

import json
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import aoq
from aoq.models import MODELS, naaf
from aoq.pipeline.engine import Engine
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.search.faiss_flat import gpus
from aoq.pipeline.stages.plan import MAKERS, plan
from aoq.pipeline.training.chunks import Cut
from aoq.pipeline.training.loop import Loop
from tests.training import conftest
from tests.training.conftest import CPU
from tests.training.steps import drawn, fresh, let_thresholds_wait, step

pytestmark = pytest.mark.gpu

pairs, sampler = conftest.pairs, conftest.sampler
LUIGI = Path(sys.executable).parent / "luigi"
TINY = Path(__file__).parent.parent / "tiny.toml"


@contextmanager
def unwaited(device, how="error"):
    """Refuse to wait for the device; torch raises where it would."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    try:
        with catch_warnings():
            simplefilter("ignore")  # torch calls the mode a prototype
            torch.cuda.set_sync_debug_mode(how)
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.fixture(autouse=True)
def thresholds_may_wait(monkeypatch, device):
    let_thresholds_wait(monkeypatch, partial(unwaited, device, "default"))


@pytest.mark.parametrize("loss", ["online", "table", "companions"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_the_cpus(pairs, sampler, device, monkeypatch, name, loss):
    if name in ("sgr", "saf") or any(getattr(layer, "p", 0) for layer in fresh(name).modules()):
        pytest.skip("each device has random numbers of its own")
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)
    draw, found = drawn(pairs, sampler, loss), []
    for one in (CPU, device):
        pace = Pace(0.2, level=3.0) if loss == "online" else None
        found.append(step(pairs, draw, name, loss, device=one, pace=pace, unwaited=partial(unwaited, one)))
    ours, theirs = found
    for part, rtol in (("figures", 1e-8), ("gradients", 1e-7)):
        found = {name: one.cpu() for name, one in theirs[part].items()}
        torch.testing.assert_close(found, ours[part], rtol=rtol, atol=1e-10)


@pytest.mark.parametrize("name", ["vsepp", "scan"])
def test_a_step_in_bfloat16_is_near(pairs, sampler, device, name):
    draw, how = drawn(pairs, sampler, "online"), {"dtype": torch.float32, "unwaited": partial(unwaited, device)}
    whole, rounded = (
        step(pairs, draw, name, "online", Cut(in_bfloat16=halved), device=device, **how)["figures"]["loss"].item()
        for halved in (False, True)
    )
    assert rounded == pytest.approx(whole, rel=0.05)


def luigi(task, folder, device, *options):
    given = ["--module", "tasks", task, "--experiment", TINY, "--engine-device", device.type, "--artifact-root", folder]
    return subprocess.run([str(LUIGI), *map(str, [*given, *options])], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def trained(device, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    ended = luigi("SecondRound", folder, device)
    assert ended.returncode == 0, ended.stderr
    return folder


def manifest(folder):
    (path,) = folder.glob("second_round/*/MANIFEST.json")
    return json.loads(path.read_text())


def test_a_resumed_round_ends_at_the_same_weights(trained, device, tmp_path, monkeypatch):
    """Stopped at its first checkpoint, and gone on with by another process; the manifest says where."""
    assert luigi("HardNegatives", tmp_path, device).returncode == 0
    chain, save = plan(str(TINY), data_root=Path(), artifact_root=tmp_path), Loop.checkpoint

    def stop(loop):
        save(loop)
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "checkpoint", stop)
    with pytest.raises(KeyboardInterrupt), chain["second_round"].building() as build:
        MAKERS["second_round"](chain, build, Engine(device=device.type))
    assert list(tmp_path.glob("**/last.ckpt"))
    assert luigi("SecondRound", tmp_path, device).returncode == 0
    resumed, whole = manifest(tmp_path), manifest(trained)
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"]
    assert whole["device"].startswith(device.type)
    assert np.isfinite(whole["metrics"]["rsum"])


@pytest.mark.parametrize("search", ["onepass", "faiss-flat"])
def test_lists_of_tensors_on_the_gpu_are_the_cpus(device, search):
    rng = torch.Generator().manual_seed(0)
    images, captions = (normalize(torch.randn(n, 32, generator=rng), dim=1) for n in (300, 1500))
    image_of = np.arange(1500) // 5
    ours = aoq.hard_negatives(images.to(device), captions.to(device), image_of, h=(40, 10), search=search)
    theirs = aoq.hard_negatives(images, captions, image_of, h=(40, 10))
    for direction in ("i2t", "t2i"):
        assert (ours[direction].negative_ids == theirs[direction].negative_ids).all()


def test_faiss_sees_the_gpu(device):
    if device.type == "cpu":
        pytest.skip("there is none to see")
    assert gpus() >= 1
