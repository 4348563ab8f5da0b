"""`import aoq`: what is public, what it loads, and that what it says of itself is true.

`python tests/face/test_public.py > tests/face/public.txt` renews the list: a change in it is a change of a promise.
"""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import aoq

LISTED = Path(__file__).parent / "public.txt"
HEAVY = {"faiss", "flask", "jinja2", "luigi", "matplotlib", "nltk", "numba", "pandas", "PIL", "pyarrow", "pydantic"}
HEAVY |= {"ray", "rich", "scipy", "sklearn", "tensorboard", "torch"}
TABLES = {"torch", "numba", "scipy", "pyarrow", "pydantic"}  # numba loads scipy if it is installed


def signatures() -> str:
    """One line a public name: its signature; of a class also its public methods and properties."""
    lines = []
    for name in aoq.__all__:
        found = getattr(aoq, name)
        lines.append(f"{name}{signature(found)}")
        if inspect.isclass(found):
            lines += [f"    {line}" for line in members(found)]
    return "\n".join(lines) + "\n"


def signature(found) -> str:
    try:
        return str(inspect.signature(found))
    except ValueError:
        return ""


def members(kind):
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    own = {
        name: member
        for base in reversed(kind.__mro__)
        if "aoq." in base.__module__
        for name, member in vars(base).items()
    }
    for name, member in sorted(own.items()):
        if name.startswith("_") or name in fields or not (callable(member) or hasattr(member, "__get__")):
            continue
        function = getattr(member, "__func__", member)
        yield f"{name}{signature(function)}" if callable(function) else f"{name}: property"


def test_names_and_signatures_are_those_that_were_promised():
    assert signatures() == LISTED.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", aoq.__all__)
def test_every_public_name_is_documented(name):
    assert inspect.getdoc(getattr(aoq, name)), f"aoq.{name} has no docstring"


def test_what_is_not_used_is_not_loaded():
    steps = {
        "import aoq, sys; dir(aoq), aoq.__version__": set(),
        "aoq.adap_off_quin, aoq.Similarities, aoq.build_model, aoq.recalls": {"torch"},
        "aoq.hard_negatives, aoq.BatchSampler": TABLES,
    }
    code = "\n".join(f"{step}; print(*{{name.partition('.')[0] for name in sys.modules}})" for step in steps)
    shown = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    for line, allowed in zip(shown, steps.values(), strict=True):
        assert set(line.split()) & HEAVY <= allowed


def test_an_unknown_name_is_told_which_there_are():
    with pytest.raises(AttributeError, match=r"aoq has no 'hard_negative'; its public names are .*build_model"):
        _ = aoq.hard_negative


if __name__ == "__main__":
    sys.stdout.write(signatures())
