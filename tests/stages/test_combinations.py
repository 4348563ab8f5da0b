"""Experiments that are made of others: a table of their tables, by rerank and fusion, and an ensemble."""

import json

import numpy as np
import pytest

import tasks
from aoq.models import build_model
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.evaluation.hubness import without_hubs
from aoq.pipeline.evaluation.retrieval import evaluate_similarity
from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.splits import open_train_split
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.files import corrects_hubs
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.checkpoint import save_model
from tests.cli.conftest import run as aoq
from tests.stages.conftest import STUDENT, TINY, make_stage

RERANK = (
    '[rerank]\nshortlist = "{shortlist}"\nteacher = "{teacher}"\nh_captions = 6\nh_images = 3\nchecked_anchors = 4\n'
)
IMPORTED = "\n".join(['weights = "slow.safetensors"', *STUDENT.format(teacher="", loss="").splitlines()[2:4]])
MINING = ["world", "dataset", "first_round", "embeddings", "hard_negatives"]


def fusion_of(*members, method="rank", depth=(20, 8)):
    return f'[fusion]\nmembers = {list(members)}\nmethod = "{method}"\nh_captions = {depth[0]}\nh_images = {depth[1]}\n'


@pytest.fixture
def planned(tmp_path, write):
    """The chain of an experiment that is given by its text, or by its name."""

    def chain(name, text=None, override=""):
        path = name if text is None else write(name, text)
        return plan(path, data_root=tmp_path, artifact_root=tmp_path / "artifacts", override=override)

    return chain


def made(chain, *stages):
    for stage in stages:
        make_stage(chain, stage)
    return chain


def test_a_table_of_scores_without_hubs(planned):
    mined = made(planned(TINY), *MINING)
    chain = made(planned(TINY, override="mining.hubness=0.1"), "hard_negatives")
    assert (chain["embeddings"].key, chain["hard_negatives"].path.is_dir()) == (mined["embeddings"].key, True)
    table, store = read_table(chain["hard_negatives"].path / "table"), EmbeddingStore.open(chain["embeddings"].path)
    assert table.manifest["teacher"]["hubness"] == 0.1
    assert corrects_hubs(table.manifest)
    sides = without_hubs(store.images, store.captions, temperature=0.1)
    expected = hard_negatives(*sides, open_train_split(chain).image_of, h=(20, 8), metric="dot")
    for found, same in ((table.i2t, expected.i2t), (table.t2i, expected.t2i)):
        assert np.array_equal(found.negative_ids, same.negative_ids)
        assert np.array_equal(found.scores, same.scores)
    assert not [*chain["hard_negatives"].path.rglob("corrected")]
    with pytest.raises(ValueError, match=r"relative_margin needs positive scores; with \[mining\] hubness use"):
        planned(TINY, override="mining.hubness=0.1, screen.relative_margin=0.05")


def test_a_slow_teachers_order_and_a_fusion_are_tables_like_any_other(planned, tmp_path):
    mined = made(planned(TINY), *MINING)
    sizes = {key: mined["dataset"].manifest()[key] for key in ("feature_size", "vocabulary_size")}
    section = ModelSection.kind("scan")(name="scan", embedding_size=16, word_size=8, bidirectional=False)
    about = {"name": "scan", "options": section.model_dump(exclude={"name"}) | sizes}
    save_model(tmp_path / "slow.safetensors", build_model("scan", **about["options"]).state_dict(), about)
    slow = made(planned("slow", IMPORTED), "second_round")
    scored = RERANK.format(shortlist=TINY, teacher=tmp_path / "slow.toml")
    reranked = made(planned("reranked", scored), "hard_negatives")
    fused = made(planned("fused", fusion_of(TINY, str(tmp_path / "reranked.toml"), depth=(24, 9))), "hard_negatives")
    tables = [read_table(chain["hard_negatives"].path / "table") for chain in (mined, reranked, fused)]
    assert [(table.i2t.h, table.t2i.h) for table in tables] == [(20, 8), (6, 3), (24, 9)]
    first, second, third = (table.i2t.negative_ids for table in tables)
    for anchor in range(60):
        assert set(second[anchor]) <= set(first[anchor])
        assert set(third[anchor]) - {-1} == set(first[anchor])
    weights = slow["second_round"].manifest()["files"]["model.safetensors"]["sha256"]
    assert tables[1].manifest["teacher"] == {"experiment": "slow", "model": "scan", "weights_sha256": weights}
    assert tables[1].manifest["shortlist"]["tables"]["i2t"] == tables[0].manifest["directions"]["i2t"]["sha256"]
    members = tables[2].manifest["teacher"]["fusion"]["members"]
    assert members[1]["teacher"]["experiment"] == members[1]["experiment"] == str(tmp_path / "reranked.toml")
    assert members[1]["tables"]["t2i"] == tables[1].manifest["directions"]["t2i"]["sha256"]
    for chain in (reranked, fused):
        assert audit(chain["hard_negatives"].path / "table") == []
    student = planned("student", STUDENT.format(teacher=tmp_path / "fused.toml", loss="offtri"))
    assert "metrics" in made(student, "second_round")["second_round"].manifest()
    for experiment, listed in (("student", True), ("reranked", False)):
        name = str(tmp_path / f"{experiment}.toml")
        places = ["--artifact-root", str(tmp_path / "artifacts"), "--data-root", str(tmp_path)]
        shown = aoq("inspect", name, "--image", 3, *places)
        assert ("listed by" in shown.stdout) == listed
        (found,) = json.loads(aoq("inspect", name, "--image", 3, "--json", *places).stdout)
        assert (found["lowest_positive_score"] is None) == listed
        aoq("status", name, *places)
        sources = {name for negative in found["negatives"] for name in negative["sources"]}
        assert sources == ({"tiny", "reranked"} if listed else set())
    np.testing.assert_array_equal(tables[2].i2t.sources[0] & 1 > 0, np.isin(third[0], first[0]))


