"""A chain knows what its student starts from and trains on, the depth of its table, and its folders."""

import pytest

from aoq.pipeline.stages.chain import find_teachers, run_name, table_depths, table_owner
from tests.stages.conftest import REFRESHED, TINY, chain_of


def test_a_student_knows_what_it_starts_from():
    assert chain_of().start_of("second_round") is None
    for named, stage in (("teacher", "first_round"), ("control", "control")):
        chain = chain_of(f'second_round.start="{named}"')
        start = chain.start_of("second_round")
        assert start is chain[stage]
        assert start in chain["second_round"].upstream
    again = chain_of(f'second_round.start="teacher", {REFRESHED}').start_of("second_round")
    assert again is not None
    assert again.key == chain_of('second_round.start="teacher"')["second_round"].key


def test_a_table_that_is_made_of_others_trains_nothing(write):
    fusion = f'[fusion]\nmembers = ["{TINY}", "{TINY}@seed=1"]\nmethod = "rank"\nh_captions=9\nh_images=7'
    fused = chain_of(name=write("fused", fusion))
    assert not fused.trains_on_table
    assert not fused.is_ensemble
    assert [member.run for member in fused.members] == ["tiny", "tiny@seed=1"]
    assert table_depths(fused) == {"h_captions": 9, "h_images": 7}


def test_runs_have_a_folder_for_each_override():
    assert run_name("f8k_scan") == "f8k_scan"
    assert (run_name("configs/own.toml"), run_name("lr0.01"), run_name("own/lr0.01.toml")) == (
        "own",
        "lr0.01",
        "lr0.01",
    )
    override = 'seed=1, second_round.loss.name="offtri"'
    assert run_name("f8k_scan", override) == "f8k_scan@seed=1,second_round.loss.name=offtri"
    assert run_name("f8k_scan", 'teacher="f8k_vsepp@seed=1"') == "f8k_scan@teacher=f8k_vsepp@seed=1"
    alike = [run_name("f8k_scan", f'dataset.folder="{folder}"') for folder in ("ab", "a/b", "照片", "写真")]
    assert len(set(alike)) == 4
    assert alike[0] == "f8k_scan@dataset.folder=ab"
    long = [run_name("f8k_scan", "x" * 300 + end) for end in "ab"]
    assert {len(name) for name in long} == {200}
    assert long[0] != long[1]


def test_the_lineage_goes_from_the_student_to_the_owner_of_the_table(write):
    text = 'dataset.demo={images=60, dev_images=20}\nmodel.name="vsepp"\nsecond_round={epochs=1, loss.name="offtri"}'
    middle = write("middle", f'teacher="{TINY}"\n{text}')
    chain = chain_of(name=write("last", f'teacher="{middle}"\n{text}'))
    assert [each.experiment.name for each in chain.lineage] == ["last", "middle", "tiny"]
    assert chain.owner("hard_negatives") is table_owner(chain) is chain.lineage[-1]
    assert chain.owner("control") is chain
    refusal = r"has stages \['world', 'dataset', .*'evaluation', 'student_embeddings'\], not 'screen'"
    with pytest.raises(ValueError, match=refusal):
        chain.owner("screen")


@pytest.mark.parametrize(("override", "stage"), [("", "first_round"), (REFRESHED, "second_round")])
def test_the_teacher_is_the_training_that_scored_the_table(override, stage):
    ((title, teacher),) = find_teachers(chain_of(override))
    assert (title, teacher.stage, teacher.artifact.key) == ("teacher", stage, chain_of()[stage].key)
