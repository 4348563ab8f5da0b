"""`torchrun … -m aoq.tasks SecondRound`: Luigi in each process, of which the first makes the artefacts."""

from __future__ import annotations

import sys

from luigi.cmdline import luigi_run

if __name__ == "__main__":
    luigi_run(["--module", "aoq.tasks", *sys.argv[1:]])
