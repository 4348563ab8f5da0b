"""Recalls of any array, and of a model on a dataset folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aoq.models import build_model
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.evaluation.evaluate import evaluate, recalls
from aoq.pipeline.evaluation.retrieval import evaluate_similarity


def test_tensors_keep_their_precision():
    given = 1 + np.random.default_rng(0).normal(size=(20, 60)) * 1e-9, np.arange(60) // 3
    assert recalls(*map(torch.from_numpy, given)) == recalls(*given) == evaluate_similarity(*given)


def test_a_caption_of_no_image_is_refused():
    with pytest.raises(ValueError, match="caption 0 belongs to image -1, and there are images 0 to 1"):
        recalls(np.eye(2), np.array([-1, 1]))
    with pytest.raises(ValueError, match="the images of fold 2 of 2 have no caption"):
        recalls(np.eye(4, 2), np.array([0, 1]), folds=2)


def test_a_model_on_a_folder(tmp_path):
    write_demo_world(tmp_path, images=20, dev_images=10, seed=0)
    split = open_split(tmp_path, "dev")
    vocabulary = Vocabulary.build(open_split(tmp_path, "train").captions, min_count=1)
    vocabulary.save(tmp_path / "vocabulary.json")
    sizes = {"feature_size": split.features.shape[2], "vocabulary_size": len(vocabulary)}
    model = build_model("vsepp", **sizes, embedding_size=8, word_size=4).eval()
    found = evaluate(model, str(tmp_path), "dev", vocabulary=tmp_path / "vocabulary.json")
    assert 0 < found["rsum"] < 600
    assert found == evaluate(model, tmp_path, "dev", vocabulary=str(tmp_path / "vocabulary.json"))
