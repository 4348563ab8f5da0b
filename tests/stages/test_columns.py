"""A student that trains on several offline negatives per anchor, from the table and its screen to the weights."""

import pytest
import torch

from aoq.pipeline.report.verdict import gain_on_control
from aoq.pipeline.stages.chain import Member
from aoq.pipeline.stages.plan import plan_parts
from aoq.pipeline.stages.report import find_control
from aoq.pipeline.training.checkpoint import read_weights
from tests.stages.conftest import OWN, SHORT, lines_with

SCREENED = "screen.near_text = 0.4\nsampling = {{negatives = 6{}}}"


@pytest.mark.parametrize("loss", ["infonce", "adapinfonce", "sigmoid", "offtri", "onlinequin"])
def test_a_student_trains_on_shared_and_own_columns_of_a_screened_table(make, loss, caplog):
    caplog.set_level("INFO")
    plain = make("plain", "mining", loss=loss)
    losses = []
    for name, option in (("shared", ""), ("own", ', columns = "own"')):
        chain = make(name, "screen", "second_round", loss=loss, more=SCREENED.format(option))
        assert chain["hard_negatives"].key == plain["hard_negatives"].key
        assert chain["control"].key == plain["control"].key
        assert chain["second_round"].key != plain["second_round"].key
        losses.append(lines_with("retrieval_loss", chain))
    assert all(shared > own for shared, own in zip(*losses, strict=True))  # of more negatives, or a harder one
    assert "t2i: the shortest list has 4 negatives, and 6 are drawn: short lists have fewer terms" in caplog.text


def test_a_student_draws_the_least_similar_where_all_are_within_its_pairs_own_margin(make):
    plain = make("all", "mining", "second_round", loss="offtri")  # draws from whole lists
    more = 'screen = {absolute_margin = 2.0, margin_positive = "own"}'
    chains = plain, make("last", "screen", "second_round", loss="offtri", more=more)
    of_all, of_last = (lines_with("retrieval_loss", chain) for chain in chains)
    assert all(later < former for former, later in zip(of_all, of_last, strict=True))


