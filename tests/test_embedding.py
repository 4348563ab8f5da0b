"""Scoring and storing a split: tiles and interruptions leave no trace."""

import numpy as np
import pytest
import torch

from aoq.models import MODELS
from aoq.pipeline import embedding
from aoq.pipeline.embedding import EmbeddingStore, EncodedSide, model_sides, similarity_matrix, write_embeddings
from aoq.pipeline.search.units import Folder, unit_name
from tests.training import conftest
from tests.training.conftest import CPU
from tests.training.steps import fresh

pairs = conftest.pairs


@pytest.mark.parametrize("name", MODELS)
def test_the_matrix_is_every_pair_whatever_the_tiles(pairs, name, monkeypatch):
    model = fresh(name).float()
    found = [similarity_matrix(model, pairs, CPU)]
    for size in ("BATCH", "SCORED_IMAGES", "SCORED_CAPTIONS"):
        monkeypatch.setattr(embedding, size, 4)
    found.append(similarity_matrix(model, pairs, CPU))
    images, captions = pairs.images(np.arange(16)).to(CPU), pairs.captions(np.arange(48))
    with torch.no_grad():
        whole = model.similarity(model.encode_images(images), model.encode_captions(captions))
    for matrix in found:
        np.testing.assert_allclose(matrix, whole, rtol=1e-6, atol=1e-6)


def write(model, pairs, folder, report=lambda done, total, text: None):
    """Write the embeddings and return how many images or captions were encoded at a time."""
    encoded, sides = [], model_sides(model, pairs, CPU)
    counted = {
        name: EncodedSide(side.count, lambda rows, side=side: encoded.append(len(rows)) or side.vectors(rows))
        for name, side in sides.items()
    }
    (folder / "units").mkdir(exist_ok=True)
    write_embeddings(counted, folder, Folder(folder / "units"), report)
    return encoded


def test_a_killed_run_goes_on_and_a_damaged_block_is_encoded_anew(pairs, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(embedding, "STORE_ROWS", 5)
    model = fresh("vsepp").float()
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    assert write(model, pairs, whole) == [5, 5, 5, 1, *[5] * 9, 3]

    def stop(done, total, text):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(model, pairs, cut, stop)
    damaged = cut / "units" / f"{unit_name('images', 5, 10)}.unit"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert write(model, pairs, cut) == [5, *[5] * 8, 3]
    assert f"{damaged} is damaged" in caplog.text
    for name in ("images.npy", "captions.npy"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    store = EmbeddingStore.open(cut)
    assert isinstance(store.images, np.memmap)
    scores = store.images @ store.captions.T
    np.testing.assert_allclose(scores, similarity_matrix(model, pairs, CPU), atol=1e-6)


def test_a_broken_model_is_an_error_not_a_store(pairs, tmp_path):
    model = fresh("vsepp").float()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"images 0 to 15 is not finite"):
        write(model, pairs, tmp_path)
