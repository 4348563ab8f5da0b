"""`aoq import-checkpoint`: what it writes, what it says, and that mistakes leave nothing behind."""

import os
import textwrap

import pytest

from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.official import FROM_DATA
from aoq.pipeline.training.checkpoint import load_model, read_weights
from tests.cli.conftest import run

CHECKPOINTS = ["vsrn_f30k", "aoq_vsrn_f30k", "scan_bigru", "bfan", "pfan", "sgraf_sgr", "sgraf_saf", "naaf_glove"]


def import_checkpoint(*arguments, code=0):
    return run("import-checkpoint", *arguments, code=code)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_weights_are_written_that_load_with_the_lines_of_an_experiment(golden_file, tmp_path, name):
    """[model] as shown is what the weights are compared with when they become the teacher, or what is evaluated."""
    output = tmp_path / "imported.safetensors"
    done = import_checkpoint(golden_file(f"ckpt_{name}.pth.tar"), output)
    description, _ = read_weights(output)
    assert type(load_model(output)).__name__.lower() == description["name"]
    assert done.stdout.startswith(f"Recognised {description['name']}: ")
    for key, value in description["options"].items():
        assert f"  {key} = {value}\n" in done.stdout
    assert f"Written to {output}." in done.stdout
    assert os.listdir(tmp_path) == ["imported.safetensors"]
    shown = [line for line in done.stdout.split("\n\n", 1)[1].splitlines() if line[:4] in ("    ", "")]
    lines = textwrap.dedent("\n".join(shown)).replace("[dataset]", '[dataset]\nfolder = "f30k_precomp"')
    mines = "vsrn" in name
    if mines:
        lines += "\n[mining]\n[second_round]\nepochs = 1\nloss.name = 'adapoffquin'\n"
    path = tmp_path / "mine.toml"
    path.write_text(lines)
    experiment = load_experiment(str(path))
    assert (experiment.teacher_weights if mines else experiment.weights) == "imported.safetensors"
    section = experiment.model.model_dump(exclude={"name"})
    assert section == {key: value for key, value in description["options"].items() if key not in FROM_DATA}


@pytest.mark.parametrize("name", ["ckpt_ncr", "ckpt_ncr_zip"])
def test_both_networks_of_ncr_are_written(golden_file, tmp_path, name):
    done = import_checkpoint(golden_file(f"{name}.pth.tar"), tmp_path / "ncr.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["ncr_a.safetensors", "ncr_b.safetensors"]
    assert "the mean of both" in done.stdout
    first, second = (load_model(tmp_path / f"ncr_{letter}.safetensors") for letter in "ab")
    shift = second.score.weight - first.score.weight
    assert shift.mean().item() == pytest.approx(0.01, abs=1e-6)


def test_what_is_there_stays_unless_forced(golden_file, tmp_path):
    old = tmp_path / "ncr_b.safetensors"
    old.write_bytes(b"old")
    again = import_checkpoint(golden_file("ckpt_ncr.pth.tar"), tmp_path / "ncr.safetensors", code=1)
    assert f"{old} exists; --force replaces it." in again.stderr
    assert (os.listdir(tmp_path), old.read_bytes()) == (["ncr_b.safetensors"], b"old")
    import_checkpoint(golden_file("ckpt_ncr.pth.tar"), tmp_path / "ncr.safetensors", "--force")
    load_model(old)


def test_writing_that_fails_leaves_nothing(golden_file, tmp_path, monkeypatch):
    from aoq.pipeline.training import checkpoint

    written = checkpoint.save_model

    def fail_at_second(path, *rest):
        if path.stem.endswith("_b"):
            raise OSError("No space left on device")
        written(path, *rest)

    monkeypatch.setattr(checkpoint, "save_model", fail_at_second)
    failed = import_checkpoint(golden_file("ckpt_ncr.pth.tar"), tmp_path / "ncr.safetensors", code=1)
    assert "No space left" in failed.stderr
    assert os.listdir(tmp_path) == []