@pytest.mark.parametrize(
    ("loss", "more", "times"),
    [
        ("infonce", "sampling.negatives = 2", 3),
        ("offtri", "sampling.negatives = 3", 4),
        ("offquin", "", 3),
        ("offquin", "", 5),
        ("online", "", 1),
    ],
)
def test_a_control_of_equal_items_has_larger_batches_and_as_many_steps(make, loss, more, times, data_root, tmp_path):
    warmup, lists = '["sum"]' if loss == "offquin" else "[]", 2 * (times == 5)  # drawn in the warm-up too
    taught = f', distillation = {{kind = "lists", negatives = {lists}}}' * bool(lists)
    longer = SHORT.replace("epochs = 1", "epochs = 4, decay_epochs = [3]")
    equal = f'{longer}{taught}, control = "items", warmup = {warmup}'
    chain = make("equal", "mining", "control", loss=loss, more=more, second_round=equal)
    usual = make("usual", loss=loss, more=more, second_round=equal.replace(', control = "items"', ""))
    assert chain["second_round"].key == usual["second_round"].key
    assert (chain["control"].key == usual["control"].key) == (times == 1)
    training, alone = chain.experiment.trained_by("control"), int(loss == "offquin")
    drawing = [4 - alone, 3 - alone]
    assert (training.batch_size, training.epochs) == (16 * times, alone * (1 + lists) + times * drawing[0])
    assert training.decay_epochs == (alone * (1 + lists) + times * drawing[1],)
    assert chain["control"].manifest()["steps"] == -(-200 // training.batch_size) * training.epochs
    if times > 1:
        member = Member(str(tmp_path / "equal.toml"), chain, "evaluation")
        control = find_control(member)
        assert control.chain["second_round"].key == chain["control"].key
        make("equal", "second_round", loss=loss, more=more, second_round=equal)
        assert "; the control encoded as many images and captions" in gain_on_control(chain)


@pytest.mark.parametrize("control", ['"steps"', '"items"', "2"])
def test_a_control_continues_from_the_teacher_as_a_fine_tuned_student_does(make, control):
    """With the temperature that it learnt; a step of no length leaves both where they started."""
    still = f'{SHORT}, learning_rate = 1e-30, start = "teacher", control = {control}'
    learning = OWN.replace('loss.name = "online"', 'learning_rate = 0.05, loss = {name = "infonce", temperature = 0.5}')
    chain = make("tuned", "mining", "control", "second_round", loss="infonce", second_round=still, teacher=learning)
    stages = [chain[stage] for stage in ("first_round", "control", "second_round")]
    first, *others = (read_weights(stage.path / "model.safetensors")[1] for stage in stages)
    assert all(torch.allclose(one, other[name]) for other in others for name, one in first.items())
    learnt = [stage.manifest()["learnt_by_epoch"] for stage in stages]
    assert learnt[0][0] != pytest.approx({"temperature": 0.5}, abs=0.01)
    assert all(one == pytest.approx(learnt[0][0]) for later in learnt[1:] for one in later)
    assert stages[0] in stages[1].upstream
    assert ("as many images and captions" in gain_on_control(chain)) == (control == '"items"')
    assert ("took 2 times as many steps" in gain_on_control(chain)) == (control == "2")
    assert (stages[1].manifest()["steps"] == 2 * stages[2].manifest()["steps"]) == (control == "2")
    assert "not equal" not in gain_on_control(chain)
    paced = make("paced", loss="offtri", second_round=f'{still}, start_up = "auto"')
    assert paced.experiment.trained_by("control").start_up is None


def test_a_student_without_a_table_continues_from_the_teacher_as_a_control_does(make):
    tuned = SHORT.replace("epochs = 1", 'epochs = 2, epoch_steps = 7, start = "teacher"')
    chain = make("tuned", loss="infonce", second_round=f'{tuned}, control = "steps"')
    alone = tuned.replace("loss.name = ", "loss = {name = ") + ", offline_columns = false}"
    plain = make("alone", "mining", "second_round", loss="infonce", second_round=alone)
    assert plain["second_round"].key == chain["control"].key
    assert plain["first_round"] in plain["second_round"].upstream
    assert lines_with("learning_rate", plain)[-1] > 0
    assert plain["second_round"].manifest()["steps"] == 14


@pytest.mark.parametrize(("control", "batch_size", "steps"), [('"steps"', 16, 7), ('"items"', 48, 7), ("1.3", 16, 9)])
def test_the_control_of_a_refreshed_student_takes_the_steps_of_all_rounds_from_the_teacher(
    make, control, batch_size, steps, data_root, tmp_path
):
    tuned = SHORT.replace("epochs = 1", 'epochs = 2, epoch_steps = 7, decay_epochs = [1], start = "teacher"')
    more = "refresh = {rounds = 2, h_captions = 9, h_images = 4}\nsampling.negatives = 2"
    chain = make("again", loss="infonce", second_round=f"{tuned}, control = {control}", more=more)
    training = chain.experiment.trained_by("control")
    assert (training.epochs, training.batch_size, training.decay_epochs) == (6, batch_size, (3,))
    assert training.epoch_steps == steps
    member = Member(str(tmp_path / "again.toml"), chain, "evaluation")
    found = find_control(member)
    assert found is not None
    first = make("once", loss="infonce", second_round=tuned)["first_round"]
    assert first.key in {one.key for one in chain["control"].upstream}
    assert [stage for _, stage in chain.needed("control")] == ["dataset", "first_round"]
    assert first.key not in {one.key for one in chain["second_round"].upstream}


def test_a_softmax_that_learns_scores_has_both_parts_of_its_gain(make):
    learning = SHORT.replace("loss.name", 'distillation.kind = "batch", loss.name')
    parts = plan_parts(make("both", loss="infonce", second_round=learning))
    assert [*parts] == ["the table alone", "the teachers' scores alone"]


def test_a_control_whose_batch_exceeds_the_data_is_refused_before_anything_trains(make):
    large = SHORT.replace("batch_size = 16", 'batch_size = 128, control = "items"')
    refused = r'control = "items" makes batches of 384, but the training split has 200 captions; lower batch_size\.$'
    with pytest.raises(ValueError, match=refused):
        make("large", "dataset", "control", loss="offquin", second_round=large)
