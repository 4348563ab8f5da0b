"""Static word vectors as a text tower through both rounds, and in keys."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.evaluation.evaluate import evaluate
from aoq.pipeline.training.checkpoint import load_model

TEXT = """
dataset = {{folder = "{folder}", tokeniser = "NAME"}}
model = {{name = "{model}", embedding_size = 16, text_tower = "NAME"}}
{teacher}
second_round = {{{second_round}}}
"""


@pytest.fixture
def vectors(tmp_path):
    """Vectors of the demo's words, in the form of GloVe's."""
    library = pytest.importorskip("tokenizers")
    write_demo_world(tmp_path / "world", images=40, dev_images=12, seed=0)
    captions = (tmp_path / "world" / "train_caps.txt").read_text().splitlines()
    words = ["[UNK]", *sorted({word for line in captions for word in tokenise(line)})]
    cutter = library.Tokenizer(library.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    cutter.pre_tokenizer = library.pre_tokenizers.Whitespace()
    folder = tmp_path / "glove"
    folder.mkdir()
    cutter.save(str(folder / "tokenizer.json"))
    np.save(folder / "vectors.npy", np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float16))
    return folder


def test_both_rounds(make, vectors):
    chain = make(
        "static",
        "mining",
        "second_round",
        "evaluation",
        model="dual_encoder",
        text=TEXT.replace("NAME", f"static:{vectors}"),
        loss="adapoffquin",
    )
    trained = load_model(chain["second_round"].path / "model.safetensors")
    moved = np.abs(trained.text.encoder.network.weight.detach().numpy() - np.load(vectors / "vectors.npy")).max()
    assert 0 < moved < 0.01  # a tenth of the rate
    measured = evaluate(trained, chain.folder, "dev", vocabulary=chain["dataset"].path / "tokeniser")
    assert measured["rsum"] == pytest.approx(chain["evaluation"].manifest()["metrics"]["rsum"])
