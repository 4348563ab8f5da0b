"""A folder that may not be written is named by every command that writes, and nothing is left in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from aoq.pipeline.tables.exchange.formats import FORMATS
from tests.cli.conftest import TINY

FORBIDDING = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
"""Root may write anywhere, unless this right is taken from it."""
RUN = """
import json, sys
from click.testing import CliRunner
from aoq.pipeline.cli import main
ended = [CliRunner().invoke(main, command) for command in json.load(sys.stdin)]
print(json.dumps([[one.exit_code, one.stderr] for one in ended]))
"""


@pytest.fixture
def commands(mined, folder, golden_file, tmp_path):
    """Each writes `out` in the folder `locked`."""
    rng, table = np.random.default_rng(0), folder
    for name, rows in (("images", 40), ("captions", 120)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(rows, 8)).astype(np.float32))
    (tmp_path / "locked").mkdir()
    vectors = (tmp_path / "images.npy", tmp_path / "captions.npy")
    lists = [np.zeros((count, 3), dtype=np.int64) for count in (40, 120)]
    for name, ids in zip(("i2t_a.npy", "t2i_a.npy"), lists, strict=True):
        np.save(tmp_path / name, ids)
    return [
        ("mine", *vectors, "out", "--per-image", 3, "--h-captions", 5, "--h-images", 5),
        ("screen", table, "out", "--mutual-rank", 3),
        ("to-judge", table, "out.csv"),
        ("publish", table, "out"),
        ("import-table", tmp_path / "i2t_a.npy", "out", "--per-image", 3),
        ("import-checkpoint", golden_file("ckpt_scan_bigru.pth.tar"), "out"),
        *(
            ("export", table, "out", "--format", name, *(("--direction", "t2i") if form.directions == "one" else ()))
            for name, form in FORMATS.items()
        ),
        ("report", TINY, "--output", "out", "--artifact-root", mined),
    ]


def test_the_folder_is_named(commands, tmp_path):
    locked = tmp_path / "locked"
    locked.chmod(0o555)
    given = [
        [str(part) if part not in ("out", "out.csv") else str(locked / part) for part in command]
        for command in commands
    ]
    done = subprocess.run(
        [*FORBIDDING, sys.executable, "-c", RUN],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MPLCONFIGDIR": str(tmp_path)},  # where matplotlib has not looked for fonts yet
    )
    for command, (code, said) in zip(given, json.loads(done.stdout), strict=True):
        assert (code, said) == (1, f"error: {locked} may not be written (permission denied).\n"), command
    assert not list(locked.iterdir())
