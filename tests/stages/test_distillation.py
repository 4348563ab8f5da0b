"""A student learns the scores of teachers: of their embeddings, of files' vectors, and of the table."""

import json
from html import unescape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from aoq.pipeline.config.losses import InfoNCELoss
from aoq.pipeline.embedding import EmbeddingStore, similarity_matrix
from aoq.pipeline.files import file_sha256
from aoq.pipeline.report.collect import collect_runs, collect_teachers
from aoq.pipeline.stages import draws
from aoq.pipeline.stages.chain import Member, find_teachers
from aoq.pipeline.stages.plan import plan, plan_parts
from aoq.pipeline.stages.report import find_control, plan_report, render_report
from aoq.pipeline.stages.splits import open_pairs, open_train_split
from aoq.pipeline.training.batches import read_items, score_all, score_batch
from aoq.pipeline.training.checkpoint import load_model
from tests.cli.conftest import run as aoq
from tests.stages.conftest import lines_with, make_stage

FUSED = 'fusion = {{method = "rank", members = ["{}", "{}"], h_captions = 9, h_images = 4}}'
TAUGHT = 'epochs = 1, batch_size = 16, loss.name = "LOSS", distillation = {{{}}}'


def figures(chain, stage="second_round"):
    return lines_with("distillation", chain, stage)


def test_scores_follow_the_rows_of_a_batch():
    rng = np.random.default_rng(0)
    store = EmbeddingStore(rng.random((9, 3), "f4"), rng.random((20, 3), "f4"))
    pairs = np.stack([rng.permutation(9)[:5], rng.permutation(20)[:5]], axis=1)
    scores = score_all(store, pairs)
    for row, image in enumerate(pairs[:, 0]):
        for column, caption in enumerate(pairs[:, 1]):
            assert scores[row, column] == pytest.approx(store.images[image] @ store.captions[caption], rel=1e-5)


@pytest.mark.parametrize("loss", ["online", "adapoffquin", "infonce"])
def test_the_tables_teacher_teaches_by_default(make, loss):
    chain = make("own", "mining", "second_round", loss=loss, second_round=TAUGHT.format("weight = 1.0"))
    assert chain["embeddings"] in chain["second_round"].upstream
    assert chain["control"].key == make("plain", loss=loss)["control"].key
    assert all(0 < value < 1e4 for value in figures(chain))


def test_lists_teach_the_tables_scores_without_an_offline_loss_and_short_ones_fewer_pairs(make, caplog):
    caplog.set_level("INFO")
    taught = TAUGHT.format('kind = "lists", negatives = 6, list_loss = "ranking"')
    chain = make("own", "mining", "second_round", loss="online", second_round=taught)
    assert chain["hard_negatives"] in chain["second_round"].upstream
    assert all(value > 0 for value in figures(chain))
    said = "t2i: the shortest list has 4 negatives, and 6 are drawn: short lists have fewer terms"
    assert said in caplog.text


@pytest.mark.parametrize(("columns", "drawn"), [(True, "anchors"), (False, "none")])
def test_lists_teach_a_loss_without_offline_columns_that_draws_nothing_else(columns, drawn):
    assert InfoNCELoss(name="infonce", offline_columns=columns).draws == drawn


def test_missing_teachers_are_needed_and_count_in_the_key(make, taught_by, file_of):
    make("own")
    teachers = f'teachers = ["{file_of("own")}", "{file_of("own")}@seed=1"]'
    chain = make("student", loss="online", teacher=taught_by("own"), second_round=TAUGHT.format(teachers))
    needed = [stage for name, stage in chain.needed("second_round") if name.endswith((".toml", "seed=1"))]
    assert needed == ["embeddings", "embeddings"]
    one = teachers.replace("@seed=1", "@seed=2")
    other = make("other", loss="online", teacher=taught_by("own"), second_round=TAUGHT.format(one))
    assert chain["second_round"].key != other["second_round"].key


def test_a_first_round_may_be_taught(make, file_of):
    make("own", "mining")
    taught = f'epochs = 1, batch_size = 16, loss.name = "online", distillation.teachers = ["{file_of("own")}"]'
    first = f"first_round = {{{taught}}}\nmining = {{h_captions = 9, h_images = 4}}"
    chain = make("next", "dataset", "first_round", teacher=first)
    assert figures(chain, "first_round")


