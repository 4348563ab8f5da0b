"""The registry of models, and what naming one of them imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aoq.models import MODELS, build_model


def test_only_a_named_models_file_is_imported():
    lines = ["import sys; from aoq.models import MODELS; print(*sys.modules)", "MODELS['vsepp']; print(*sys.modules)"]
    shown = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True).stdout
    before, after = (set(line.split()) for line in shown.splitlines())
    for imported, loaded in ((before, set()), (after, {"vsepp"})):
        assert {name for name in MODELS if MODELS.place(name)[0] in imported} == loaded
        assert ("torch" in imported) == bool(loaded)


def test_an_unknown_model_is_an_error_with_the_known_ones():
    known = ", ".join(map(repr, sorted(MODELS)))
    with pytest.raises(ValueError, match=rf"no model 'clip'; known models are \[{known}\]"):
        build_model("clip", feature_size=2, vocabulary_size=3)
