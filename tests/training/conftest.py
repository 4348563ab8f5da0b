"""A tiny made-up world to train on in a second: twelve kinds of scenes, three captions an image."""

import json
import threading

import numpy as np
import pytest
import torch

from aoq.models import build_model, naaf
from aoq.pipeline.build import UNITS
from aoq.pipeline.config.losses import AdaptiveLoss, LossSection
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import PairData, TokenisedCaptions
from aoq.pipeline.data.folder import Split
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.evaluation.retrieval import ensemble, retrieval_ranks
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.table import NegativeTable
from aoq.pipeline.training import loop
from aoq.pipeline.training.drawable import Drawable
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.trainer import Trainer

IMAGES, EACH, WORDS = 16, 3, 24
CPU = torch.device("cpu")
TRAINING = Training(
    loss=AdaptiveLoss(name="adapoffquin"),
    epochs=3,
    batch_size=10,
    learning_rate=1e-2,
    decay_epochs=(2,),
    warmup=("sum",),
)
SMALL = {"embedding_size": 8, "word_size": 5, "feature_size": 6, "vocabulary_size": 24}
OPTIONS = {
    "vsepp": SMALL,
    "vsrn": {**SMALL, "caption_hidden_size": 6, "caption_word_size": 5},
    "scan": SMALL,
    "naaf": {**SMALL, "alpha_schedule": "adaptive"},
}


def changed(**options):
    return TRAINING.model_copy(update=options)


def of_loss(name, warmup=("sum",), **numbers):
    """A training on a loss, after a warm-up that has none of its numbers."""
    return changed(loss=LossSection.kind(name)(name=name, **numbers), warmup=warmup)


def lines(work):
    """The log, without what depends on the clock."""
    written = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "steps_per_second"} for line in written]


class KilledError(Exception):
    pass


@pytest.fixture
def run_loop(pairs, monkeypatch):
    """Train in windows of two steps, until the training is killed after `kill_at` of them; return notes and steps."""
    monkeypatch.setattr(loop, "LOG_STEPS", 2)
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)

    def run(kind, work, name="vsepp", networks=1, kill_at=None, workers=0, **given):
        work.mkdir(exist_ok=True)
        torch.manual_seed(3)
        models, steps = [build_model(name, **OPTIONS[name]) for _ in range(networks)], []

        def progress(done, total, text):
            steps.extend([done] if "evaluating" not in text else [])
            if len(steps) == kill_at:
                raise KilledError

        def validate(models):
            mean = ensemble([similarity_matrix(model, pairs, CPU) for model in models])
            return retrieval_ranks(mean, pairs.split.image_of)

        where = loop.Run(work, CPU, checkpoint_steps=4, progress=progress, workers=workers)
        common = {"description": {"name": name, "options": OPTIONS[name]}, "pairs": pairs, "seed": 5, "run": where}
        return kind(models=models, **common | given).train(validate), steps

    return run


@pytest.fixture
def run_training(run_loop, sampler):
    def run(work, name="vsepp", training=TRAINING, sampler=sampler, **given):
        return run_loop(Trainer, work, name, schedule=training, sampler=sampler, **given)

    return run


def check_the_same(cut, whole, resumed, result, published=("model.safetensors",)):
    for name in ("final_weights_sha256", "dev_rsum_by_epoch", "metrics", "best_epoch", "steps"):
        assert resumed[name] == result[name]
    for name in ("hardness_by_epoch", "learnt_by_epoch"):
        assert resumed.get(name) == result.get(name)
    for file in published:
        assert (cut / file).read_bytes() == (whole / file).read_bytes()
    assert lines(cut) == lines(whole)
    left = {path.name for path in cut.iterdir() if path.suffix != ".work"}
    assert left == {"metrics.jsonl", *published, "dev_ranks.parquet", UNITS}


def kill_and_resume(run_training, tmp_path, kill_at, whole, published=("model.safetensors",), **given):
    """Check that a killed training goes on from its checkpoint to what was found for the whole one."""
    cut = tmp_path / f"cut{kill_at}"
    with pytest.raises(KilledError):
        run_training(cut, kill_at=kill_at, **given)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
    resumed, steps = run_training(cut, **given)
    assert kill_at < 5 or steps[0] > 4  # it did not start over
    check_the_same(cut, tmp_path / "whole", resumed, whole, published)


def table_of(i2t, t2i, i2t_scores=0.0, t2i_scores=0.0):
    """A table of these lists and scores; every positive has the score 1."""
    sides = []
    for ids, scores in ((i2t, i2t_scores), (t2i, t2i_scores)):
        given = np.broadcast_to(np.float32(scores), ids.shape)
        sides.append(NegativeLists(ids.astype(np.int32), given, np.ones(len(ids), np.float32)))
    return NegativeTable(*sides, manifest={"directions": {d: {"sha256": d} for d in ("i2t", "t2i")}})


def random_lists(image_of):
    """Eight captions of other images for each image, four other images for each caption."""
    rng, images = np.random.default_rng(1), image_of.max() + 1
    i2t = np.stack([rng.permutation(np.flatnonzero(image_of != m))[:8] for m in range(images)])
    return i2t, np.stack([rng.permutation(np.delete(np.arange(images), m))[:4] for m in image_of]), rng


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(IMAGES, 4, 6)).astype(np.float16)
    image_of = np.repeat(np.arange(IMAGES, dtype=np.int32), EACH)
    sentences = [[1, 4 + image % 12, *rng.integers(4, WORDS, rng.integers(1, 5)).tolist(), 2] for image in image_of]
    offsets = np.concatenate([[0], np.cumsum([len(words) for words in sentences])]).astype(np.int64)
    tokens = TokenisedCaptions(np.concatenate(sentences).astype(np.int32), offsets)
    corners = rng.uniform(size=(2, IMAGES, 4, 2))
    boxes = np.concatenate([corners.min(0), corners.max(0)], axis=2).astype(np.float32)
    texts, ids = [str(words) for words in sentences], [str(i) for i in range(IMAGES)]
    split = Split("train", features, texts, image_of, ids, boxes)
    return PairData(split, tokens)


@pytest.fixture
def sampler(pairs):
    return sampler_of(pairs)


def sampler_of(pairs, **options):
    i2t, t2i, rng = random_lists(pairs.split.image_of)
    scored = [
        Drawable(ids.astype(np.int32), scores=rng.random(ids.shape, "f4"), positive_score=rng.random(len(ids), "f4"))
        for ids in (i2t, t2i)
    ]
    return Sampler(*scored, pairs.split.image_of, **options)