def test_vectors_of_files_teach_in_the_order_of_their_ids(make, data_root, file_of, places):
    chain = make("own", "mining")
    store, split = EmbeddingStore.open(chain["embeddings"].path), open_train_split(chain)
    order = np.random.default_rng(0).permutation(split.image_count)
    np.save(data_root / "images.npy", 3 * store.images[order])
    np.save(data_root / "captions.npy", store.captions)
    pq.write_table(pa.table({"id": [split.ids[row] for row in order]}), data_root / "ids.parquet")
    files = '{images = "images.npy", captions = "captions.npy", image_ids = "ids.parquet::id"}'
    taught = TAUGHT.format(f"teachers = [{files}]")
    student = make("student", "second_round", loss="online", second_round=taught)
    own = make("by_own", "second_round", loss="online", second_round=TAUGHT.format(""))
    assert figures(student) == pytest.approx(figures(own), rel=1e-3)
    alone = make("alone", loss="online", teacher="", second_round=taught)
    assert find_control(Member(file_of("alone"), alone, "evaluation")) is not None
    assert not [*find_teachers(student)]  # files alone teach it
    assert [*alone.stages] == ["dataset", "control", "second_round", "evaluation", "student_embeddings"]
    assert alone["second_round"].key == student["second_round"].key
    shown = json.loads(aoq("estimate", "--experiment", file_of("alone"), *places, "--json").stdout)
    assert (shown["steps"], len(shown["drawing"])) == ({"round two": 13}, 1)
    with pytest.raises(ValueError, match="set exactly one of"):
        make("alone", teacher="", second_round=taught)
    pq.write_table(pa.table({"id": [*split.ids, "more.jpg"]}), data_root / "more.parquet")
    more = make("student", loss="online", second_round=taught.replace("ids.parquet", "more.parquet"))
    with pytest.raises(ValueError, match=r"1 of files: more\.parquet::id has 41 ids, but images\.npy 40 vectors"):
        make_stage(more, "second_round")
    chain = make("student", loss="online", second_round=TAUGHT.format(f"weight = 0.7, teachers = [{files}]"))
    np.save(data_root / "captions.npy", -store.captions)
    with pytest.raises(ValueError, match=r"captions\.npy"):
        make_stage(chain, "second_round")


def test_vectors_by_ids_need_an_image_each(make, own_root):
    ids = ["one.jpg", "one.jpg", *(f"{image}.jpg" for image in range(38))]
    (own_root / "one" / "train_ids.txt").write_text("".join(f"{name}\n" for name in ids))
    (own_root / "ids.txt").write_text("".join(f"{name}\n" for name in [*dict.fromkeys(ids), "more.jpg"]))
    for side, count in (("images", 40), ("captions", 200)):
        np.save(own_root / f"{side}.npy", np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32))
    taught = TAUGHT.format('teachers = [{images = "images.npy", captions = "captions.npy", image_ids = "ids.txt"}]')
    chain = make("student", "mining", loss="online", second_round=taught, root=own_root)
    with pytest.raises(ValueError, match=r"images 0 and 1 both have the id 'one\.jpg'; give each image its own"):
        make_stage(chain, "second_round")


def test_a_student_without_a_first_round_teaches_by_its_own_embeddings(make, taught_by, file_of):
    make("own", "mining")
    teacher = make("second", "second_round", "student_embeddings", loss="squaredoffquin", teacher=taught_by("own"))
    model, weights = EmbeddingStore.open(teacher["student_embeddings"].path), teacher["second_round"].path
    assert teacher["student_embeddings"].manifest()["weights_sha256"] == file_sha256(weights / "model.safetensors")
    third = TAUGHT.format(f'teachers = ["{file_of("second")}"]')
    chain = make("third", "second_round", loss="online", teacher=taught_by("own"), second_round=third)
    assert chain["second_round"].upstream[-1].key == teacher["student_embeddings"].key
    assert [stage for name, stage in chain.needed("second_round") if name] == ["student_embeddings"]
    assert not np.array_equal(model.images, EmbeddingStore.open(chain["embeddings"].path).images)


