"""A real pretrained encoder, all-MiniLM-L6-v2, as text tower: its own states, and its own vectors of captions."""

import pytest
import torch
from torch.testing import assert_close

from aoq.models import build_model
from aoq.pipeline.prepare.pieces import Pieces
from aoq.pipeline.training.optimizer import set_up_towers
from tests.towers.conftest import gathered
from tests.training.conftest import changed

TEXTS = ["A dog runs.", "Two men in the snow look at a red bridge.", "A puppy is running.", "An empty street at night"]


@pytest.fixture
def captions(minilm):
    return gathered(Pieces.open(minilm).tokenised(TEXTS * 20))


@pytest.fixture
def model(minilm):
    options = {"feature_size": 4, "vocabulary_size": 30522, "embedding_size": 384}
    model = build_model("dual_encoder", text_tower=minilm, **options)
    model.load_pretrained()
    return model.eval()


def test_captions_have_its_own_states_and_vectors_of_like_meaning(model, minilm, captions):
    import transformers

    library = transformers.AutoModel.from_pretrained(minilm.removeprefix("transformers:")).eval()
    with torch.no_grad():
        states, mask = model.text.encoder.states(captions)
        for row, length in enumerate(captions.lengths.tolist()[:4]):
            expected = library(input_ids=captions.words[row : row + 1, :length]).last_hidden_state[0]
            assert_close(states[row, :length], expected, atol=1e-5, rtol=1e-5)
    means = (states * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)
    cosines = torch.nn.functional.cosine_similarity(means[:1], means[:4])
    assert cosines[2] > 0.7 > 0.3 > cosines[[1, 3]].max()  # the puppy, and the others


def test_its_highest_layers_are_trained_alone(model, captions):
    set_up_towers(model, changed(train_layers=2))
    model.encode_captions(captions).vectors.sum().backward()
    named = {name: one.grad is not None for name, one in model.text.encoder.network.named_parameters()}
    trained = {name for name, has_gradient in named.items() if has_gradient}
    assert trained == {name for name in named if name.startswith(("encoder.layer.4.", "encoder.layer.5."))}
