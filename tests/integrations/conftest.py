"""A table of pictures of one colour each, and a tiny CLIP; where a trainer is not installed its tests are left out."""

from __future__ import annotations

from importlib.util import find_spec

from tests.exports.conftest import clip, datasets, run, world  # noqa: F401  (fixtures)

collect_ignore_glob = (
    [] if find_spec("sentence_transformers") else ["test_sentence_transformers.py", "two_processes.py"]
)
