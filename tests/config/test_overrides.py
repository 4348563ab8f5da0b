"""An override reaches the experiments that a file names, and is refused where it has no place."""

import pytest

from aoq.pipeline.config.load import load_experiment


@pytest.mark.parametrize(
    ("teacher", "override", "becomes"),
    [
        ("f8k_vsepp", "seed=1, dataset.max_regions=3", "f8k_vsepp"),
        ("f8k_vsepp", "dataset.folder='mine', dataset.max_regions=3", 'f8k_vsepp@dataset.folder="mine"'),
        ("f8k_vsepp", "dataset={train_images=9, dev='val'}", 'f8k_vsepp@dataset.train_images=9, dataset.dev="val"'),
        ("f8k_vsepp", "dataset.dev='val'", "f8k_vsepp"),  # its pairs are the same
        ("f8k_vsepp", "dataset.folder='f8k_precomp'", "f8k_vsepp"),
        ("f8k_vsepp@seed=1", "dataset.noise.ratio=0.2", "f8k_vsepp@seed=1, dataset.noise.ratio=0.2"),
        ("f8k_vsepp@dataset.folder='own'", "dataset.folder='mine'", 'f8k_vsepp@dataset.folder="mine"'),
        ("f8k_vsepp", "dataset.folder='mine', teacher='f8k_vsrn@dataset.folder=\"own\"'", None),  # asked for by name
        ("f8k_fusion", "dataset.folder='mine'", 'f8k_fusion@dataset.folder="mine"'),
        (
            "f8k_vsepp@dataset.vocabulary='own.json'",
            "dataset={folder='mine', min_count=1}",
            'f8k_vsepp@dataset.vocabulary="own.json", dataset.folder="mine"',
        ),
        (
            "coco_vsrn",
            "dataset.folder='mine', evaluation={split='test', folds=1}",
            'coco_vsrn@dataset.folder="mine", evaluation.split="test", evaluation.folds=1',
        ),
    ],
)
def test_a_change_of_the_training_data_is_the_teachers_too(tmp_path, teacher, override, becomes):
    student = tmp_path / "student.toml"
    student.write_text(
        f'teacher = "{teacher}"\nsecond_round = {{epochs = 1, loss.name = "adapoffquin"}}\n'
        '[dataset]\nfolder = "f8k_precomp"\n[model]\nname = "scan"\n'
    )
    assert load_experiment(str(student), override).teacher == (becomes or 'f8k_vsrn@dataset.folder="own"')


def test_a_change_of_the_training_data_is_passed_on_to_what_a_table_or_an_ensemble_is_made_of(tmp_path):
    change = 'dataset.folder="mine", evaluation.split="test"'
    rerank = load_experiment("f8k_scan_rerank", change).rerank
    assert (rerank.shortlist, rerank.teacher) == (f"f8k_vsepp@{change}", f"f8k_scan@{change}")
    assert load_experiment("f8k_fusion", change).fusion.members == (f"f8k_vsrn@{change}", f"f8k_vsepp@{change}")
    both = tmp_path / "both.toml"
    both.write_text('ensemble.members = ["f8k_sgr", "f8k_sgr@seed=1"]')
    ensemble = load_experiment(str(both), change)
    assert ensemble.ensemble.members == (f"f8k_sgr@{change}", f"f8k_sgr@seed=1, {change}")
    assert ensemble.evaluation.split == "test"
    with pytest.raises(ValueError, match=r"unknown keys \['dataset'\]"):
        load_experiment("f8k_fusion", 'dataset={folder="mine", max_regions=3}')  # each member says the second itself


def test_a_teachers_file_that_is_no_experiment_is_left_to_its_own_refusal(tmp_path):
    (teacher := tmp_path / "teacher.toml").write_text("dataset = 3\n")
    student = f"teacher='{teacher}', dataset.folder='mine'"
    assert load_experiment("f8k_scan", student).teacher.startswith(str(teacher))


def test_data_of_one_kind_replace_those_of_another():
    folder = load_experiment("demo_noisy", "dataset.folder='mine'")
    assert (folder.dataset.folder, folder.dataset.demo) == ("mine", None)
    assert folder.teacher == 'demo_vsepp@dataset.folder="mine"'
    assert load_experiment("f8k_scan", "dataset.demo.images=50").teacher == "f8k_vsepp@dataset.demo.images=50"
    assert load_experiment("f8k_scan", "dataset.demo.images=50").dataset.folder is None
    with pytest.raises(ValueError, match="set one of `folder`"):
        load_experiment("f8k_scan", "dataset={folder='mine', demo={images=50}}")


def test_a_round_that_the_teacher_has_is_changed_there():
    with pytest.raises(
        ValueError,
        match=r"f8k_scan has no \[first_round\]: it takes the table of 'f8k_vsepp'. "
        r"Change that one, with teacher='f8k_vsepp@first_round.epochs=2'",
    ):
        load_experiment("f8k_scan", "first_round.epochs=2")
    taught = load_experiment("f8k_scan", "teacher='f8k_vsepp@first_round.epochs=2'")
    assert taught.teacher == "f8k_vsepp@first_round.epochs=2"


def test_a_refusal_names_the_file_and_the_override_if_there_is_one(tmp_path):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('dataset.folder = "mine"\nsecond_round = {epochs = 0}\n')
    with pytest.raises(ValueError, match=r"wrong\.toml: "):
        load_experiment(str(wrong))
    with pytest.raises(ValueError, match=r"f8k_vsepp\.toml, changed by the override 'first_round\.epochs=0': "):
        load_experiment("f8k_vsepp", "first_round.epochs=0")


def test_a_file_that_a_file_names_lies_beside_it(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    rounds = 'second_round = {epochs = 1, loss.name = "online", distillation.teachers = ["./b.toml@seed=1"]}\n'
    data = '[dataset]\nfolder = "f8k_precomp"\n[model]\nname = "scan"\n'
    (tmp_path / "own" / "a.toml").write_text(f'teacher = "./b.toml"\n{rounds}{data}')
    (tmp_path / "own" / "b.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    student = load_experiment("own/a.toml")
    assert (student.teacher, student.second_round.distillation.teachers[0]) == ("own/b.toml", "own/b.toml@seed=1")
    monkeypatch.chdir(tmp_path / "own")
    assert load_experiment("a.toml").teacher == "./b.toml"
