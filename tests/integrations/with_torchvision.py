"""Run a script, `with_torchvision.py SCRIPT ARGUMENT…`, even if torchvision was built for another torch."""

from __future__ import annotations

import runpy
import sys

from tests.prepare import tiny

if __name__ == "__main__":
    tiny.import_torchvision()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
