"""Keys hold only what shapes a stage; pinned keys show a changed default."""

from pathlib import Path

import pytest

import tasks
from tests.stages.conftest import REFRESHED, TINY, chain_of, keys_of

TEXT = Path(TINY).read_text()
ROUNDS = TEXT[TEXT.index("[first_round]") : TEXT.index("[second_round]")]
CO_TAUGHT = """
dataset = {demo = {images = 60, dev_images = 20}, noise = {ratio = 0.2}}
model.name = "vsepp"
co_teaching = {warmup_epochs = 2, epochs = 4, decay_epochs = [3]}
"""


def keys(override="", name=TINY, root=Path("/nowhere")):
    return keys_of(chain_of(override, name, root))


def changed(override, before="", name=TINY):
    one, other = keys(before, name), keys(override, name)
    return {stage for stage in one if one[stage] != other[stage]}


def test_keys_are_pinned(write):
    """A key that moves without being meant to orphans everybody's artefacts; raise the stage's version if it is."""
    assert keys() == {
        "world": "c4df4f632be70931",
        "dataset": "ba15880af6510fba",
        "first_round": "de7d5fadfb4ce52d",
        "embeddings": "2cfdbab49cc71483",
        "hard_negatives": "0165504d591b462c",
        "control": "ca686e98bbe0c924",
        "second_round": "c151c0c0687079c3",
        "evaluation": "ca7c61eb4f1ca4ac",
    }
    screened = keys("screen={mutual_rank=3}")
    assert (screened["screen"], screened["second_round"]) == ("49eb3df80a5b2e2d", "921c5528f087cff5")
    assert keys(name=write("student", CO_TAUGHT)) == {
        "world": "c4df4f632be70931",
        "dataset": "17212e73b34cb7db",
        "control": "316ce1f43af854ab",
        "second_round": "932d3459d3912079",
        "evaluation": "4958eb9bcdfa92d6",
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
    (STUDENT, ['sampling.strategy="normal"', "sampling.windows=[[0.5, 1.0]]", 'sampling.batches="mined"']),
    (STUDENT, ["sampling.guide_margin=0.0", "sampling.guide_similarity=0.9"]),
    (STUDENT, ['sampling={strategy="weighted", gap=0.1, sharpness=50.0}', "screen={mutual_rank=3}"]),
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
    assert changed(chosen, name="demo") == BOTH
    assert changed(chosen.replace("0.1", "1.0"), chosen, name="demo") == BOTH


def test_a_screen_is_a_stage_between_table_and_student():
    one, screen = keys("screen={mutual_rank=3}"), "screen={mutual_rank=%s}"
    assert one.keys() - keys().keys() == {"screen"}
    assert changed(screen % 4, screen % 3) == {"screen", *STUDENT}
    assert changed(screen % '3, suspected="keep"', screen % 3) == STUDENT  # the sampler treats suspects
    assert "screen" not in keys('screen={mutual_rank=3}, second_round.loss.name="online"')


def test_a_judges_file_shapes_a_screen_by_its_content_and_by_how_it_is_read(tmp_path):
    for name, probability in (("one", 0.5), ("same", 0.5), ("other", 0.6)):
        (tmp_path / f"{name}.csv").write_text(f"caption_id,image_id,probability\n1,2,{probability}\n")

    def made(options):
        return keys(f"screen={{judgements={options}}}", root=tmp_path)["screen"]

    assert made('"one.csv"') == made('"same.csv"') == made('"one.csv", judged_match=0.5')
    ways = ['"one.csv", judged_match=0.7', '"one.csv", judged_grades=[1, 5]', '"one.csv", match_prior=0.1']
    assert len(set(map(made, ['"one.csv"', '"other.csv"', *ways]))) == 5
    with pytest.raises(FileNotFoundError, match=r"\[screen\] judgements: .*none\.csv does not exist"):
        made('"none.csv"')


def test_co_teaching_needs_the_dataset_only(write):
    path = write("student", CO_TAUGHT)
    assert [upstream.stage for upstream in chain_of(name=path)["second_round"].upstream] == ["dataset"]
    for change in ("weight_decay=0.01", 'precision="bfloat16"', "epochs=5"):
        assert changed(f"co_teaching.{change}", name=path) == BOTH
    assert changed("co_teaching.threshold=0.6", name=path) == STUDENT


def test_a_guide_needs_the_teachers_vectors():
    roots = {"data_root": "/nowhere", "artifact_root": "/nowhere"}
    for override, asks in (("", False), ("sampling.guide_margin=0.0", True)):
        needed = tasks.SecondRound(experiment=TINY, override=override, **roots).requires()
        assert ("embeddings" in {task.stage for task in needed}) == asks
    assert changed(f'second_round.loss.name="online", {override}', 'second_round.loss.name="online"') == STUDENT


def test_each_noise_is_another_dataset():
    hows = ["ratio=0", "ratio=0.2", "ratio=0.3", "ratio=0.2, seed=1", "ratio=0.2, level='image'"]
    assert len({keys(f"dataset.noise={{{how}}}")["dataset"] for how in hows}) == 5


def test_a_teacher_with_the_controls_schedule_is_the_control():
    same = "second_round={epochs=3, batch_size=16, learning_rate=1e-2, warmup=['sum', 'online'], loss={name='offtri'}}"
    made = keys(same + ", first_round.epochs=3")
    assert made["control"] == made["first_round"]
    plain = keys(same.replace("offtri", "online"))
    assert plain["second_round"] == plain["control"] == keys(same)["control"]


def test_a_student_starts_from_weights_and_draws_from_a_table_that_fit(write):
    scan = write("student", f'teacher = "{TINY}"\n{TEXT.replace(ROUNDS, "").replace("vsepp", "scan")}')
    assert "control" in keys('second_round.start="control"', scan)
    fusion = f'[fusion]\nmembers = ["{TINY}", "{TINY}@seed=1"]\nmethod = "rank"\nh_captions=9\nh_images=9'
    fused = write("fused", fusion)
    for name, override, message in (
        (scan, 'second_round.start="teacher"', r"another \[model\] or vocabulary \('vsepp', here 'scan'\).* takes"),
        (scan, f'second_round.start="teacher", teacher="{fused}"', "from other tables, not by a first round"),
        (scan, f'sampling.guide_margin=0.1, teacher="{fused}"', "guide_margin needs .*has none; leave it"),
        (TINY, 'second_round.start="control", second_round.loss.name="online"', "with 'online' leave it out"),
        (TINY, "sampling.h_images=9", r"\[sampling\] h_images = 9, but the table keeps 8"),
        (TINY, "refresh.rounds=-1", "refresh.rounds"),
        (TINY, f"{REFRESHED}, sampling.h_images=5", "h_images = 5, but the table keeps 4"),
        (TINY, f"{REFRESHED}, screen.image_similarity=0.9", "need the teacher's vectors"),
    ):
        with pytest.raises(ValueError, match=message):
            keys(override, name)
    assert keys("sampling.h_images=8")


def test_the_control_of_a_loss_on_logits_is_that_loss_without_a_table():
    named = "second_round.loss={name='%s'%s}"
    nce = named % ("infonce", "")
    assert changed(nce) == BOTH
    for offline in (("adapinfonce", ""), ("infonce", ", companions='anchors'")):
        assert changed(named % offline, nce) == STUDENT
    for number in ("temperature=0.1", "learn_temperature=false", "max_scale=50.0", "hardness_weight=9.0"):
        assert changed(named % ("infonce", f", {number}"), nce) == BOTH
    loss = chain_of(named % ("adapinfonce", ", temperature=0.1"))["control"].ingredients["training"]["loss"]
    assert (loss["name"], loss["temperature"], "alpha" in loss) == ("infonce", 0.1, False)


@pytest.mark.parametrize(
    ("loss", "warmup", "stages"),
    [
        ("sigmoid", "", set()),
        ("offtri", "", BOTH),
        ("onlyoffline", "", {"control"}),
        ("onlyoffline", "warmup=['sum'], ", {"control"}),
        ("onlyoffline", "warmup=['online'], ", BOTH),
    ],
)
def test_a_start_up_that_is_not_heeded_has_no_part_in_keys(loss, warmup, stages):
    plain = f'second_round={{{warmup}epochs=3, loss.name="{loss}"}}, first_round={{epochs=3, loss.name="infonce"}}'
    assert changed(plain.replace("epochs=3", 'start_up="auto", epochs=3'), plain) == stages


def test_fine_tuning_has_no_warm_up_and_its_control_keeps_it():
    warm = "second_round={epochs=4, warmup=['sum', 'online'], start_up='auto', loss={name='offtri'}%s}"
    plain, tuned = (chain_of(warm % start) for start in ("", ", start='control'"))
    assert tuned["control"].key == plain["control"].key
    assert tuned["control"] in tuned["second_round"].upstream
    trained = [chain["second_round"].ingredients["training"] for chain in (plain, tuned)]
    assert [(training["warmup"], training.get("start_up")) for training in trained] == [
        (["sum", "online"], "auto"),
        ([], None),
    ]


def test_keys_follow_the_datas_content_not_its_place(make, own_root, tmp_path):
    before, moved = keys_of(make("own", root=own_root)), tmp_path / "elsewhere"
    own_root.rename(moved)
    assert keys_of(make("own", root=moved)) == before
    (moved / "one" / "train_caps.txt").write_text("".join(f"a cat {n}\n" for n in range(200)))
    assert keys_of(make("own", root=moved))["first_round"] != before["first_round"]


def test_missing_files_are_named(make):
    weights = 'teacher_weights = "none.safetensors"\nmining = {h_captions = 9, h_images = 4}'
    for changed, message in (
        ({"teacher": weights}, r"teacher_weights: .*none\.safetensors does not exist"),
        ({"more": 'dataset.vocabulary = "v.json"'}, r"vocabulary: .*v\.json does not exist"),
        ({"more": 'screen.positives = "cxc.csv"'}, r"\[screen\] positives: .*cxc\.csv does not exist"),
        ({"more": 'dataset.dev = "none"'}, r"none_ims\.npy"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            make("student", **changed)


@pytest.mark.parametrize(("name", "known"), [("scan", False), ("vse_infinity", True), ("dual_encoder", True)])
def test_towers_that_came_later_have_no_part_in_keys_while_there_are_none(write, name, known):
    text = TEXT if name != "scan" else f'teacher = "{TINY}"\n{TEXT.replace(ROUNDS, "")}'
    model = chain_of(name=write("student", text.replace("vsepp", name)))["second_round"].ingredients["model"]
    assert "image_tower" not in model
    assert ("text_tower" in model) == known