def test_a_teacher_that_attends_scores_each_batch(make, taught_by, file_of, places):
    make("own", "mining")
    teacher = make("fragments", "second_round", model="scan", teacher=taught_by("own"), loss="online")
    taught = TAUGHT.format(f'teachers = ["{file_of("own")}", "{file_of("fragments")}"]')
    chain = make("student", "second_round", loss="online", second_round=taught)
    assert teacher["second_round"].key in {artifact.key for artifact in chain["second_round"].upstream}
    assert all(0 < value < 1e4 for value in figures(chain))
    assert chain.start_of("second_round") is None  # the student starts from fresh weights
    shown = aoq("estimate", "--experiment", file_of("student"), *places, "--json").stdout
    steps = dict.fromkeys(["round one", "round two of fragments", "round two"], 13)  # the first also teaches, as `own`
    shown = json.loads(shown)
    assert (shown["steps"], "search" in shown) == (steps, False)
    assert shown["drawing"] == ["the student draws nothing from a table, so none is made for it"]
    shown = aoq("results", file_of("student"), *places).stdout.splitlines()
    assert [line.split()[:2] for line in shown[1:3]] == [["teacher", "1"], ["teacher", "2"]]
    reported = collect_runs([("student", chain)])
    assert [one["label"] for one in collect_teachers(reported)] == ["own", "fragments"]
    listed = {one["key"] for one in json.loads(aoq("status", file_of("student"), *places, "--json").stdout)}
    assert {teacher["second_round"].key, chain["embeddings"].key} <= listed
    model = load_model(teacher["second_round"].path / "model.safetensors")
    pairs, rng = open_pairs(teacher, "train"), np.random.default_rng(0)
    rows = np.stack([rng.permutation(40)[:5], rng.permutation(200)[:5]], axis=1)
    scores = score_batch(model, *(part.to(torch.device("cpu")) for part in read_items(pairs, rows)))
    expected = similarity_matrix(model, pairs, torch.device("cpu"))[rows[:, 0]][:, rows[:, 1]]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_results_tell_the_table_and_the_teacher_apart(make, data_root, tmp_path, file_of, places):
    chain = make("own", "mining", "second_round", "control", loss="offtri", second_round=TAUGHT.format(""))
    shown = aoq("results", file_of("own"), *places).stdout
    assert "not trained, the table alone: aoq run" in shown
    assert "distillation" in shown.partition("not trained")[0]
    assert shown.count("second_round.distillation=false") == 1
    roots = {"data_root": data_root, "artifact_root": tmp_path / "artifacts"}
    for part, (override, artifact) in plan_parts(chain).items():
        make_stage(plan(file_of("own"), override=override, **roots), "second_round")
        assert artifact.exists()
        assert f"\n{part} - control: " in aoq("results", file_of("own"), *places).stdout
    report = plan_report(file_of("own"), **roots)
    assert [member.artifact.exists() for member in report.members] == [False, False]  # the run, its control
    for member in report.members:
        make_stage(member.chain, "evaluation")
    page = unescape(render_report(report))
    assert all(page.count(f"{part} − control: ") == 1 for part in plan_parts(chain))
    assert "offtri + distillation<small>batch</small>" in page


def test_a_part_that_other_options_need_or_that_is_the_control_is_left_out(make, file_of):
    start = TAUGHT.replace("epochs", 'start = "control", epochs').format("")
    assert [*plan_parts(make("started", loss="offtri", second_round=start))] == ["the table alone"]
    lists = TAUGHT.format('kind = "lists"')
    assert not plan_parts(make("listed", loss="online", second_round=lists))
    items = TAUGHT.format('kind = "lists"') + ', control = "items"'
    assert not plan_parts(make("items", loss="online", second_round=items))  # without scores it uses no table
    mined = make("mined", loss="offtri", second_round=TAUGHT.format(""), more='sampling.batches = "mined"')
    assert [*plan_parts(mined)] == ["the table alone"]
    again = "refresh = {rounds = 1, h_captions = 9, h_images = 4}"
    taught = TAUGHT.format(f'teachers = ["{file_of("mined")}@seed=1"]')
    assert not plan_parts(make("again", loss="offtri", second_round=taught, more=again))  # it has another table


def test_teachers_that_cannot_teach_are_refused(make, taught_by, file_of, data_root, tmp_path, monkeypatch):
    make("own", "mining")
    make("two", folder="two")
    make("fragments", model="scan", loss="online", teacher=taught_by("own"))
    make("longer", model="vsrn", options="embedding_size = 16, word_size = 8, normalise_images = false")
    (tmp_path / "fused.toml").write_text(FUSED.format(file_of("own"), file_of("own") + "@seed=1"))
    np.save(data_root / "few.npy", np.ones((3, 2), np.float32))
    monkeypatch.setattr(draws, "CONSTANT", 3.0)
    for distillation, message in (
        (f'teachers = ["{file_of("two")}"]', "have different training data"),
        (f'teachers = ["{file_of("fused")}"]', "has neither embeddings nor one trained model, so it scores no batch"),
        (f'teachers = ["{file_of("fragments")}"], positives = "one"', "scores on another scale; leave it out"),
        (f'teachers = ["{file_of("longer")}"], positives = "one"', "scores on another scale; leave it out"),
        (f'teachers = ["{file_of("student")}"]', "the teachers form a cycle"),
        (f'teachers = ["{file_of("two")}", "{file_of("two")}"]', "a teacher appears twice"),
        (
            f'teachers = ["{file_of("own")}", "{file_of("own")}@seed=0"]',
            "seed=0'\\] are the same; name each once",
        ),
        ("negatives = 2", r'kind = "batch" does not use '),
        ("weight = 0.0", "weight: Input should be greater than 0"),
        ('teachers = [{images = "few.npy", captions = "few.npy"}]', "few.npy has 3 vectors, but the split has 40 im"),
        ("weight = 2.0", "teacher of the table gives all pairs nearly the same score, so there is nothing to learn"),
    ):
        with pytest.raises(ValueError, match=message):
            make("student", "second_round", loss="online", second_round=TAUGHT.format(distillation))
    monkeypatch.setattr(draws, "score_all", lambda *given: torch.tensor([0.5, torch.nan]))
    with pytest.raises(ValueError, match="teacher of the table gives scores that are not finite; name another"):
        make("student", "second_round", loss="online", second_round=TAUGHT.format("weight = 3.0"))
