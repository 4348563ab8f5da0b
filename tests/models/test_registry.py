"""The registry of models."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aoq.models import MODELS, build_model


@pytest.mark.parametrize(("code", "loaded"), [("MODELS", set()), ("MODELS['vsepp']", {"vsepp"})])
def test_only_a_named_models_file_is_imported(code, loaded):
    code = f"import sys; from aoq.models import MODELS; {code}; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in MODELS if MODELS.place(name)[0] in shown} == loaded
    assert ("torch" in shown) == bool(loaded)


def test_an_unknown_model_is_an_error_with_the_known_ones():
    known = ", ".join(map(repr, sorted(MODELS)))
    with pytest.raises(ValueError, match=rf"no model 'clip'; known models are \[{known}\]"):
        build_model("clip", feature_size=2, vocabulary_size=3)
