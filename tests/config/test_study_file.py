"""Study files: the shipped ones load, and every mistake is one clear error before anything is made."""

from pathlib import Path

import pytest

from aoq.pipeline.config.load import load_experiment, names_in, override_text, parse_override, split_member
from aoq.pipeline.config.study import STUDIES, load_study
from aoq.pipeline.config.training import control_training
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.study import plan_study
from aoq.tasks import Ablation

TINY = Path(__file__).parent.parent / "tiny.toml"
TEXT = f"""
baseline = "online"
seeds = [0, 1]

[models]
small = "{TINY}"
large = "{TINY}@model.embedding_size=32, second_round.loss={{name='adapoffquin', margin_online=0.3, alpha=0.5}}"

[arms.quin]
says = "AdapOffQuin"

[arms.online]
change.second_round.loss.name = "online"

[arms.quintuplet]
change.second_round.loss.name = "offquin"
change_for.large.second_round.learning_rate = 5e-3

[arms.short]
change.sampling.h_captions = 5
models = ["small"]
"""


@pytest.fixture
def planned(tmp_path):
    def of(text=TEXT):
        path = tmp_path / "trial.toml"
        path.write_text(text)
        return plan_study(str(path), data_root=tmp_path / "nowhere", artifact_root=tmp_path / "artifacts")

    return of


def test_files_and_folders_may_have_an_at_sign_and_so_may_overrides():
    assert split_member("a@b/x.toml@seed=1") == ("a@b/x.toml", "seed=1")
    assert split_member("a@b/x.toml") == ("a@b/x.toml", "")
    assert split_member('demo@teacher="x.toml@seed=1"') == ("demo", 'teacher="x.toml@seed=1"')


@pytest.mark.parametrize("name", names_in(STUDIES))
def test_shipped_studies_are_of_known_experiments(name):
    study = load_study(name)
    for experiment in study.models.values():
        assert load_experiment(*split_member(experiment))
    assert study.baseline in study.arms


@pytest.mark.parametrize("model", ["vsepp", "sgr"])
def test_the_noise_study_compares_ncr_with_the_same_schedule(model):
    models = load_study("noise").models
    ncr, plain = (load_experiment(*split_member(models[name])) for name in (f"ncr_{model}", model))
    assert ncr.model == plain.model
    assert ncr.dataset.max_regions == plain.dataset.max_regions
    assert control_training(ncr.student) == control_training(plain.student)


def test_the_demo_study_can_be_planned(tmp_path):
    assert len(plan_study("demo", data_root=tmp_path, artifact_root=tmp_path).cells) == 6


def test_cells_go_seed_by_seed_and_share_what_is_common(planned):
    cells = planned().cells
    named = [(cell.seed, cell.model, cell.arm) for cell in cells]
    of_seed = [("small", "online"), ("small", "quin"), ("small", "quintuplet"), ("small", "short")]
    of_seed += [("large", "online"), ("large", "quin"), ("large", "quintuplet")]
    assert named == [(seed, *rest) for seed in (0, 1) for rest in of_seed]
    assert len({cell.chain["evaluation"].key for cell in cells}) == len(cells)
    small = [cell.chain for cell in cells if cell.seed == 0 and cell.model == "small"]
    for stage in ("world", "dataset", "first_round", "embeddings", "hard_negatives"):
        assert len({chain[stage].key for chain in small}) == 1
    assert small[0]["second_round"].key == small[1]["control"].key  # the online arm is the control


def test_a_cell_is_an_experiment_that_luigi_plans_alike(planned):
    for cell in planned().cells:
        name, override = split_member(cell.reference)
        alone = plan(name, override=override, data_root=Path(), artifact_root=Path())
        assert alone["evaluation"].key == cell.chain["evaluation"].key


def test_a_loss_keeps_the_numbers_of_the_one_whose_place_it_takes(planned):
    rounds = {(c.model, c.arm): c.chain.experiment.second_round for c in planned().cells}
    assert rounds["large", "quintuplet"].loss.margin_online == 0.3
    assert rounds["large", "online"].loss.margin == 0.3
    assert rounds["small", "online"].loss.margin == 0.2
    online = planned(TEXT.replace("'adapoffquin', margin_online=0.3, alpha=0.5", "'online', margin=0.3")).cells
    assert {c.chain.experiment.second_round.loss.margin_online for c in online if c.arm == "quintuplet"} == {0.2, 0.3}
    assert (rounds["large", "quintuplet"].learning_rate, rounds["small", "quintuplet"].learning_rate) == (5e-3, 1e-2)


