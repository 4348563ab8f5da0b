"""Small random worlds, every registered model with random weights and statistics, and definitions as loops."""

from dataclasses import dataclass, replace

import pytest
import torch

from aoq.models import MODELS, build_model
from aoq.models.base import Captions, Code, EmbeddingModel, Images
from aoq.pipeline.losses.aoq import online_triplet, sum_triplet
from aoq.pipeline.losses.similarities import Similarities, positive_pairs

VOCABULARY, FEATURES, REGIONS = 30, 5, 6
SIZES = {"embedding_size": 8, "word_size": 6}
PLACES = {"position_size": 4, "grid": 4}
RAW = {"normalise_images": False, "normalise_captions": False}
# Further options worth the contract tests; a new model is tested with its defaults.
OPTIONS = {
    "vsepp": [{}, {"bidirectional": True}],
    "vsrn": [
        {"variant": "coco", "caption_hidden_size": 7, "caption_word_size": 6, "caption_bidirectional": True},
        {"variant": "f30k", "normalise_axis": "features", "caption_hidden_size": 7, "caption_word_size": 6},
    ],
    "scan": [
        {"direction": "t2i", "aggregation": "Mean"},
        {"direction": "i2t", "aggregation": "Max", "normalisation": "clipped_l1norm", "bidirectional": False},
        {"direction": "t2i", "aggregation": "LogSumExp", "normalisation": "l1norm", "weight_norm": True, **RAW},
        {"direction": "i2t", "aggregation": "Sum", "normalisation": "softmax", **RAW},
    ],
    "bfan": [{"focal": "equal"}, {"focal": "prob"}],
    "pfan": [
        {"direction": "i2t", "mask_padding": True, **PLACES},
        {"direction": "t2i", "aggregation": "LogSumExp", **PLACES},
    ],
    "sgr": [{"regions": REGIONS, "similarity_size": 7}, {"regions": REGIONS, "similarity_size": 4, "steps": 1}],
    "saf": [{"regions": REGIONS, "similarity_size": 7}],
    "naaf": [{}, {"alpha_schedule": "adaptive", **RAW}],
    "imram": [{"mode": "text", "steps": 1}, {"mode": "full", "steps": 2}],
    "maxsim": [{"direction": "t2i"}, {"direction": "both", "aggregation": "Sum", **RAW}],
    "vse_infinity": [{}, {"augment_words": "mask"}],
    "dual_encoder": [{}, {"image_pooling": "gpo", "text_pooling": "gpo"}, {"text_pooling": "native"}],
}
CASES = [(name, options) for name in MODELS for options in OPTIONS.get(name, [{}])]
# Of statistics and thresholds; anything else lies in [-0.5, 0.5].
RANGES = {"var": (0.5, 1.5), "threshold": (0.1, 0.4), "alpha": (1.0, 3.0), "statistics": (0.1, 0.9)}


def randomise(model, generator):
    """All weights and statistics non-trivial: fresh ones leave VSRN's graph layers and NAAF's thresholds out."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.6, 0.6, generator=generator)
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                low, high = next((value for end, value in RANGES.items() if name.endswith(end)), (-0.5, 0.5))
                buffer.uniform_(low, high, generator=generator)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Build:
    """A model of one case, as often as a test needs a fresh one."""

    name: str
    options: dict

    @property
    def takes_masks(self):
        return MODELS[self.name].takes_masks

    def with_regions(self, regions):
        """The case for images of this number of regions, if its model is built for a number."""
        return replace(self, options={**self.options, "regions": regions}) if "regions" in self.options else self

    def __call__(self, seed=0):
        model = build_model(self.name, feature_size=FEATURES, vocabulary_size=VOCABULARY, **SIZES, **self.options)
        randomise(model, torch.Generator().manual_seed(seed))
        return model.eval()


def case_id(case):
    name, options = case
    return "-".join([name, *(f"{key}={value}" for key, value in options.items() if key not in PLACES)])


def fixture_of(fits):
    """A fixture that runs its test for every case whose model fits."""
    cases = [case for case in CASES if fits(MODELS[case[0]])]
    return pytest.fixture(params=cases, ids=case_id)(lambda request: Build(*request.param))


build = fixture_of(lambda model: True)
build_masking = fixture_of(lambda model: model.takes_masks)
build_unmasking = fixture_of(lambda model: not model.takes_masks)
build_embedding = fixture_of(lambda model: issubclass(model, EmbeddingModel))
build_attending = fixture_of(lambda model: model.attends)


@pytest.fixture
def world(generator):
    """(images, captions): regions with boxes, and 0-padded word ids in mixed order of lengths."""

    def make(images=5, lengths=(4, 1, 7, 2, 4), regions=REGIONS, masked=False):
        features = torch.rand(images, regions, FEATURES, generator=generator)
        mask = torch.rand(images, regions, generator=generator) < 0.6 if masked else None
        if mask is not None:
            mask[torch.arange(images), torch.arange(images) % regions] = True
        words = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
        words[torch.arange(max(lengths)) >= torch.tensor(lengths).unsqueeze(1)] = 0
        corners = torch.rand(images, regions, 2, 2, generator=generator).sort(dim=2).values
        return Images(features, mask, corners.flatten(2)), Captions(words, torch.tensor(lengths))

    return make


@pytest.fixture
def triplet():
    """VSE++'s loss as the official codes have it: margin 0.2, and only the diagonal is positive."""

    def loss(similarity, *, hardest):
        diagonal = positive_pairs(torch.arange(len(similarity)), mask_positives=False)
        return (online_triplet if hardest else sum_triplet)(Similarities(similarity, diagonal), margin=0.2).total

    return loss


# Definitions that several papers share, one pair and one fragment at a time; autograd goes through them.


def attention(queries, contexts, temperature, normalisation="clipped_l2norm"):
    """Row q: how much query q attends to each context fragment. Products are normalised over the queries first."""
    columns = [_normalised(torch.stack([q @ v for q in queries]), normalisation) for v in contexts]
    rows = []
    for q in range(len(queries)):
        exponentials = [(temperature * column[q]).exp() for column in columns]
        rows.append(torch.stack(exponentials) / sum(exponentials))
    return torch.stack(rows)


def cosine(a, b):
    return (a @ b) / (a.norm() * b.norm()).clamp_min(1e-8)


def random_code(seed, items, fragments, *, size=8, unit=True):
    """Float64, any mask with at least one real fragment an item, and NaN where it is False."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(items, fragments, size, generator=generator, dtype=torch.float64)
    vectors = vectors / vectors.norm(dim=-1, keepdim=True) if unit else vectors
    mask = torch.rand(items, fragments, generator=generator) < 0.7
    mask[torch.arange(items), torch.randint(fragments, (items,), generator=generator)] = True
    return Code(vectors.masked_fill(~mask.unsqueeze(-1), torch.nan), mask)


def each_pair(images, captions, similarity):
    """The matrix, one pair at a time, of the real regions and the real words."""
    rows = [
        [similarity(regions[r], words[w]) for words, w in zip(captions.vectors, captions.mask, strict=True)]
        for regions, r in zip(images.vectors, images.mask, strict=True)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def _normalised(products, normalisation):
    if normalisation == "softmax":
        return products.exp() / sum(x.exp() for x in products)
    if normalisation.startswith("clipped"):
        products = torch.stack([x if x > 0 else 0.1 * x for x in products])
    if normalisation.endswith("l2norm"):
        norm = sum(x * x for x in products).sqrt()
        return products / norm if norm > 0 else products
    return products / (sum(x.abs() for x in products) + 1e-8) if normalisation.endswith("l1norm") else products