def test_what_a_derived_table_needs_is_made_first(planned, tmp_path, write):
    slow = write("slow", STUDENT.format(teacher=TINY, loss="online"))
    reranked = write("reranked", RERANK.format(shortlist=f"{TINY}@seed=1", teacher=slow))
    fused = write("fused", fusion_of(TINY, reranked))
    student = write("student", STUDENT.format(teacher=fused, loss="offtri"))
    roots = {"data_root": str(tmp_path), "artifact_root": str(tmp_path / "artifacts")}
    for name, expected in (
        (student, [("hard_negatives", TINY, ""), ("hard_negatives", reranked, "")]),
        (reranked, [("hard_negatives", TINY, "seed=1"), ("second_round", slow, "")]),
    ):
        needed = tasks.HardNegatives(experiment=name, **roots).requires()
        found = [(task.stage, task.experiment, task.override) for task in needed]
        assert found == [*expected, ("dataset", name, "")]


def test_keys_hold_what_shapes_a_derived_table(planned, write):
    slow = write("slow", STUDENT.format(teacher=TINY, loss="online"))
    scored, fused = RERANK.format(shortlist=TINY, teacher=slow), fusion_of(TINY, f"{TINY}@seed=1")
    of_scored = ["h_images=4", "checked_anchors=5", f'teacher="{slow}@seed=1"', f'shortlist="{TINY}@seed=1"']
    of_fused = ['method="score"', "weights=[1.0, 2.0]", "h_images=7"]

    def key(text, override=""):
        return planned("derived", text, override)["hard_negatives"].key

    for section, text, changes in (("rerank", scored, of_scored), ("fusion", fused, of_fused)):
        assert len({key(text), *(key(text, f"{section}.{change}") for change in changes)}) == 1 + len(changes)
    lists = "second_round.distillation={kind='lists', negatives=2, list_loss='%s'}"
    student = STUDENT.format(teacher=write("fused", fused), loss="offtri")
    assert planned("student", student, lists % "ranking")
    with pytest.raises(ValueError, match="list_loss = 'kl' needs the scores of positives, which a table fused"):
        planned("student", student, lists % "kl")
    unset = fused.replace("h_captions = 20\nh_images = 8\n", "")  # the members keep 40 and 16
    assert key(unset) == key(fusion_of(TINY, f"{TINY}@seed=1", depth=(40, 16)))
    unread = f'rerank.shortlist="{TINY}@second_round.epochs=4"'  # its student has no part in it
    assert key(scored, unread) == key(scored)


