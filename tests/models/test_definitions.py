"""Models of fragments against their definitions, one pair and one fragment at a time; autograd goes through both."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import Aggregation, AttentionDirection, Code, Normalisation
from aoq.models.bfan import focus
from aoq.models.imram import DIRECTIONS_BY_MODE
from tests.models.conftest import Build, attention, cosine, each_pair, random_code

CLOSE = {"atol": 1e-6, "rtol": 1e-6}
SCAN_OPTIONS = {
    "direction": AttentionDirection.__args__,
    "aggregation": Aggregation.__args__,
    "temperature": (None, 1.0, 20.0),
}
OPTIONS = {
    "scan": {**SCAN_OPTIONS, "normalisation": Normalisation.__args__, "temperature_lse": (5.0,)},
    "pfan": {**SCAN_OPTIONS, "position_size": (1,), "grid": (1,)},
    "bfan": {"focal": ("equal", "prob")},
    "naaf": {"training": (False, True), "threshold": (0.0, 0.25, 0.6, 0.95)},
    "imram": {"mode": tuple(DIRECTIONS_BY_MODE), "steps": (1, 2, 3), "temperature": (7.0,)},
    "maxsim": {"direction": ("t2i", "i2t", "both"), "aggregation": ("Mean", "Sum")},
}


def model_with(name, *, training=False, threshold=None, **options):
    model = Build(name, options)().double().train(training)
    if threshold is not None:  # the other one has no part
        model.threshold.fill_(threshold if training else 9.0)
        model.safe_threshold.fill_(9.0 if training else threshold)
    return model


def weighted(weights, vectors):
    return sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))


def aggregated(values, model):
    if model.aggregation == "LogSumExp":
        return sum((model.temperature_lse * value).exp() for value in values).log() / model.temperature_lse
    return {"Mean": lambda: sum(values) / len(values), "Sum": lambda: sum(values), "Max": lambda: max(values)}[
        model.aggregation
    ]()


def scan(model, regions, words):
    """What each query attends to, their cosine, and one number of all cosines."""
    queries, contexts = (words, regions) if model.directions == ("t2i",) else (regions, words)
    weights = attention(queries, contexts, model.temperature, model.normalisation)
    cosines = [cosine(q, weighted(row, contexts)) for q, row in zip(queries, weights, strict=True)]
    return aggregated(cosines, model)


def pfan(model, regions, words):
    """SCAN's, and for t2i half the aggregate of each word's largest attention."""
    similarity = scan(model, regions, words)
    if model.directions == ("t2i",):
        similarity += 0.5 * aggregated([max(row) for row in attention(words, regions, model.temperature)], model)
    return similarity


def bfan(model, regions, words):
    """Both directions' mean cosines with what the relevant fragments add up to."""

    def direction(queries, contexts):
        weights = [focused(row, model.focal) for row in attention(queries, contexts, model.temperature)]
        return sum(cosine(q, weighted(row, contexts)) for q, row in zip(queries, weights, strict=True)) / len(queries)

    return direction(words, regions) + direction(regions, words)


def focused(weights, focal):
    """A fragment is relevant if sum_k confidence_k (a_j - a_k) > 0; confidence is 1, or the root of k's own weight."""
    relevant = []
    for a_j in weights:
        score = sum((a_j - a_k) * (1.0 if focal == "equal" else a_k.detach() ** 0.5) for a_k in weights)
        relevant.append(a_j * float(score > 0))
    return torch.stack(relevant) / sum(relevant) if any(relevant) else weights


def naaf(model, regions, words):
    """The mean over words of: how far no region fits, cosine with what fits, and relevance of all."""
    threshold = float(model.threshold if model.training else model.safe_threshold)
    relevances = attention(words, regions, model.temperature)
    margins = [max(word @ v for v in regions) - threshold for word in words]
    scores = []
    for i, word in enumerate(words):
        likeness = [(5 * (word @ other)).exp() for other in words]
        decisive = margins[i] if model.training else weighted(likeness, margins) / sum(likeness)
        score = (margins[i] if decisive < 0 else 0.0) + weighted(relevances[i], [word @ v for v in regions])
        if fitting := [v for v in regions if word @ v > threshold]:
            weights = [(model.temperature * (word @ v - threshold)).exp() for v in fitting]
            attended = weighted(weights, fitting) / sum(weights)
            score = score + (word @ attended) / attended.norm()
        scores.append(score)
    return torch.stack(scores).mean()


