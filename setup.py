"""Install the folders at the top of the repository as subpackages of aoq; pyproject.toml holds everything else."""

from __future__ import annotations

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = ("models", "pipeline", "tasks")


class BuildWithSettings(build_py):  # type: ignore[misc]
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file("luigi.cfg", f"{self.build_lib}/aoq/luigi.cfg")


own = ["", ".configs"] + [f".{name}" for name in find_packages("aoq", include=["integrations*"])]
own += [f".{name}" for name in find_packages(include=[each for name in FOLDERS for each in (name, f"{name}.*")])]
setup(
    packages=["tasks", *(f"aoq{name}" for name in own)],
    package_dir={"aoq": "aoq", "aoq.configs": "configs", "tasks": "aoq/_top/tasks"}
    | {f"aoq.{name}": name for name in FOLDERS},
    cmdclass={"build_py": BuildWithSettings},
)
