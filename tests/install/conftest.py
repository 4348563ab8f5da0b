"""Packages as users install them: an sdist and wheels of a copy of the checkout, and environments for them."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
SHIPPED = ("aoq", "configs", "luigi.cfg", "models", "pipeline", "tasks")
SHIPPED += ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "constraints.txt", "pyproject.toml", "setup.py")
DEPENDENCIES = Path(torch.__file__).parent.parent
LUIGI = """#!{python}
import sys
from luigi.cmdline import luigi_run
sys.exit(luigi_run())
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment; `run` starts one of its programs as a user would, with no word about this checkout."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, *arguments: str | Path) -> None:
        command = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-compile"]
        subprocess.run([*command, *arguments], check=True, timeout=600)

    def run(self, *command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AOQ"))}
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=cwd,
            env={**known, "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def make_environment(folder: Path, *, linked: bool) -> Environment:
    """Empty, or with the packages of the environment that runs the tests in reach."""
    venv.create(folder, symlinks=True)
    environment = Environment(folder)
    if linked:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
        luigi = folder / "bin" / "luigi"
        luigi.write_text(LUIGI.format(python=environment.python))
        luigi.chmod(0o755)
    return environment


def build(kind: str, source: Path, into: Path) -> Path:
    """Build the source tree as an `sdist` or a `wheel`."""
    code = f"import sys, setuptools.build_meta as build; build.build_{kind}(sys.argv[1])"
    built = subprocess.run([sys.executable, "-c", code, into], cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """A copy of what is tracked of the package, with its links, for builds to litter."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="session")
def sdist(checkout, tmp_path_factory) -> Path:
    return build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def unpacked(sdist, tmp_path_factory) -> Path:
    """The sdist's tree, away from the checkout."""
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist, folder)
    (tree,) = folder.iterdir()
    return tree


@pytest.fixture(scope="session")
def unzipped(checkout, tmp_path_factory) -> Path:
    """The checkout as from a zip unpacked without support for links: each link is a text file with its target."""
    copy = shutil.copytree(checkout, tmp_path_factory.mktemp("zip") / "aoq", symlinks=True)
    for path in filter(Path.is_symlink, [*copy.rglob("*")]):
        target = os.readlink(path)
        path.unlink()
        path.write_text(target)
    return copy


@pytest.fixture(scope="session")
def wheels(checkout, unpacked, unzipped, tmp_path_factory) -> dict[str, Path]:
    """Wheels of the checkout, of the sdist and of the zip."""
    trees = {"checkout": checkout, "sdist": unpacked, "zip": unzipped}
    return {name: build("wheel", tree, tmp_path_factory.mktemp("wheel")) for name, tree in trees.items()}


@pytest.fixture(scope="session", params=["wheel", "editable"])
def installed(request, tmp_path_factory) -> Environment:
    """An environment with all dependencies, and aoq as a wheel or as a link to the checkout."""
    environment = make_environment(tmp_path_factory.mktemp(request.param), linked=True)
    if request.param == "wheel":
        what: Sequence[str | Path] = [request.getfixturevalue("wheels")["sdist"]]
    else:
        what = ["--no-build-isolation", "--editable", request.getfixturevalue("checkout")]
    environment.install("--no-deps", "--no-index", *what)
    return environment


@pytest.fixture(scope="module")
def core(wheels, tmp_path_factory) -> Iterator[Environment]:
    """An environment that pip alone has filled, without an extra: over a GB, so it goes when the tests are through."""
    folder = tmp_path_factory.mktemp("core")
    environment = make_environment(folder, linked=False)
    environment.install("--constraint", ROOT / "constraints.txt", wheels["checkout"])
    yield environment
    shutil.rmtree(folder)