def test_any_change_is_a_line_of_toml():
    change = {"seed": 3, "a": {"b": {"c": 'x "y" é', "d": [0.5, True]}, "e": 1e-05}, "my val": {"a.b": 3}}
    change["f"] = [{"g": [1], "h": {"i": "j"}}]
    assert parse_override(override_text(change)) == change


def test_the_studys_key_follows_its_cells(planned):
    key = planned().artifact.key
    assert planned().artifact.key == key
    for old, new in (("[0, 1]", "[0, 2]"), ('says = "Adap', 'says = "adap'), ("= 5\n", "= 6\n")):
        assert planned(TEXT.replace(old, new)).artifact.key != key


EMPTY = 'baseline = "online"\nseeds = [0]\nmodels = {}\narms = {}'
SMALL, SHORT, ONLINE = f'small = "{TINY}"', "sampling.h_captions = 5", 'change.second_round.loss.name = "online"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('baseline = "online"', 'baseline = "onlin"', r"baseline 'onlin' is not an arm; \[arms\] has \['quin', 'onl"),
        ('models = ["small"]', 'models = ["smal"]', r"\[arms.short\] names the models \['smal'\]; .* has \['small'"),
        (SMALL, 'small = "tinny"', r"\[models\] small: unknown experiment 'tinny'; .*`aoq list` shows all"),
        (SMALL, 'small = "f8k_fusion"', r"\[models\] small: experiment 'f8k_fusion' trains nothing"),
        (SMALL, f'small = "{TINY}@seed=7"', r"\[models\] small sets a seed; set the study's `seeds` instead"),
        (SMALL, 'small = "none.toml"', r"\[models\] small: there is no experiment file /.*none.toml"),
        ("[0, 1]", "[0, 1, 0]", r"a seed appears twice in \[0, 1, 0\]"),
        ("[0, 1]", "[]", r"seeds: .*at least 1 item"),
        (TEXT, EMPTY, r"models: .*at least 1 item.*; arms: .*at least 1 item"),
        ("seeds =", 'columns = ["rsum", "map"]\nseeds =', r"columns: there are no metrics \['map'\]; known are"),
        ("[0, 1]", "[-1]", r"trial.toml: seeds.0: .*greater than or equal to 0 \(got -1\)$"),
        ("[0, 1]", "3", r"seeds: Input should be a valid array \(got 3\)"),
        ("seeds", "sedes", r"the top level has unknown keys \['sedes'\]; allowed keys are \['arms', 'baseline'"),
        ("change.sampling.h_captions", "changes.sampling", r"unknown keys \['changes'\]; allowed keys are \['change'"),
        (SHORT, "sampling.h_captions = 50", r"model 'small' .* cannot run arm 'short': .* keeps 20; .* `models`"),
        ('name = "offquin"', 'name = "offquim"', r"model 'small' .* cannot run arm 'quintuplet': .*loss.*'offquim'"),
        (SHORT, "seed = 5", r"\[arms.short\] changes the seed"),
        (SHORT, "evaluation.folds = 2", r"arm 'short' of model 'small' is evaluated on other data"),
        (ONLINE, 'models = ["small"]', r"baseline 'online' does not run on \['large'\]"),
        (ONLINE, 'change.second_round.loss = "online"', r"cannot run arm 'online': .*loss: .*got 'online'"),
        ("[models]", "[models", "not a TOML file"),
        ("[models]", 'name = "../x"\n[models]', r"name: .*pattern"),
        (f"change.{SHORT}", "change.dataset.folder = 1979-05-27", r"folder = 1979-05-27 is not a value that"),
        (f"change.{SHORT}", "change.screen = {}", r"'short': .*no rule is set"),
        (SHORT, 'dataset.noise.file = "none.npy"', r"arm 'short': \[dataset.noise\] file: .*none.npy does not exist"),
    ],
)
def test_mistakes_are_named(planned, tmp_path, old, new, message):
    assert old in TEXT
    with pytest.raises(ValueError, match=message) as raised:
        planned(TEXT.replace(old, new, 1))
    assert "trial" in str(raised.value)
    assert not (tmp_path / "artifacts").exists()


def test_arms_that_are_one_training_are_named(planned, caplog):
    planned()
    assert caplog.text == ""
    planned(TEXT.replace("sampling.h_captions = 5", "second_round.batch_size = 16"))  # as it is in the file
    assert [record.getMessage() for record in caplog.records] == [
        "study 'trial': arms 'quin' and 'short' of model 'small' are the same training"
    ]


def test_an_unknown_study_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown study ''; `aoq list` shows all"):
        Ablation()
    with pytest.raises(ValueError, match=r"there is no study file /.*/none.toml"):
        load_study("none.toml")
