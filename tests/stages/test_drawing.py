"""Before a student trains it is said how hard its draws are, how many may match, and what gained nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.config.tables import Sampling
from aoq.pipeline.data.demo import is_true, read_scenes
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.stages import draws
from aoq.pipeline.stages.draws import cautions, describe_draws, forecast, open_table
from aoq.pipeline.tables.table import read_table

LOGITS = 'second_round.loss={name="infonce"}, second_round.start_up="auto"'


@pytest.mark.parametrize(
    ("experiment", "changes", "images", "caution"),
    [
        ("f8k_vsepp", "", 6000, "'vsepp' compares one vector with one"),
        ("f8k_vsepp", "", 2000, "'vsepp' compares one vector with one"),
        ("f8k_vsepp", LOGITS + ', sampling.hardness="auto"', 6000, "loss 'infonce' on the hardest ranks"),
        ("f8k_vsepp", LOGITS, 6000, None),
        ("f8k_scan", "", 4000, None),
        ("f8k_scan", "", 3999, "3,999 images are few"),
        ("demo", "", 800, None),
    ],
)
def test_what_was_measured_to_gain_nothing_is_said_before_one_trains(experiment, changes, images, caution):
    said = list(cautions(load_experiment(experiment, changes), images))
    assert len(said) == (caution is not None)
    assert all(line.startswith(caution) for line in said)


SIZES, DEPTHS = (40, 200), {"i2t": 9, "t2i": 4}


def test_the_log_says_before_the_training_what_an_estimate_says(make, caplog):
    caplog.set_level("INFO")
    chain = make("own", "mining")
    said = list(forecast(chain, SIZES, DEPTHS))
    make("own", "second_round")
    assert len(set(said)) == len(said) == 3  # a sentence a direction, and a caution
    assert [caplog.messages.count(sentence) for sentence in said] == [1, 1, 1]


def test_the_teachers_scores_are_no_count_of_matches(make, caplog, monkeypatch):
    """Three negatives of four score as high as the lowest own pair: such a teacher tells no matches."""
    chain = make("own", "mining")
    table, _ = open_table(chain)
    lists = {}
    for direction in DEPTHS:
        scores = table[direction].scores.copy()
        scores[:] = np.where(np.arange(scores.shape[1]) % 4 == 3, 0.1, 0.6)
        lists[direction] = replace(table[direction], scores=scores, positive_score=np.full(len(scores), 0.6, "f4"))
    weak = replace(table, **lists)
    i2t, t2i, *_ = describe_draws(chain, SIZES, DEPTHS, (weak, None))
    part = "of them at least as high as the anchor's lowest own pair"
    assert f"the teacher scores 77.8% {part}: it is too weak to tell which match" in i2t
    assert f"the teacher scores 75.0% {part}: it is too weak to tell which match" in t2i
    monkeypatch.setattr(draws, "MANY", 0.9)
    i2t, *_ = describe_draws(chain, SIZES, DEPTHS, (weak, None))
    assert i2t.endswith(f"the teacher scores 77.8% {part}")


def test_a_generated_world_knows_how_many_match(make, data_root):
    text = (
        "dataset.demo = {{images = 40, dev_images = 12}}\n"
        'model = {{name = "vsepp", embedding_size = 16, word_size = 8}}\n{teacher}\nsecond_round = {{{second_round}}}'
    )
    chain = make("generated", "world", "mining", text=text)
    table = read_table(chain["hard_negatives"].path / "table")
    scenes = read_scenes(chain.folder, "train")
    true = np.stack([is_true(caption, scenes) for caption in open_split(chain.folder, "train").captions])
    i2t, t2i, *_ = forecast(chain, SIZES, DEPTHS)
    match = [true[caption, image] for image in range(40) for caption in table.i2t.negative_ids[image]]
    assert i2t.endswith(f"; {np.mean(match):.1%} of them match, as the generated world knows")
    assert 0 < np.mean(match) < 0.5
    match = [true[caption, image] for caption in range(200) for image in table.t2i.negative_ids[caption]]
    assert t2i.endswith(f"; {np.mean(match):.1%} of them match, as the generated world knows")
    assert 0 < np.mean(match) < 0.5
    assert "as the generated world knows" not in " ".join(forecast(make("own", "mining"), SIZES, DEPTHS))


def test_a_screens_doubts_go_before_the_teachers(make):
    prior = "screen = {same_text = true, match_prior = 0.01}"
    chain = make("own", "mining", "screen", more=prior)
    (table, view), (i2t, *_) = open_table(chain), forecast(chain, SIZES, DEPTHS)
    mean = view.i2t.suspicion[table.i2t.negative_ids >= 0].mean()
    assert i2t.endswith(f"suspected by the screen, whose suspicion is {mean:.1%} on average")
    assert "the teacher scores" not in i2t


@pytest.mark.parametrize(
    ("model", "sampling", "advised"),
    [
        ("scan", Sampling(), True),
        ("scan", Sampling(hardness="auto"), False),
        ("scan", Sampling(h_captions=4, h_images=3), False),
        ("vsepp", Sampling(), False),
    ],
)
def test_harder_draws_are_advised_where_they_are_harder_and_gained(make, model, sampling, advised):
    """A batch of 16 finds rank 12.5 of 200 captions, and 2.5 of 40 images: only lists of 30 reach further."""
    chain = make("own")
    experiment = chain.experiment.model_copy(
        update={"model": load_experiment(f"f8k_{model}").model, "sampling": sampling}
    )
    said = list(describe_draws(replace(chain, experiment=experiment), SIZES, {"i2t": 30, "t2i": 4}, None))
    advice = '[sampling] hardness = "auto" would draw from the first 4 captions'
    assert (advice in said) == advised
    assert ("about 58% of them are easier" in said[0]) == (sampling == Sampling())
    assert not any("smaller batch" in sentence or "will not help" in sentence for sentence in said)
