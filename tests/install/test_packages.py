"""The sdist and every wheel hold all files of the package, and nothing else."""

import tarfile
import zipfile

import pytest

pytestmark = pytest.mark.install


def content(wheel):
    """Read its files, except the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheels, checkout):
    expected = {"tasks/__init__.py": (checkout / "aoq" / "_top" / "tasks" / "__init__.py").read_bytes()}
    expected |= {f"aoq/{path.name}": path.read_bytes() for path in (checkout / "aoq").iterdir() if path.is_file()}
    expected["aoq/luigi.cfg"] = (checkout / "luigi.cfg").read_bytes()
    assert {"aoq/__init__.py", "aoq/__init__.pyi", "aoq/py.typed"} <= set(expected)
    for folder in ("configs", "models", "pipeline", "tasks"):
        files = [path for path in (checkout / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        expected |= {f"aoq/{path.relative_to(checkout)}": path.read_bytes() for path in files}
    own = (checkout / "aoq" / "integrations").rglob("*.py")
    expected |= {str(path.relative_to(checkout)): path.read_bytes() for path in own}
    assert content(wheels["checkout"]) == expected


@pytest.mark.parametrize("source", ["sdist", "zip"])
def test_every_source_makes_the_same_wheel(wheels, source):
    assert content(wheels[source]) == content(wheels["checkout"])


def test_the_sdist_has_no_links(sdist):
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        assert any(name.endswith("/constraints.txt") for name in archive.getnames())
