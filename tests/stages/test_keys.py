"""Keys hold only what shapes a stage; pinned keys show a changed default."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tasks
from aoq.pipeline.stages.plan import plan

TINY = str(Path(__file__).parent.parent / "tiny.toml")


def chain_of(override="", name=TINY):
    return plan(name, data_root=Path("/nowhere"), artifact_root=Path("/nowhere"), override=override)


def keys(override="", name=TINY):
    return {stage: artifact.key for stage, artifact in chain_of(override, name).stages.items()}


def changed(override):
    before, after = keys(), keys(override)
    return {stage for stage in before if before[stage] != after[stage]}


def test_keys_are_pinned():
    """A key that moves without being meant to orphans everybody's artefacts; raise the stage's version if it is."""
    assert keys() == {
        "world": "c4df4f632be70931",
        "dataset": "ba15880af6510fba",
        "first_round": "de7d5fadfb4ce52d",
        "embeddings": "2cfdbab49cc71483",
        "hard_negatives": "0165504d591b462c",
        "control": "ca686e98bbe0c924",
        "second_round": "c36e7e508f0dec4d",
        "evaluation": "92808e74fdc60abf",
    }


STUDENT = {"second_round", "evaluation"}
BOTH = {"control", *STUDENT}
TABLE = {"hard_negatives", *STUDENT}
MINED = {"first_round", "embeddings", *TABLE}
SHAPED = [
    (set(), ['mining.search="onepass"', 'second_round.precision="float32"', "dataset.noise.ratio=0"]),
    (set(), ['dataset.demo.detail="partial", dataset.demo.feature_noise=2.0']),
    ({"evaluation"}, ["evaluation.folds=2"]),
    (TABLE, ["mining.h_images=7", 'mining.search="faiss:HNSW32"', 'mining.search="ivf"']),
    (BOTH, [f"second_round.{change}" for change in ("learning_rate=0.5", "weight_decay=0.01", "chunk=8", "ema=0.9")]),
    (BOTH, [f"second_round.{change}" for change in ('precision="bfloat16"', 'schedule="cosine"', "warmup_steps=5")]),
    (STUDENT, ["second_round.loss.alpha=0.4", 'second_round.loss.companions="anchors"']),
    (STUDENT, [f'second_round.start="{start}"' for start in ("teacher", "control")]),
    (STUDENT, ['sampling.strategy="normal"', "sampling.windows=[[0.5, 1.0]]", "sampling.guide_margin=0.0"]),
    (STUDENT, ['sampling.batches="mined"', 'sampling={strategy="weighted", gap=0.1, sharpness=50.0}']),
    (MINED, ["first_round.epochs=5"]),
    ({"control", *MINED}, ["seed=1"]),
    ({"dataset", "control", *MINED}, ["dataset.noise.ratio=0.2"]),
    ({"world", "dataset", "control", *MINED}, ["dataset.demo.seed=1", 'dataset.demo.detail="full"']),
    ({"world", "dataset", "control", *MINED}, ["dataset.demo.feature_noise=3.0", "dataset.demo.pictures=true"]),
]


@pytest.mark.parametrize(("stages", "override"), [(stages, one) for stages, some in SHAPED for one in some])
def test_only_what_shapes_a_stage_changes_its_key(override, stages):
    assert changed(override) == stages


def test_constraints_shape_what_trains_under_them():
    chosen = "second_round.constraints.ccr={weight=0.1, margin=0.2}"
    without, one = keys(name="demo"), keys(chosen, name="demo")
    assert {stage for stage in without if without[stage] != one[stage]} == {"control", "second_round", "evaluation"}
    assert keys(chosen.replace("0.1", "1.0"), name="demo")["second_round"] != one["second_round"]


def test_a_screen_is_a_stage_between_table_and_student():
    without, one = keys(), keys("screen={mutual_rank=3}")
    assert one.keys() - without.keys() == {"screen"}
    assert {stage for stage in without if without[stage] != one[stage]} == {"second_round", "evaluation"}
    other, kept = keys("screen={mutual_rank=4}"), keys('screen={mutual_rank=3, suspected="keep"}')
    assert other["screen"] != one["screen"]
    assert kept["screen"] == one["screen"]  # what becomes of suspects is the sampler's affair
    assert len({made["second_round"] for made in (without, one, other, kept)}) == 4
    assert keys('screen={mutual_rank=3}, second_round.loss.name="online"').keys() == without.keys()
    assert (one["screen"], one["second_round"]) == ("49eb3df80a5b2e2d", "33a9736b5340d163")  # pinned


def test_a_judges_file_shapes_a_screen_by_its_content_and_by_how_it_is_read(tmp_path):
    def made(options):
        chain = plan(TINY, data_root=tmp_path, artifact_root=tmp_path, override=f"screen={{{options}}}")
        return chain["screen"].key

    (tmp_path / "one.csv").write_text("caption_id,image_id,probability\n1,2,0.5\n")
    (tmp_path / "same.csv").write_text("caption_id,image_id,probability\n1,2,0.5\n")
    (tmp_path / "other.csv").write_text("caption_id,image_id,probability\n1,2,0.6\n")
    assert (
        made('judgements="one.csv"') == made('judgements="same.csv"') == made('judgements="one.csv", judged_match=0.5')
    )
    others = [
        '"other.csv"',
        '"one.csv", judged_match=0.7',
        '"one.csv", judged_grades=[1, 5]',
        '"one.csv", match_prior=0.1',
    ]
    assert len({made(f"judgements={options}") for options in ('"one.csv"', *others)}) == 5
    with pytest.raises(FileNotFoundError, match=r"\[screen\] judgements: .*none\.csv does not exist"):
        made('judgements="none.csv"')


CO_TAUGHT = """
dataset = {demo = {images = 60, dev_images = 20}, noise = {ratio = 0.2}}
model.name = "vsepp"
co_teaching = {warmup_epochs = 2, epochs = 4, decay_epochs = [3]}
"""


def test_co_teaching_needs_the_dataset_only(tmp_path):
    path = student(tmp_path, CO_TAUGHT)
    made = keys(name=path)
    assert made == {
        "world": "c4df4f632be70931",
        "dataset": "17212e73b34cb7db",
        "control": "316ce1f43af854ab",
        "second_round": "932d3459d3912079",
        "evaluation": "4958eb9bcdfa92d6",
    }
    chain = plan(path, data_root=tmp_path, artifact_root=tmp_path)
    assert [upstream.stage for upstream in chain["second_round"].upstream] == ["dataset"]
    changes = {"weight_decay=0.01": BOTH, 'precision="bfloat16"': BOTH, "epochs=5": BOTH, "threshold=0.6": STUDENT}
    for change, stages in changes.items():
        other = keys(f"co_teaching.{change}", path)
        assert {stage for stage in made if made[stage] != other[stage]} == stages


def test_a_guide_needs_the_teachers_vectors():
    roots = {"data_root": "/nowhere", "artifact_root": "/nowhere"}
    for override, asks in (("", False), ("sampling.guide_margin=0.0", True)):
        needed = {
            type(task).__name__ for task in tasks.SecondRound(experiment=TINY, override=override, **roots).requires()
        }
        assert ("Embeddings" in needed) == asks


def test_each_noise_is_another_dataset():
    hows = ["ratio=0", "ratio=0.2", "ratio=0.3", "ratio=0.2, seed=1", "ratio=0.2, level='image'"]
    assert len({keys(f"dataset.noise={{{how}}}")["dataset"] for how in hows}) == 5
    with pytest.raises(FileNotFoundError, match=r"\[dataset.noise\] file: .*none.npy does not exist"):
        keys('dataset.noise.file="none.npy"')


def test_a_teacher_with_the_controls_schedule_is_the_control():
    same = "second_round={epochs=3, batch_size=16, learning_rate=1e-2, warmup=['sum', 'online'], loss={name='offtri'}}"
    made = keys(same + ", first_round.epochs=3")
    assert made["control"] == made["first_round"]


def test_a_student_starts_from_weights_that_fit(tmp_path):
    started = {start: keys(f'second_round.start="{start}"')["second_round"] for start in ("teacher", "control")}
    assert len({keys()["second_round"], *started.values()}) == 3
    text = Path(TINY).read_text()
    text = text[: text.index("[first_round]")] + text[text.index("[second_round]") :]
    scan = tmp_path / "scan.toml"
    scan.write_text(f'teacher = "{TINY}"\n{text.replace("vsepp", "scan")}')
    assert "control" in keys('second_round.start="control"', str(scan))
    with pytest.raises(
        ValueError, match=r"another \[model\] or vocabulary \('vsepp', here 'scan'\).* \"control\" takes"
    ):
        keys('second_round.start="teacher"', str(scan))
    fused = tmp_path / "fused.toml"
    fused.write_text(f'[fusion]\nmembers = ["{TINY}", "{TINY}@seed=1"]\nmethod = "rank"\nh_captions=9\nh_images=9')
    with pytest.raises(ValueError, match="by an encoder or of other tables, and not by a first round"):
        keys(f'second_round.start="teacher", teacher="{fused}"', str(scan))
    with pytest.raises(ValueError, match=r"guide_margin asks for the teacher's vectors, .* comes from none; leave it"):
        keys(f'sampling.guide_margin=0.1, teacher="{fused}"', str(scan))
    with pytest.raises(ValueError, match="with 'online' leave it out"):
        keys('second_round.start="control", second_round.loss.name="online"')


def test_the_control_of_a_loss_on_logits_is_that_loss_without_a_table():
    nce, adaptive = (keys(f'second_round.loss.name="{name}"') for name in ("infonce", "adapinfonce"))
    assert nce["control"] == adaptive["control"] != keys()["control"]
    assert nce["second_round"] != adaptive["second_round"]
    triples = keys('second_round.loss={name="infonce", companions="anchors"}')
    assert (triples["control"] == nce["control"], triples["second_round"] == nce["second_round"]) == (True, False)
    for number in ("temperature=0.1", "learn_temperature=false", "max_scale=50.0", "hardness_weight=9.0"):
        other = keys(f'second_round.loss={{name="infonce", {number}}}')
        assert {stage for stage in nce if nce[stage] != other[stage]} == {"control", "second_round", "evaluation"}
    made = chain_of('second_round.loss={name="adapinfonce", temperature=0.1}')
    loss = made["control"].ingredients["training"]["loss"]
    assert (loss["name"], loss["temperature"], "alpha" in loss) == ("infonce", 0.1, False)


def test_a_start_up_that_is_not_heeded_has_no_part_in_keys():
    plain = 'second_round={epochs=3, loss={name="LOSS"}}, first_round={epochs=3, loss={name="infonce"}}'
    round_two = {"second_round", "evaluation"}
    for loss, warmup, changed in (
        ("sigmoid", "", set()),
        ("offtri", "", {"control", *round_two}),
        ("onlyoffline", "", {"control"}),
        ("onlyoffline", "warmup=['sum'], ", {"control"}),
        ("onlyoffline", "warmup=['online'], ", {"control", *round_two}),
    ):
        chosen = plain.replace("LOSS", loss).replace("epochs=3", f"{warmup}epochs=3", 1)
        started = chosen.replace("epochs=3", 'start_up="auto", epochs=3')
        assert {stage for stage, key in keys(chosen).items() if keys(started)[stage] != key} == changed
    same = plain.replace("LOSS", "infonce").replace("epochs=3,", "epochs=3, batch_size=16,")
    assert keys(same)["control"] == keys(same)["first_round"]


def test_fine_tuning_has_no_warm_up_and_its_control_keeps_it():
    warm = "second_round={epochs=4, warmup=['sum', 'online'], start_up='auto', loss={name='offtri'}START}"
    plain, tuned = (chain_of(warm.replace("START", start)) for start in ("", ", start='control'"))
    assert tuned["control"].key == plain["control"].key
    assert tuned["control"] in tuned["second_round"].upstream
    trained = [chain["second_round"].ingredients["training"] for chain in (plain, tuned)]
    assert [(training["warmup"], training.get("start_up")) for training in trained] == [
        (["sum", "online"], "auto"),
        ([], None),
    ]


def test_a_student_draws_no_more_than_the_table_keeps():
    assert keys("sampling.h_images=8")
    with pytest.raises(ValueError, match=r"\[sampling\] h_images = 9, and the table keeps 8"):
        keys("sampling.h_images=9")


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data" / "small"
    data.mkdir(parents=True)
    for split in ("train", "dev"):
        np.save(data / f"{split}_ims.npy", np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32))
        (data / f"{split}_caps.txt").write_text("".join(f"a dog {n}\n" for n in range(8)))
    return data


def student(tmp_path, text):
    path = tmp_path / "student.toml"
    path.write_text(text)
    return str(path)


EXPERIMENT = """
dataset.folder = "small"
model.name = "vsepp"
mining = {h_captions = 4, h_images = 2}
second_round = {epochs = 2, loss.name = "adapoffquin"}
"""


def planned(tmp_path, text):
    return plan(student(tmp_path, text), data_root=tmp_path / "data", artifact_root=tmp_path / "artifacts")


def test_keys_follow_the_datas_content_not_its_place(folder, tmp_path):
    text = EXPERIMENT + 'first_round = {epochs = 2, loss.name = "online"}'
    before = planned(tmp_path, text)["first_round"].key
    moved = tmp_path / "elsewhere" / "data"
    moved.parent.mkdir()
    folder.parent.rename(moved)
    after = plan(student(tmp_path, text), data_root=moved, artifact_root=tmp_path)["first_round"].key
    assert after == before
    (moved / "small" / "train_caps.txt").write_text("".join(f"a cat {n}\n" for n in range(8)))
    assert plan(student(tmp_path, text), data_root=moved, artifact_root=tmp_path)["first_round"].key != before


def test_missing_files_are_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"teacher_weights: .*none\.safetensors does not exist"):
        planned(tmp_path, 'teacher_weights = "none.safetensors"' + EXPERIMENT)
    with pytest.raises(FileNotFoundError, match=r"vocabulary: .*v\.json does not exist"):
        planned(
            tmp_path, EXPERIMENT + 'first_round = {epochs = 2, loss.name = "online"}\ndataset.vocabulary = "v.json"'
        )
    with pytest.raises(FileNotFoundError, match=r"\[screen\] positives: .*cxc\.csv does not exist"):
        planned(tmp_path, EXPERIMENT + 'first_round = {epochs = 2, loss.name = "online"}\nscreen.positives = "cxc.csv"')
    (folder / "dev_ims.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"dev_ims\.npy"):
        planned(tmp_path, EXPERIMENT + 'first_round = {epochs = 2, loss.name = "online"}')


def test_teachers_in_a_circle_are_refused(folder, tmp_path):
    path = tmp_path / "student.toml"
    text = f'teacher = "{path}"\ndataset.folder = "small"\nmodel.name = "vsepp"\n'
    with pytest.raises(ValueError, match="teachers in a circle"):
        planned(tmp_path, text + 'second_round = {epochs = 2, loss.name = "adapoffquin"}')


@pytest.mark.parametrize(("name", "known"), [("scan", False), ("vse_infinity", True), ("dual_encoder", True)])
def test_towers_that_came_later_have_no_part_in_keys_while_there_are_none(tmp_path, name, known):
    text = Path(TINY).read_text().replace("vsepp", name)
    if name == "scan":
        text = f'teacher = "{TINY}"\n' + text[: text.index("[first_round]")] + text[text.index("[second_round]") :]
    (tmp_path / "one.toml").write_text(text)
    model = chain_of(name=str(tmp_path / "one.toml"))["second_round"].ingredients["model"]
    assert "image_tower" not in model
    assert ("text_tower" in model) == known
