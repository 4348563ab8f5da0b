"""The recipes of docs/recipes, in one process and in two, and the tutorial of sentence-transformers, as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tutorials import blocks, page, run, save_data_set

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]

RECIPES = Path(__file__).parent.parent.parent / "docs" / "recipes"
BIN = Path(sys.executable).parent
LAUNCHES = {
    "accelerate": [BIN / "accelerate", "launch", "--cpu", "--num_processes"],
    "fabric": [BIN / "fabric", "run", "--accelerator", "cpu", "--strategy", "ddp", "--devices"],
}
LONGEST = 60


@pytest.mark.parametrize(("name", "library"), [("accelerate", "accelerate"), ("fabric", "lightning_fabric")])
def test_two_processes_end_where_one_does(name, library):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    recipe = RECIPES / f"{name}_towers.py"
    assert len(recipe.read_text().splitlines()) <= LONGEST
    losses = []
    for processes in (1, 2):
        command = [str(one) for one in (*LAUNCHES[name], processes, recipe)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert ended.returncode == 0, ended.stderr
        losses.append(float(ended.stdout.splitlines()[-1]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_a_data_set_to_a_clip_trained_on_its_negatives(clip, tmp_path, monkeypatch, capsys):
    if find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    (tmp_path / "luigi.cfg").write_text("[engine]\nthreads = 1\n")
    save_data_set(tmp_path / "flickr", 200)
    tutorial = page("sentence_transformers").replace("openai/clip-vit-base-patch32", str(clip))
    run(blocks(tutorial, "sh")[0], tmp_path)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(tutorial, "python")
    names: dict = {}
    exec(compile(code.replace('output_dir="trained"', 'output_dir="trained", use_cpu=True'), "tutorial", "exec"), names)
    assert names["trainer"].state.global_step >= 5
    assert 0 <= float(capsys.readouterr().out.split()[-1]) <= 600
    assert (tmp_path / "trained" / "model" / "modules.json").is_file()
