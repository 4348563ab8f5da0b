"""The tutorial that trains in sentence-transformers, as it stands, on a tiny CLIP of random weights."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.tutorials import blocks, page, run, save_data_set

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


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
