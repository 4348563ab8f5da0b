"""Every node must have the same code: a change in any file of aoq is noticed."""

from __future__ import annotations

from pathlib import Path

import aoq
from aoq.pipeline.build import code_sha256, code_versions


def test_changed_and_renamed_files_are_noticed(tmp_path):
    assert code_versions()["aoq's code"] == code_sha256(Path(aoq.__file__).parent)[:12]
    for name in ("models/scan.py", "pipeline/search/limits.py"):
        (module := tmp_path / name).parent.mkdir(parents=True)
        module.write_text("rows = 1\n")
    seen = {code_sha256(tmp_path)}
    module.write_text("rows = 2\n")
    seen.add(code_sha256(tmp_path))
    module.rename(module.with_name("limit.py"))
    assert len(seen | {code_sha256(tmp_path)}) == 3
