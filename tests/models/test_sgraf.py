"""SGR and SAF against their definitions; and SAF's statistics while training."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from aoq.models.base import Code, Images
from aoq.models.sgraf import SGR
from tests.models.conftest import Build, attention, random_code

REGIONS = 4


def model_with(name, **options):
    return Build(name, {"regions": REGIONS, "similarity_size": 7, **options})().double()


def codes(model, images=3, captions=4, words=5):
    """Random fragments with the model's own pooled vectors; captions of mixed lengths, garbage at their padding."""
    regions, code = random_code(1, images, REGIONS), random_code(2, captions, words)
    regions, words = regions.vectors.nan_to_num(0.5), code.vectors.nan_to_num(9.0)
    return (
        Code(regions, None, model.pool_image(regions, None)),
        Code(words, code.mask, model.pool_caption(words, code.mask)),
    )


def unit(x):
    return x / x.norm()


def compared(layer, x, y):
    """s(x, y) = l2(W (x - y)^2 + b)."""
    return unit(layer.weight @ (x - y) ** 2 + layer.bias)


def defined_nodes(model, regions, words, image, caption):
    """The global similarity vector first, then one for each word and the regions that it attends to."""
    nodes = [compared(model.global_similarity, image, caption)]
    for word, weights in zip(words, attention(words, regions, 9.0), strict=True):
        attended = unit(sum(w * v for w, v in zip(weights, regions, strict=True)))
        nodes.append(compared(model.local_similarity, attended, word))
    return nodes


def reasoned(model, nodes):
    """Rounds of every node becoming ReLU(W of the nodes it attends to); the global node is the result."""
    for step in model.reasoning:
        queries, keys = ([layer(node) for node in nodes] for layer in (step.query, step.key))
        following = []
        for query in queries:
            edges = torch.stack([(query @ key).exp() for key in keys])
            following.append(step.output(sum(e * x for e, x in zip(edges / edges.sum(), nodes, strict=True))).relu())
        nodes = following
    return nodes[0]


def filtered(model, nodes):
    """The nodes added up, each weighted by its share of sigmoid(BatchNorm(w s + b)), then normalised."""
    norm = model.norm
    logits = [(model.gate(node) - norm.running_mean) / (norm.running_var + norm.eps).sqrt() for node in nodes]
    gates = [(norm.weight * logit + norm.bias).sigmoid() for logit in logits]
    return unit(sum(gate / sum(gates) * node for gate, node in zip(gates, nodes, strict=True)))


@pytest.fixture(params=[("sgr", {}), ("sgr", {"steps": 1}), ("saf", {})], ids=str)
def model(request):
    name, options = request.param
    return model_with(name, **options)


def defined(model, images, captions):
    summarise = reasoned if isinstance(model, SGR) else filtered
    rows = []
    for regions, image in zip(images.vectors, images.pooled, strict=True):
        for words, mask, caption in zip(captions.vectors, captions.mask, captions.pooled, strict=True):
            summary = summarise(model, defined_nodes(model, regions, words[mask], image, caption))
            rows.append(model.score(summary).sigmoid())
    return torch.stack(rows).view(len(images), len(captions))


def test_similarity_is_its_definition(model):
    images, captions = codes(model)
    expected = defined(model, images, captions)
    assert len(expected.unique()) == 12
    for block_words in (1, 4, 32):
        model.block_words = block_words
        assert_close(model.similarity(images, captions), expected)
    n = torch.arange(3)
    assert_close(model.pair_similarity(images[n], captions[n]), expected.diagonal())
    with torch.no_grad():
        assert_close(model.similarity(images, captions), expected)


def test_training_gates_by_the_statistics_of_a_caption_with_all_images():
    """The running statistics are those of a BatchNorm called once a caption."""
    model = model_with("saf")
    images, captions = codes(model, images=3, captions=6)
    norm = nn.BatchNorm1d(1).double().train()
    norm.load_state_dict(model.norm.state_dict())
    expected = torch.zeros(3, 6).double()
    for c in captions.mask.sum(1).argsort(stable=True):  # as the model takes them
        words, caption = captions.vectors[c, captions.mask[c]], captions.pooled[c]
        nodes = torch.stack(
            [
                torch.stack(defined_nodes(model, regions, words, image, caption))
                for regions, image in zip(images.vectors, images.pooled, strict=True)
            ]
        )
        gates = norm(model.gate(nodes).transpose(1, 2)).sigmoid().squeeze(1)
        gates = gates / gates.sum(1, keepdim=True)
        summary = F.normalize(torch.einsum("in,ins->is", gates, nodes), dim=1)
        expected[:, c] = model.score(summary).sigmoid().squeeze(1)
    model.train().block_words = 6
    before = model.norm.running_mean.clone()
    assert_close(model.similarity(images, captions), expected)
    assert not torch.allclose(model.norm.running_mean, before, atol=1e-3)
    for ours, theirs in zip(model.norm.buffers(), norm.buffers(), strict=True):
        assert_close(ours, theirs)


def test_training_gates_aligned_pairs_by_running_statistics():
    """A pair's score depends on no other pair of the list, and leaves no trace."""
    model = model_with("saf")
    images, captions = codes(model, captions=3)
    expected = defined(model, images, captions).diagonal()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pairs = model.train().pair_similarity(images, captions)
    assert_close(pairs, expected)
    assert_close(model.pair_similarity(images[1:2], captions[1:2]), expected[1:2])
    assert not torch.allclose(model.similarity(images, captions).diagonal(), expected, atol=1e-3)
    model.load_state_dict(before)
    model.pair_similarity(images, captions)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("name", ["sgr", "saf"])
def test_another_number_of_regions_is_an_error(name):
    message = rf"this {name.upper()} was built for 4 regions.*these have 3.*`max_regions`"
    with pytest.raises(ValueError, match=message):
        model_with(name).encode_images(Images(torch.rand(2, 3, 5).double()))
