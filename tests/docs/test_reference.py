"""The generated reference leaves out no option, command or public name."""

import json
import re
from pathlib import Path

import click
import pytest
from pydantic_core import PydanticUndefined

import aoq
from aoq.models import MODELS
from aoq.pipeline.cli import main
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.losses import SECTIONS as LOSSES
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.config.study import Study
from aoq.pipeline.config.tables import Ensemble, Fusing, Reranking
from docs.generate import commands, configuration, names

ROW = re.compile(r"^\| `(\w+)` \| (.+?)(?:; (\*\*required\*\*|default `.*?`))?<br>(.*) \|$", re.MULTILINE)
FILES = (Experiment, Ensemble, Reranking, Fusing, Study)


def sections(section):
    """Return the section and all sections below it."""
    inner = [each for field in section.model_fields.values() for each in configuration.sections_in(field.annotation)]
    return {section}.union(*map(sections, inner))


ALL = {inner for file in FILES for inner in sections(file)} | {*LOSSES.values(), *map(ModelSection.kind, MODELS)}


@pytest.mark.parametrize("section", sorted(ALL, key=lambda each: each.__name__))
def test_every_option_of_a_section_has_a_row_with_its_default(section):
    rows = {row[1]: row for row in ROW.finditer(configuration.table(section))}
    for name, field in section.model_fields.items():
        if configuration.sections_in(field.annotation):
            assert name not in rows
            continue
        kind, default = rows[name][2], rows[name][3]
        assert rows[name][4], f"say in a docstring below {section.__name__}.{name} what it does"
        assert kind != "value", f"{section.__name__}.{name} has a type that the reference has no words for"
        if field.is_required():
            assert default == "**required**"
        elif field.default is None:
            assert default is None
        elif field.default is not PydanticUndefined:
            assert json.loads(default.removeprefix("default ").strip("`")) == json.loads(json.dumps(field.default))


def test_every_section_and_every_kind_stands_in_the_page():
    page = configuration.page()
    options = {row[1] for row in ROW.finditer(page)}
    for section in ALL:
        for name, field in section.model_fields.items():
            inner = configuration.sections_in(field.annotation)
            assert name in options or (inner and re.search(rf"^#+ \[(\w+\.)*{name}(\.NAME)?\]$", page, re.MULTILINE)), (
                name
            )
    for name in (*LOSSES, *MODELS):
        assert f'`name = "{name}"`' in page


@pytest.mark.parametrize("name", LOSSES)
def test_the_page_on_training_defines_every_loss(name):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    assert f"| `{name}` | " in page
    assert {*LOSSES[name].model_fields} - {"name"} <= {*re.findall(r"`(\w+)`", page)}


def every_command(group, path):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if not command.hidden:
            yield f"{path} {name}", command
            if isinstance(command, click.Group):
                yield from every_command(command, f"{path} {name}")


def test_every_command_and_each_of_its_options_has_a_place():
    parts = re.split(r"^#+ (aoq .*)$", commands.page(), flags=re.MULTILINE)
    shown = dict(zip(parts[1::2], parts[2::2], strict=True))
    expected = dict(every_command(main, "aoq"))
    assert shown.keys() == expected.keys()
    for path, command in expected.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                row = rf"^\| `([^`]*, )?{parameter.opts[0]}\b"
                assert re.search(row, shown[path], re.MULTILINE), f"{path} {parameter.opts}"
            elif isinstance(parameter, click.Argument):
                assert parameter.human_readable_name.strip("[].") in shown[path]


def test_every_public_name_stands_in_the_page_of_python():
    page = names.page()
    for name in aoq.__all__:
        assert f"heading: aoq.{name}\n" in page
    assert "## More" not in page, "a package of public names has no topic in docs/generate/names.py"
    assert "heading: aoq.integrations.sentence_transformers.TableData\n" in page


def test_docstrings_become_markdown():
    example = ">>> a_b = 1 * 1\n>>> a_b\n1"
    docstring = f"Add [s_on - s_off]_+ * `a_b`.\n\n    x_i * y_i\n\n{example}\n\nMore."
    markdown = f"Add [s\\_on - s\\_off]\\_+ \\* `a_b`.\n\n    x_i * y_i\n\n```pycon\n{example}\n```\n\nMore."
    assert names.as_markdown(docstring) == markdown
