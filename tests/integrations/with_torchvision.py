"""Run a script, `with_torchvision.py SCRIPT ARGUMENT…`, where torchvision may be of another build than torch."""

from __future__ import annotations

import runpy
import sys

from tests.prepare import tiny

tiny.import_torchvision()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
