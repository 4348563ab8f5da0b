"""Towers of static vectors, on files that are made on the spot: each caption by definition, vector by vector."""

import json
import logging

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import Captions, Images
from aoq.models.towers.text_towers import open_text_tower
from aoq.pipeline.prepare.pieces import Pieces
from tests.towers.conftest import gathered

WORDS = ["[UNK]", "a", "small", "dog", "##gy", "red", "two", "cubes"]
SIZE = 6
CAPTIONS = ["a small dog", "two", "a doggy zebra", "zebra zebra"]
IDS = [[1, 2, 3], [6], [1, 3, 4], [0]]
"""Unknown words are left out, but where there are no others."""


@pytest.fixture
def rows():
    return torch.randn(len(WORDS), SIZE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(tmp_path):
    """A folder with a tokeniser alone, which ends captions with special tokens where it is let."""
    library = pytest.importorskip("tokenizers")
    cutter = library.Tokenizer(library.models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    cutter.pre_tokenizer = library.pre_tokenizers.Whitespace()
    cutter.post_processor = library.processors.TemplateProcessing("a $A a", special_tokens=[("a", 1)])
    cutter.enable_padding(length=9)
    made = tmp_path / "vectors"
    made.mkdir()
    cutter.save(str(made / "tokenizer.json"))
    return made


def model2vec(folder, rows):
    save_file({"embeddings": rows}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))


def wordllama(folder, rows):
    save_file({"embedding.weight": rows.half()}, folder / "l2_supercat_256.safetensors")


def glove(folder, rows):
    np.save(folder / "glove.npy", rows.numpy())


def quantised(folder, rows):
    """model2vec's clusters: tokens share vectors, and have weights of their own."""
    order = torch.arange(len(rows)).flip(0)
    weights = torch.linspace(1, 2, len(rows), dtype=torch.float64)
    kept = (rows / weights.float().unsqueeze(1))[order]
    save_file({"embeddings": kept, "mapping": order.int(), "weights": weights}, folder / "model.safetensors")


LAYOUTS = {"model2vec": model2vec, "wordllama": wordllama, "glove": glove, "quantised": quantised}


@pytest.fixture(params=list(LAYOUTS))
def name(request, folder, rows):
    LAYOUTS[request.param](folder, rows)
    return f"static:{folder}"


def test_captions_are_cut_without_special_tokens_and_unknown_words(folder, caplog, tmp_path):
    pieces = Pieces.open(f"static:{folder}")
    with caplog.at_level(logging.WARNING):
        made = pieces.tokenised(CAPTIONS)
    assert [made.words[a:b].tolist() for a, b in zip(made.offsets, made.offsets[1:], strict=False)] == IDS
    assert "1 of 4 captions have no word that the static vectors know (first lines [4])" in caplog.text
    pieces.save(tmp_path / "kept")
    again = Pieces.load(tmp_path / "kept")
    assert np.array_equal(again.tokenised(CAPTIONS).words, made.words)
    assert len(again) == len(pieces) == len(WORDS)
    assert pieces.tokenised(["dog " * 600]).lengths.tolist() == [512]


def test_a_caption_of_nothing_is_named(folder):
    with pytest.raises(ValueError, match=r"caption 2 \(' '\) became no ids; write a word, or remove its line"):
        Pieces.open(f"static:{folder}").tokenised(["a", " "])


def test_states_are_the_vectors_and_zero_beyond(name, rows):
    tower = open_text_tower(name, vocabulary_size=len(WORDS))
    assert not torch.allclose(tower.network.weight, rows, atol=0.1)
    tower.load_pretrained()
    states, mask = tower.states(gathered(Pieces.open(name).tokenised(CAPTIONS)))
    assert tower.size == SIZE
    for row, ids in enumerate(IDS):
        assert mask[row].sum() == len(ids)
        assert_close(states[row, : len(ids)], rows[ids], atol=2e-3, rtol=1e-3)
        assert not states[row, len(ids) :].any()
    assert tower.poolings == {"mean", "gpo"}


@pytest.mark.parametrize("name", ["model2vec"], indirect=True)
@pytest.mark.parametrize("kind", ["dual_encoder", "vse_infinity", "scan"])
def test_vectors_are_trained_or_frozen(name, kind):
    torch.manual_seed(0)
    options = {"feature_size": 5, "vocabulary_size": len(WORDS), "embedding_size": 4, "text_tower": name}
    images, captions = Images(torch.rand(4, 3, 5)), gathered(Pieces.open(name).tokenised(CAPTIONS))
    for frozen in (False, True):
        model = build_model(kind, **options)
        model.load_pretrained()
        assert model.pretrained_parameters() == [model.towers["text"].network.weight]
        model.towers["text"].checkpoint_gradients()
        if frozen:
            model.towers["text"].freeze()
        similarity = model.similarity(model.encode_images(images), model.encode_captions(captions))
        (similarity * torch.arange(1.0, 5.0)).sum().backward()
        gradient = model.towers["text"].network.weight.grad
        assert gradient is None if frozen else gradient.any(1).nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 6]


def test_augmentation_may_leave_out_any_word(folder, rows, monkeypatch):
    """There are no special tokens to keep."""
    glove(folder, rows)
    options = {"feature_size": 5, "vocabulary_size": len(WORDS), "embedding_size": 4, "text_tower": f"static:{folder}"}
    model, seen = build_model("vse_infinity", **options), []
    monkeypatch.setattr(model.text, "states", lambda captions: seen.append(captions) or (torch.zeros(1, 1, 4), None))
    model.train().encode_captions(Captions(torch.tensor([1, 2, 3, 6]).expand(200, -1), torch.full((200,), 4)))
    kept = [row[:length].tolist() for row, length in zip(seen[0].words, seen[0].lengths.tolist(), strict=True)]
    assert any(ids[0] != 1 for ids in kept)
    assert any(ids[-1] != 6 for ids in kept)


def test_what_is_no_folder_of_vectors_is_one_sentence(folder, rows):
    def opened(vocabulary_size=8):
        return open_text_tower(f"static:{folder}", vocabulary_size=vocabulary_size)

    with pytest.raises(ValueError, match=r"static:.* cannot be loaded \(one .safetensors or .npy file and tokenizer.j"):
        opened()
    glove(folder, rows)
    with pytest.raises(
        ValueError, match=r"knows 8 ids, but the captions' tokeniser has 9; set \[dataset\] tokeniser ="
    ):
        opened(9)
    np.save(folder / "glove.npy", rows[0].numpy())
    with pytest.raises(ValueError, match=r"glove.npy holds an array of shape \(6,\), not \(tokens, size\)"):
        opened()
    (folder / "glove.npy").unlink()
    save_file({"one": rows, "two": rows.clone()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"it holds the tensors \['one', 'two'\], but none is called embeddings or"):
        opened()


def test_a_name_of_the_hub_is_its_copy(folder, rows, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    model2vec(folder, rows)
    asked = []
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: asked.append(name) or str(folder))
    assert len(Pieces.open("static:someone/vectors")) == len(WORDS)
    assert open_text_tower("static:someone/vectors", vocabulary_size=8).size == SIZE
    assert asked == ["someone/vectors"] * 2