def imram(model, regions, words):
    """In each round every query looks; the similarity is that of the original fragment to what was seen."""
    total = 0.0
    for direction in model.directions:
        originals, contexts = (words, regions) if direction == "t2i" else (regions, words)
        queries = originals
        for step in range(model.steps):
            seen = [weighted(row, contexts) for row in attention(queries, contexts, model.temperature)]
            total += sum(cosine(q, c) for q, c in zip(originals, seen, strict=True)) / len(seen)
            if step < model.steps - 1:
                queries = [gated(model.memory[direction], q, c) for q, c in zip(queries, seen, strict=True)]
    return total


def gated(memory, query, seen):
    """q <- g q + (1 - g) tanh(W [q; c]), g = sigmoid(W' [q; c])."""
    parts = (memory.own.weight.chunk(2), memory.seen.weight.chunk(2), memory.own.bias.chunk(2))
    gate, update = (own @ query + other @ seen + bias for own, other, bias in zip(*parts, strict=True))
    return gate.sigmoid() * query + (1 - gate.sigmoid()) * update.tanh()


def maxsim(model, regions, words):
    """Every fragment with the one of the other side that is most similar to it."""
    ways = []
    for direction in model.directions:
        queries, contexts = (words, regions) if direction == "t2i" else (regions, words)
        ways.append(aggregated([max(q @ v for v in contexts) for q in queries], model))
    return sum(ways) / len(ways)


def gradients(similarity, images, captions, model):
    """A similarity, and the gradients of an uneven sum of it for all vectors and the memory of IMRAM."""
    leaves = [code.vectors.clone().requires_grad_() for code in (images, captions)]
    result = similarity(*(Code(leaf, code.mask) for leaf, code in zip(leaves, (images, captions), strict=True)))
    weights = torch.arange(result.numel()).cos().view_as(result)
    others = [value for name, value in model.named_parameters() if name.startswith("memory")]
    return [result, *torch.autograd.grad((result * weights).sum(), leaves + others, materialize_grads=True)]


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    data=st.data(),
    seed=st.integers(0, 2**16),
    sizes=st.tuples(*(st.integers(1, most) for most in (3, 4, 4, 5))),
    block_words=st.sampled_from([1, 6, 128]),
    unit=st.booleans(),
)
def test_similarities_and_gradients_are_those_of_the_definition(name, data, seed, sizes, block_words, unit):
    model = model_with(name, **{key: data.draw(st.sampled_from(values)) for key, values in OPTIONS[name].items()})
    model.block_words = block_words
    n_images, n_captions, n_regions, n_words = sizes
    kind = {"unit": unit or name == "bfan", "size": 8 if name == "imram" else 3}
    images = random_code(seed, n_images, n_regions, **kind)
    captions = random_code(seed + 1, n_captions, n_words, **kind)

    def defined(images, captions):
        return each_pair(images, captions, lambda regions, words: globals()[name](model, regions, words))

    expected = gradients(defined, images, captions, model)
    assert_close(gradients(model.similarity, images, captions, model), expected, **CLOSE)
    with torch.no_grad():
        assert_close(model.similarity(images, captions), expected[0], **CLOSE)
    n = slice(min(n_images, n_captions))
    expected = gradients(lambda i, c: defined(i, c).diagonal(), images[n], captions[n], model)
    assert_close(gradients(model.pair_similarity, images[n], captions[n], model), expected, **CLOSE)


