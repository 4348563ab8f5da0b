"""Scoring and storing a split: tiles and interruptions leave no trace."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from aoq.models import MODELS, build_model
from aoq.pipeline import embedding
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.embedding import EmbeddingStore, finish_embeddings, model_sides, similarity_matrix, write_embeddings

CPU = torch.device("cpu")


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    image_of = rng.permutation(np.repeat(np.arange(9, dtype=np.int32), 3))
    lengths = rng.integers(3, 10, 27)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = TokenisedCaptions(rng.integers(1, 20, offsets[-1]).astype(np.int32), offsets)
    features = rng.normal(size=(9, 4, 5)).astype(np.float32)
    corners = rng.uniform(size=(2, 9, 4, 2))
    boxes = np.concatenate([corners.min(0), corners.max(0)], axis=2).astype(np.float32)
    return PairData(Split("train", features, ["a"] * 27, image_of, [str(i) for i in range(9)], boxes), tokens)


def small_model(name):
    torch.manual_seed(0)
    regions = {} if MODELS[name].takes_masks else {"regions": 4}
    return build_model(name, feature_size=5, vocabulary_size=20, embedding_size=6, word_size=4, **regions)


@pytest.mark.parametrize("name", MODELS)
def test_the_matrix_is_every_pair_whatever_the_tiles(pairs, name, monkeypatch):
    model = small_model(name)
    whole = similarity_matrix(model, pairs, CPU)
    for size in ("BATCH", "SCORED_IMAGES", "SCORED_CAPTIONS"):
        monkeypatch.setattr(embedding, size, 4)
    np.testing.assert_allclose(similarity_matrix(model, pairs, CPU), whole, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        for image in (0, 8):
            for caption in (0, 13, 26):
                codes = [
                    model.encode_images(pairs.images(np.array([image]))),
                    model.encode_captions(pairs.captions(np.array([caption]))),
                ]
                assert model.pair_similarity(*codes).item() == pytest.approx(whole[image, caption], abs=1e-5)


class StopError(Exception):
    pass


def test_a_store_goes_on_after_its_last_whole_block(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "STORE_ROWS", 4)
    model = small_model("vsepp")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    write_embeddings(model_sides(model, pairs, CPU), whole)
    seen = []

    def stop(done, total, text):
        seen.append(done)
        if len(seen) == 4:
            raise StopError

    with pytest.raises(StopError):
        write_embeddings(model_sides(model, pairs, CPU), cut, stop)
    seen = [*seen, "again"]
    write_embeddings(model_sides(model, pairs, CPU), cut, lambda done, total, text: seen.append(done))
    assert seen == [4, 8, 9, 13, "again", 17, 21, 25, 29, 33, 36]
    for folder in (whole, cut):
        finish_embeddings(folder)
        assert sorted(path.name for path in folder.iterdir()) == ["captions.npy", "images.npy"]
    for name in ("images.npy", "captions.npy"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    store = EmbeddingStore.open(cut)
    assert isinstance(store.images, np.memmap)
    scores = store.images @ store.captions.T
    np.testing.assert_allclose(scores, similarity_matrix(model, pairs, CPU), atol=1e-6)


@pytest.mark.parametrize(
    ("file", "place", "said", "again"),
    [
        ("captions.npy", -1, "captions.npy is damaged; it is encoded again from row 24 on", 3),
        ("captions.npy", 200, "captions.npy is damaged; it is encoded again from row 0 on", 27),
        ("images.npy", 60, "All of it is encoded again", 9),
        ("images.npy", 3, "All of it is encoded again", 9),
        ("images.progress.json", 0, "All of it is encoded again", 9),
        ("images.progress.json", 10, "images.npy is damaged", 9),
        ("images.npy", None, "All of it is encoded again", 9),
        ("captions.progress.json", None, "", 27),
    ],
)
def test_a_damaged_part_of_a_store_is_encoded_anew(pairs, tmp_path, monkeypatch, caplog, file, place, said, again):
    monkeypatch.setattr(embedding, "STORE_ROWS", 4)
    model, whole = small_model("vsepp"), tmp_path / "whole"
    whole.mkdir()
    write_embeddings(model_sides(model, pairs, CPU), whole)
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    content = bytearray((cut / file).read_bytes())
    if place is None:
        (cut / file).unlink()
    else:
        content[place] ^= 1
        (cut / file).write_bytes(content)
    encoded = []
    encode = {name: getattr(model, f"encode_{name}") for name in ("images", "captions")}
    for name, of in encode.items():
        monkeypatch.setattr(model, f"encode_{name}", lambda given, of=of: encoded.append(given) or of(given))
    write_embeddings(model_sides(model, pairs, CPU), cut)
    assert sum(len(given) for given in encoded) == again
    assert said in caplog.text
    assert [path.read_bytes() for path in sorted(cut.iterdir())] == [
        path.read_bytes() for path in sorted(whole.iterdir())
    ]


def test_a_broken_model_is_an_error_not_a_store(pairs, tmp_path):
    model = small_model("vsepp")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"images 0 to 8 is not finite"):
        write_embeddings(model_sides(model, pairs, CPU), tmp_path)
