"""The page about runs: what it shows, what it leaves out, and that nothing of the data is more than text."""

import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import tasks
from aoq.pipeline.console import is_hidden
from aoq.pipeline.evaluation.significance import Comparison, rsum_intervals
from aoq.pipeline.report.collect import collect_runs, run_labels
from aoq.pipeline.report.page import GLOSSARY
from aoq.pipeline.report.plots import curves
from aoq.pipeline.report.verdict import verdicts
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.report import find_control, plan_report, render_report
from aoq.pipeline.tables.statistics import describe
from tests.cli.conftest import run as aoq
from tests.report.conftest import SECTIONS
from tests.stages.conftest import make_stage

HOSTILE = '<script>alert("x")</script> & "two" dogs <b>'


class Read(HTMLParser):
    """The tags with their attributes, and the text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(re.sub(r"<(script|style)>.*?</", r"<\1></", page, flags=re.DOTALL))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag, attribute):
        return [attributes[attribute] for name, attributes in self.tags if name == tag and attribute in attributes]


def test_nothing_comes_from_elsewhere_and_data_are_text(page):
    read = Read(page)
    assert sum(tag == "script" for tag, _ in read.tags) == 1
    assert HOSTILE in read.text
    assert "alert(" not in re.sub(r"&lt;script&gt;alert", "", page)
    for _, attributes in read.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/"))
    assert "url(http" not in page
    assert r"an \x1b[31m escape \u202e" in page
    assert not any(map(is_hidden, set(page)))


def test_the_control_of_a_run_is_taken_along(places, names):
    online = f'{names[0]}@second_round.loss.name="online"'
    alone, both = (plan_report(named, **places) for named in (names[0], f"{names[0]}; {online}"))
    assert [member.reference for member in alone.members] == [names[0], online]
    assert alone.artifact.key == both.artifact.key
    assert [member.reference for member in plan_report(online, **places).members] == [online]
    with pytest.raises(ValueError, match="seed=0' are one run; name it once"):
        plan_report(f"{names[0]}; {names[0]}@seed=0", **places)
    for member in (one for one in plan_report(";".join(names), **places).members if one.reference in names[::2]):
        control = find_control(member)
        assert control.chain["second_round"].key == member.chain["control"].key


def test_a_control_is_the_baseline_wherever_it_stands(places, names, monkeypatch):
    """A control is the baseline of its own run alone; a run without a table has the first control, or the first run."""
    named = [(member.reference, member.chain) for member in plan_report("; ".join(names), **places).members]
    waiting = {run.name: run.baseline for run in collect_runs(named)}
    assert waiting == dict.fromkeys(waiting) | {names[1]: names[0]}
    scored = next(run.scored for run in collect_runs(named))
    monkeypatch.setattr("aoq.pipeline.report.collect._score_run", lambda chain, split: scored)
    monkeypatch.setattr("aoq.pipeline.report.collect.compare_runs", lambda *_, **__: Comparison(2.5, (1.0, 4.0), 0.03))
    for order in (named, named[::-1]):
        chains = dict(order)
        first = next(name for name in chains if name not in names)
        for run in collect_runs(order):
            if run.name in names[::2]:
                assert chains[run.baseline]["second_round"].key == run.chain["control"].key
            else:
                assert run.baseline == (first if run.name == names[1] else None)


def test_runs_that_are_not_evaluated_show_their_recalls_on_dev(places, names, monkeypatch, unplotted):
    monkeypatch.setattr("aoq.pipeline.report.collect._score_run", lambda chain, split: None)
    planned = plan_report(names[0], **places)
    rsum = planned.members[0].chain["second_round"].manifest()["metrics"]["rsum"]
    assert f"<td>{rsum:.1f}<small>" in render_report(planned)


def test_another_models_control_is_no_baseline(places, names, monkeypatch, unplotted):
    """The own control is trained and not evaluated: the page shows the gain on dev, and nothing is green."""
    online = f'{names[1]}@second_round.loss.name="online"'
    planned = plan_report(f"{names[0]}; {online}", **places)
    named = [(member.reference, member.chain) for member in planned.members]
    scored = collect_runs(named)[0].scored
    evaluated = {chain["evaluation"].key for _, chain in named[:2]}
    monkeypatch.setattr(
        "aoq.pipeline.report.collect._score_run",
        lambda chain, split: scored if chain["evaluation"].key in evaluated else None,
    )
    assert [run.baseline for run in collect_runs(named)] == [None, None, None]
    monkeypatch.setattr("aoq.pipeline.report.verdict.gain_on_control", lambda chain: "round two - control: +1.0 rsum")
    page = render_report(planned)
    assert "+1.0 rsum (its control is not evaluated)" in page
    assert 'class="better"' not in page


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["", "seed=1"], ["student", "student@seed=1"]),
        (['second_round.loss.name="online"', ""], ["student control", "student"]),
        (['second_round.loss.name="online"'], ["student@second_round.loss.name=online"]),
    ],
)
def test_runs_are_named_as_their_folders_and_controls_after_them(places, names, overrides, expected):
    named = {f"{names[0]}@{override}": plan(names[0], override=override, **places) for override in overrides}
    assert list(run_labels(named).values()) == expected


def test_the_verdict_comes_first_and_a_gain_beyond_its_interval_is_green(planned, monkeypatch, unplotted):
    wordings = {(0.1, 5.0): "is better than", (-0.1, 5.0): "is not distinguishable from"}
    for interval, words in wordings.items():
        found = Comparison(2.5, interval, 0.03)
        monkeypatch.setattr("aoq.pipeline.report.collect.compare_runs", lambda *_, found=found, **__: found)
        page = render_report(planned)
        assert ('<td class="better">+2.5<small>' in page) == (interval[0] > 0)
        assert "+2.5<small>" in page
        text = page[page.index('id="verdict"') : page.index('id="results"')]
        assert f"<b>teacher</b> {words} <b>student</b>: <b>+2.5</b>" in text
        assert "12 images and 60 captions of dev, one seed" in text
        assert '<p class="soft">Data: one.</p></header>' in page
        assert "p = 0.03" in text
        assert page.index('id="verdict"') < page.index("<table>")


def test_imported_weights_and_an_ensemble_stand_beside_a_run(root, names, places, unplotted):
    trained, sections = plan(names[0], **places), (root / "student.toml").read_text().splitlines()
    shutil.copy(trained["second_round"].path / "model.safetensors", root / "scan.safetensors")
    (root / "imported.toml").write_text("\n".join(['weights = "scan.safetensors"', *sections[2:4]]))
    (root / "both.toml").write_text(f"[ensemble]\nmembers = {[names[0], str(root / 'imported.toml')]}\n")
    added = [str(root / f"{name}.toml") for name in ("imported", "both")]
    for name, stage in zip([added[0], *added], ("second_round", "evaluation", "evaluation"), strict=True):
        make_stage(plan(name, **places), stage)
    words = Read(render_report(plan_report(";".join([names[0], *added]), **places))).text
    assert "imported" in words
    assert "both" in words


@pytest.mark.parametrize("seeds", [2, 3])
def test_seeds_are_judged_together(planned, monkeypatch, unplotted, seeds):
    """The mean of equal seeds, and the interval over three or more; the runs are of one training, called seeds."""
    first, other = collect_runs([(member.reference, member.chain) for member in planned.members[:2]])
    runs = []
    for seed in range(seeds):
        label = f"base@dataset.noise.seed=3,seed={seed}"
        base = replace(first, name=f"base@seed={seed}", label=label, chain=_seeded(first.chain, seed))
        ours = replace(other, name=f"run@seed={seed}", label=f"run@seed={seed}", chain=_seeded(other.chain, seed))
        runs += [base, replace(ours, gain=Comparison(2.0 + seed, (-1.0, 5.0), 0.5), baseline=base.name)]
    (found,) = verdicts(runs)
    about = {"label": "run", "baseline": "base@dataset.noise.seed=3", "seeds": seeds, "difference": 1.5 + seeds / 2}
    ours, theirs = ([run.scored.ranks] * seeds for run in (other, first))
    intervals = rsum_intervals({"ours": ours}, theirs, first.split.image_of, rng=np.random.default_rng(0))
    assert found.items() >= {**about, "interval": intervals.get("ours")}.items()
    monkeypatch.setattr("aoq.pipeline.report.page.verdicts", lambda *_: [found])
    words = Read(render_report(planned)).text
    assert ("2 seeds are too few for a verdict" in words) == (seeds == 2)
    assert ("is not distinguishable from" in words) == (seeds == 3)


def _seeded(chain, seed):
    return replace(chain, experiment=chain.experiment.model_copy(update={"seed": seed}))


def test_a_run_alone_is_not_compared_and_figures_logged_once_have_no_curve(places, names, unplotted):
    """The student trains for one short epoch, so each figure is logged once."""
    page = render_report(plan_report(names[0], **places))
    assert 'aria-label="dev rsum"' not in page
    assert 'id="training"' not in page
    words = Read(page).text
    for sentence in ("runs differ", "Green:", "to its baseline", "used by", "other queries"):
        assert sentence not in words
    assert "There is no run to compare it with." in words
    assert 'second_round.loss.name="online"' in words  # the command that makes its control


def test_right_answers_beyond_the_pairs_are_those_of_the_evaluations(page, planned):
    text = page[page.index('id="right"') : page.index('id="attention"')]
    for run in planned.members[:2]:
        found = run.artifact.manifest()
        of_run = [row for row in text.split("<tr>") if f"</span>{run.run}<" in row]
        rows = [re.findall(r"<td(?: class=\"left\")?>(.*?)</td>", row) for row in of_run]
        pairs, whole, half, plausible, judged = rows
        relevance = found["relevance"]
        recalls = {f"{direction}_r1": one["r1"] for direction, one in relevance["pairs"].items()}
        assert recalls == pytest.approx({name: found["metrics"][name] for name in recalls})
        metrics = [(d, metric) for d in ("i2t", "t2i") for metric in ("r_precision", "map_r", "ndcg_10", "r1")]
        assert pairs[1:] == [f"{relevance['pairs'][d][metric]:.1f}" for d, metric in metrics]
        assert whole[1:] == [f"{relevance['relevance'][d][metric]:.1f}" for d, metric in metrics]
        one_sided = [f"{relevance['relevance_half']['i2t'][metric]:.1f}" for _, metric in metrics[:4]]
        assert half[1:] == [*one_sided, "–", "–", "–", "–"]
        assert plausible[1:] == [f"{found['plausible'][f'{d}_pmrp']:.1f}" for d in ("i2t", "t2i")]
        people = found["judgements"]["judgements"]
        assert judged[1:5] == ["judgements", f"{people['spearman']:.1f}", f"{people['kendall']:.1f}", "720"]
    assert "relevance_half" in text


def test_the_terminal_says_the_same(planned, options, names):
    shown = aoq("results", names[0], *options).output
    found = planned.members[0].artifact.manifest()
    for name, metrics, metric in (
        ("relevance i2t", found["relevance"]["relevance"]["i2t"], "map_r"),
        ("PMRP", found["plausible"], "i2t_pmrp"),
        ("judgements", found["judgements"]["judgements"], "spearman"),
    ):
        assert re.search(rf"{name}: .*{metric} {round(metrics[metric], 2)}", shown)


@pytest.mark.parametrize(
    ("share", "said", "unsaid"),
    [
        (0.51, "explain: the teacher is weak, or pairs are wrong", "some are false negatives"),
        (0.5, "some are false negatives", "the teacher is weak"),
    ],
)
def test_a_table_above_most_positives_is_a_weak_teachers(planned, monkeypatch, unplotted, share, said, unsaid):
    shown = "aoq.pipeline.report.page.describe"
    monkeypatch.setattr(shown, lambda *given: replace(describe(*given), above_positive=share))
    page = render_report(planned)
    assert page.count(said) == 2
    assert unsaid not in page


def test_every_part_is_there(page):
    read = Read(page)
    assert {*read.all("h2", "id")} == {*SECTIONS}
    plots = read.all("svg", "aria-label")
    assert {"dev rsum", "dev i2t@1", "loss", "Cross-retrieval ranks"} <= set(plots)
    assert sum(label.startswith("Scores, ") for label in plots) == 2
    pictures = read.all("img", "src")
    assert len(pictures) > 20
    assert all(picture.startswith("data:image/jpeg;base64,") for picture in pictures)
    assert "no picture" in page  # dev3.png is none, dev11.png is not there
    assert "✓" in page
    weights = [[float(weight) for weight in word.split()] for word in read.all("button", "data-weights")]
    assert weights
    assert all(max(of_word) == pytest.approx(1.0) for of_word in weights)
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len({*ids})
    terms = {*read.all("button", "popovertarget")}
    assert {f"term-{[*GLOSSARY].index(word)}" for word in ("▲", "PMRP", "rsum", "95 % interval")} <= terms <= {*ids}


def test_a_page_is_small_enough_to_mail(page):
    assert len(page) < 2_000_000
    steps = np.arange(100_000, dtype=float)
    drawn = curves("loss", {"run": (steps.tolist(), np.sin(steps).tolist())}, {"run": "#000"}, "steps", "loss")
    assert len(drawn) < 30_000


def test_the_command_writes_the_same_page_and_says_what_is_missing(options, names, page, tmp_path):
    file = tmp_path / "page.html"
    made = aoq("report", *names, "-o", file, *options)
    written = file.read_text(encoding="utf-8")
    commands = re.findall("<code>(aoq evaluate .*?)</code>", written)
    assert len(commands) > len(names)
    assert all(command.endswith(f" {' '.join(options)}") for command in commands)
    assert written.replace(f" {' '.join(options)}</code>", "</code>") == page
    assert "not evaluated yet: student@seed=7, student@second_round.loss.name=online, " in made.stderr
    (name,) = [name for name in names if name.endswith("@seed=7")]
    assert f"aoq evaluate {name} {' '.join(options)}" in made.stderr


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_what_draws_it_is_missed_before_anything_is_trained(root, names, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    places = {"data_root": str(root), "artifact_root": str(tmp_path / "artifacts")}
    with pytest.raises(ImportError, match=rf'a report needs {package} .*`pip install "aoq\[report\]"`'):
        tasks.Report(runs=";".join(names), **places)
    refused = aoq("report", *names, "-o", tmp_path / "page.html", code=1)
    assert f"a report needs {package} " in refused.stderr
    assert not list(tmp_path.iterdir())
