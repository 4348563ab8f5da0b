"""aoq from a wheel and from an editable install, in a folder of the user's own with names like ours."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.install

TINY = Path(__file__).parent.parent / "tiny.toml"
IMPORT_ALL = """
import importlib, pkgutil, aoq
for folder in ("models", "pipeline", "tasks", "integrations"):
    package = importlib.import_module(f"aoq.{folder}")
    for found in pkgutil.walk_packages(package.__path__, f"aoq.{folder}."):
        try:
            importlib.import_module(found.name)
        except ImportError as error:  # a trainer that is not installed
            assert folder == "integrations" and "pip install" in str(error), (found.name, error)
print(aoq.__file__)
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with packages that must not be imported, an experiment, and a root for artefacts."""
    for name in ("models", "pipeline", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('the user's own {name} was imported')\n")
    (tmp_path / "configs").mkdir()
    shutil.copy(TINY, tmp_path / "configs" / "mine.toml")
    (tmp_path / "luigi.cfg").write_text("[paths]\nartifact_root = made\n\n[engine]\nthreads = 1\n")
    return tmp_path


def made(folder):
    return {path.parent.parent.name for path in folder.glob("made/*/*/MANIFEST.json")}


def test_every_module_is_imported_from_the_installation(installed, folder, checkout):
    shown = installed.run("python", "-W", "error::SyntaxWarning", "-c", IMPORT_ALL, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    home = checkout if installed.folder.name.startswith("editable") else installed.folder
    assert Path(shown.stdout.strip()).is_relative_to(home)


def test_both_rounds_by_the_script_and_what_was_made_is_found(installed, folder):
    git = ["git", "-C", installed.folder, "-c", "user.name=me", "-c", "user.email=me"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "My own"], check=True)
    run = installed.run("luigi", "--module", "tasks", "SecondRound", "--experiment", "mine", cwd=folder)
    assert run.returncode == 0, run.stderr
    assert made(folder) == {"world", "dataset", "first_round", "embeddings", "hard_negatives", "second_round"}
    manifest = json.loads((folder / "runs" / "mine" / "second_round" / "MANIFEST.json").read_text())
    assert manifest["packages"]["aoq"]
    assert manifest["git"] is None  # not the commit of the repository that the environment lies in
    for arguments in (["results", "mine"], ["inspect", "mine", "--image", "7"], ["verify", "mine"]):
        shown = installed.run("aoq", *arguments, cwd=folder, PYTHONPATH=".")
        assert shown.returncode == 0, shown.stderr


def test_tasks_by_their_full_name_where_the_folder_is_on_the_path(installed, folder):
    arguments = ["--module", "aoq.tasks", "FirstRound", "--experiment", "mine"]
    run = installed.run("luigi", *arguments, cwd=folder, PYTHONPATH=".")
    assert run.returncode == 0, run.stderr
    assert made(folder) == {"world", "dataset", "first_round"}


def test_mistakes_end_with_our_exit_codes(installed, folder):
    arguments = ["SecondRound", "--experiment", "mine", "--override", "seed=-1"]
    failed = installed.run("luigi", "--module", "tasks", *arguments, cwd=folder)
    assert failed.returncode in (30, 35, 40)  # [retcode] of the luigi.cfg that aoq brings
    for near, name in (("f30k", "f30k_vsrn"), ("mime", "mine")):  # one that aoq brings, and one of this folder
        unknown = installed.run("aoq", "status", near, cwd=folder)
        assert unknown.returncode == 1
        assert f"'{name}'" in unknown.stderr