@pytest.mark.parametrize("direction", AttentionDirection.__args__)
@pytest.mark.parametrize("normalisation", Normalisation.__args__)
def test_zero_vectors_compare_as_zero(direction, normalisation):
    """A zero image or caption is similar to nothing; one zero fragment leaves all gradients finite."""
    images, captions = random_code(9, 3, 4), random_code(10, 3, 4)
    images.vectors[0] = captions.vectors[1] = images.vectors[1, 2] = captions.vectors[2, 3] = 0.0
    model = model_with("scan", direction=direction, aggregation="Mean", normalisation=normalisation)
    matrix = model.similarity(images, captions)
    assert not matrix[0].any()
    assert not matrix[:, 1].any()
    assert matrix[1:, [0, 2]].all()
    for similarity in (model.similarity, model.pair_similarity):
        assert all(leaf.isfinite().all() for leaf in gradients(similarity, images, captions, model))


@pytest.mark.parametrize("direction", OPTIONS["maxsim"]["direction"])
def test_an_image_without_regions_is_similar_to_nothing(direction):
    model, images, captions = model_with("maxsim", direction=direction), random_code(9, 3, 4), random_code(10, 3, 4)
    images.mask[1] = False
    for similarity in (model.similarity, model.pair_similarity):
        result, *leaves = gradients(similarity, images, captions, model)
        assert not result[1].any()
        assert result[0].all()
        assert all(leaf[[0, 2]].isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("direction", AttentionDirection.__args__)
def test_maxsim_attends_to_the_best_match(direction):
    images, captions = random_code(11, 3, 4), random_code(12, 3, 5)
    (found,) = model_with("maxsim", direction=direction).fragment_attention(images, captions)
    for pair, (queries, keys) in enumerate(zip(found.queries, found.keys, strict=True)):
        for q in found.query_mask[pair].nonzero().flatten().tolist():
            real = found.key_mask[pair].nonzero().flatten().tolist()
            best = max(real, key=lambda k: float(queries[q] @ keys[k]))
            assert found.weights[pair, q].tolist() == [float(k == best) for k in range(len(keys))]


FOCALS = ["equal", "prob"]


@pytest.mark.parametrize("focal", FOCALS)
@pytest.mark.parametrize("fragments", [1, 3])
def test_where_all_weights_are_equal_all_are_kept(focal, fragments):
    """The official code divides 0 by 0 here."""
    weights = torch.zeros(4, fragments).softmax(1).requires_grad_()
    kept = focus(weights, None, 1, focal)
    assert_close(kept, torch.full((4, fragments), 1 / fragments))
    kept.square().sum().backward()
    assert weights.grad.isfinite().all()
    mask = (torch.arange(fragments + 2) < fragments).expand(4, -1)
    padded = torch.nn.functional.pad(weights.detach(), (0, 2))
    assert_close(focus(padded, mask, 1, focal)[:, :fragments], kept.detach())


@pytest.mark.parametrize("focal", FOCALS)
@pytest.mark.parametrize("sizes", [(1, 36), (5, 1)], ids=["one word", "one region"])
def test_a_query_alone_is_not_at_the_mercy_of_rounding(focal, sizes):
    """Its products, normalised over the queries, are 1 or -1; what is 1 is liked alike, whatever was rounded how."""
    generator = torch.Generator().manual_seed(0)
    n_words, n_regions = sizes
    images, captions = (
        torch.nn.functional.normalize(torch.randn(40, n, 64, generator=generator) + 0.3, dim=-1)
        for n in (n_regions, n_words)
    )
    model = build_model("bfan", feature_size=1, vocabulary_size=1, embedding_size=1, word_size=1, focal=focal)
    exact = model.similarity(Code(images.double()), Code(captions.double())).float()
    assert_close(model.similarity(Code(images), Code(captions)), exact, atol=1e-5, rtol=0)
    assert_close(model.similarity(Code(images[:7]), Code(captions[:5])), exact[:7, :5], atol=1e-5, rtol=0)
    assert_close(model.pair_similarity(Code(images), Code(captions)), exact.diagonal(), atol=1e-5, rtol=0)