OTHER_DATA = f"{TINY}@dataset.demo.seed=1"
SEEDS = [f"{TINY}@seed={seed}" for seed in range(9)]
SCORED = RERANK.format(shortlist=TINY, teacher="SLOW")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SCORED.replace(TINY, f"{TINY}@mining.h_images=2"), "h_images = 3, but the table of .* keeps 2"),
        (SCORED.replace(TINY, OTHER_DATA), "'slow' and 'tiny' have different training data"),
        (SCORED.replace(TINY, "IMPORTED"), r"'imported' has stages .*, not 'hard_negatives'"),
        (SCORED.replace(TINY, "BOTH"), "shortlist '.*both.toml' is an ensemble, which mines no table"),
        (SCORED.replace("SLOW", "BOTH"), "teacher '.*both.toml' is an ensemble, which mines no table"),
        (SCORED.replace("SLOW", "FUSED"), "teacher '.*fused.toml' trains nothing and has no weights"),
        (
            SCORED.replace("SLOW", TINY.replace("tiny", "noisy")),
            "teacher '.*noisy.toml' is two co-taught networks, so it scores no pairs",
        ),
        (SCORED.replace("SLOW", "STUDENT"), "the teachers form a cycle: .*wrong.toml -> .*student.toml"),
        (fusion_of(TINY, OTHER_DATA), "different training data"),
        (fusion_of(TINY, TINY), "a member appears twice"),
        (fusion_of(TINY, "SLOW"), "'.*tiny.toml' and '.*slow.toml' have the same table"),
        (fusion_of(TINY), "at least 2 items"),
        (fusion_of(*SEEDS), "at most 8 items"),
        (fusion_of(TINY, "BOTH"), "member '.*both.toml' is an ensemble"),
        (fusion_of(*SEEDS[:2], depth=(41, 8)), "h_captions = 41, but all members together keep 40"),
        (fusion_of(*SEEDS[:2], method="mean"), r"fusion.method: .*'rank' or 'score'"),
        (fusion_of(*SEEDS[:2]) + "depth = 3", r"\[fusion\] has unknown keys \['depth'\]"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused(planned, tmp_path, write, text, message):
    (tmp_path / "slow.safetensors").touch()
    named = {
        "SLOW": write("slow", STUDENT.format(teacher=TINY, loss="online")),
        "IMPORTED": write("imported", IMPORTED),
        "BOTH": write("both", f"[ensemble]\nmembers = {SEEDS[:2]}"),
        "FUSED": write("fused", fusion_of(*SEEDS[:2])),
        "STUDENT": write("student", STUDENT.format(teacher=tmp_path / "wrong.toml", loss="offtri")),
    }
    for name, path in named.items():
        text = text.replace(f'"{name}"', f'"{path}"').replace(f"'{name}'", f"'{path}'")
    with pytest.raises(ValueError, match=message):
        planned("wrong", text)


def ensemble_of(*members, weights=None):
    text = f"[ensemble]\nmembers = {[*map(str, members)]}\n"
    return f"{text}weights = {weights}" if weights else text


def test_an_ensemble_averages_the_members_similarities(make, tmp_path):
    """Members may have vocabularies of their own."""
    stages = ["mining", "second_round", "evaluation"]
    one = make("one", *stages)
    two = make("two", *stages, more="dataset.min_count = 1")
    members = tmp_path / "one.toml", f"{tmp_path / 'one.toml'}@dataset.min_count=1"
    both = make("both", "evaluation", text=ensemble_of(*members, weights=[1.0, 3.0]))
    assert [member.chain["evaluation"].key for member in both.members] == [one["evaluation"].key, two["evaluation"].key]
    scores = [np.load(chain["evaluation"].path / "similarity.npy") for chain in (one, two, both)]
    np.testing.assert_allclose(scores[2], (scores[0] + 3 * scores[1]) / 4, atol=1e-6)
    manifest, image_of = both["evaluation"].manifest(), open_split(both.folder, "dev").image_of
    assert manifest["metrics"] == evaluate_similarity(scores[2], image_of)
    assert manifest["member_metrics"] == [chain["evaluation"].manifest()["metrics"] for chain in (one, two)]
    assert make("equal", text=ensemble_of(*members))["evaluation"].key != both["evaluation"].key


def test_an_ensemble_that_cannot_be_is_refused(make, taught_by, tmp_path):
    make("own")
    make("elsewhere", folder="two")
    own, elsewhere = (tmp_path / f"{name}.toml" for name in ("own", "elsewhere"))
    both = make("both", text=ensemble_of(own, f"{own}@seed=1"))
    with pytest.raises(ValueError, match=r"ensemble 'both' has stages .*'evaluation'\], not 'second_round'"):
        both["second_round"]
    for members, message in (
        ((own, elsewhere), "'own' and 'elsewhere' have different data"),
        ((TINY, f"{TINY}@dataset.demo.seed=1"), r"have different data .*'world'"),
    ):
        with pytest.raises(ValueError, match=message):
            make("wrong", text=ensemble_of(*members))
    with pytest.raises(ValueError, match=r"both.toml' is an ensemble, which mines no table"):
        make("student", teacher=taught_by("both"))
