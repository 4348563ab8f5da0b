"""Pretrained tokenisers and text towers, on a tiny BERT that is saved in a folder."""

import shutil

import numpy as np
import pytest
import torch

from aoq.models import build_model
from aoq.models.base import Captions
from aoq.pipeline.prepare.pieces import Pieces
from tests.stages.conftest import keys_of, make_stage


@pytest.fixture
def tower(bert):
    return f"transformers:{bert[2]}"


def build(tower, vocabulary_size, **options):
    sizes = {"feature_size": 5, "vocabulary_size": vocabulary_size, "embedding_size": 8}
    return build_model("vse_infinity", text_tower=tower, **sizes, **options)


def test_captions_become_the_tokenisers_ids(bert, tower, tmp_path):
    pieces, captions = Pieces.open(tower), ["a small dog", "two red cubes", "dog " * 100]
    made = pieces.tokenised(captions)
    for caption, start, stop in zip(captions, made.offsets, made.offsets[1:], strict=False):
        assert made.words[start:stop].tolist() == bert[1](caption, truncation=True)["input_ids"]
    assert made.lengths[2] == 40
    pieces.save(tmp_path / "kept")
    again = Pieces.load(tmp_path / "kept").tokenised(captions)
    assert np.array_equal(again.words, made.words)
    assert len(pieces) == len(bert[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("keras:x", "there is no tokeniser 'keras:x'; known are transformers:NAME_OR_PATH"),
        ("transformers:", "there is no tokeniser"),
        ("transformers:/no/where", r"transformers:/no/where cannot be loaded \(.*\); check the name"),
    ],
)
def test_unknown_tokenisers_are_one_sentence(bert, name, message):
    with pytest.raises(ValueError, match=message):
        Pieces.open(name)


def test_size_augmentation_keeps_the_special_tokens(tower, bert, monkeypatch):
    model, seen = build(tower, len(bert[1])), []
    monkeypatch.setattr(model.text, "states", lambda captions: seen.append(captions) or (torch.zeros(1, 1, 8), None))
    words = torch.tensor([2, 9, 8, 7, 6, 5, 3, 0]).expand(200, -1)
    model.train().encode_captions(Captions(words, torch.full((200,), 7)))
    kept = [row[:length].tolist() for row, length in zip(seen[0].words, seen[0].lengths.tolist(), strict=True)]
    assert {(ids[0], ids[-1]) for ids in kept} == {(2, 3)}
    assert 5.5 < np.mean([len(ids) for ids in kept]) < 6.5


def test_mistakes_are_one_sentence(tower, bert):
    with pytest.raises(ValueError, match=r"caption 2 \(' '\) became the ids \[2, 3\]; there must be one or more"):
        Pieces.open(tower).tokenised(["a dog", " "])
    with pytest.raises(ValueError, match=r'augment_words = "mask" adds a <mask> word'):
        build(tower, 9, augment_words="mask")
    with pytest.raises(ValueError, match=r"knows \d+ ids, but the captions' tokeniser has 9999"):
        build(tower, 9999)


def test_keys_follow_the_tokenisers_files_and_a_change_after_the_plan_is_noticed(make, bert, tmp_path):
    def planned(folder):
        name = f"transformers:{folder}"
        options = f'embedding_size = 16, text_tower = "{name}"'
        return make("keys", model="vse_infinity", options=options, more=f'dataset.tokeniser = "{name}"')

    moved = shutil.copytree(bert[2], tmp_path / "moved")
    before = planned(moved)
    assert keys_of(before) == keys_of(planned(bert[2]))
    (moved / "config.json").write_text((moved / "config.json").read_text() + "\n")
    after = keys_of(planned(moved))
    assert all(after[stage] != key for stage, key in keys_of(before).items())
    for stage in ("dataset", "first_round"):
        with pytest.raises(ValueError, match="was changed after the run was planned"):
            make_stage(before, stage)
