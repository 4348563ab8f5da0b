"""Models of fragments against numbers of the official codes: scores, losses and gradients, and AOQ's loss on BFAN."""

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from aoq.models import MODELS, build_model
from aoq.models.base import Captions, Code, Images, MatchingModel
from aoq.models.official import from_official
from aoq.models.official_programs import MAPPED_OPTIONS
from aoq.pipeline.losses.aoq import adap_off_quin
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities, positive_pairs

CASES = {
    **dict.fromkeys(("scan_bigru", "scan_unigru", "scan_weightnorm_nonorm"), "scan"),
    **dict.fromkeys(("naaf_basic", "naaf_glove", "naaf_nonorm"), "naaf"),
    "pfan": "pfan",
    "bfan": "bfan",
    "sgraf_sgr": "sgr",
    "sgraf_saf": "saf",
    "ncr_sgraf_unsorted": "sgr",
}
SGRAF = [name for name, model in CASES.items() if model in ("sgr", "saf")]
LOSSES = [f"{focal}_{kind}" for focal in ("equal", "prob") for kind in ("inactive", "mixed", "random")]


@dataclass(frozen=True)
class Official:
    """The model of a golden case in eval mode, and what it makes of the case's images and captions."""

    model: MatchingModel
    images: Code
    captions: Code

    def matrix(self):
        return self.model.similarity(self.images, self.captions)

    def pairs(self):
        """Every image with every caption as an aligned list, image by image."""
        rows = torch.arange(len(self.images)).repeat_interleave(len(self.captions))
        return self.images[rows], self.captions[torch.arange(len(self.captions)).repeat(len(self.images))]

    def double(self):
        """The same embeddings in float64, as the official evaluations have them."""
        images, captions = (
            Code(code.vectors.double(), code.mask, None if code.pooled is None else code.pooled.double())
            for code in (self.images, self.captions)
        )
        return Official(self.model.double(), images, captions)


def load(case, **options):
    """Recognise the case's weights by the official options, and check the embeddings."""
    parts = [part for part in map(case.weights, ("img_enc", "txt_enc", "sim_enc")) if part]
    found = from_official(parts, case.meta["config"]["opt"] | options)
    model = build_model(found.name, **found.options).eval()
    model.load_state_dict(found.weights)
    images = model.encode_images(Images(case["in/images"], None, case.tensors.get("in/boxes")))
    captions = model.encode_captions(Captions(case["in/captions"], case["in/lengths"]))
    case.check("out/img_emb", images.vectors)
    case.check("out/cap_emb", padded_like(captions.vectors, case["out/cap_emb"]))
    assert torch.equal(captions.mask.sum(1), case["in/lengths"])
    return Official(model, images, captions)


def padded_like(words, longer):
    return F.pad(words, (0, 0, 0, longer.shape[1] - words.shape[1]))


def scored(case):
    """The options of each scoring, and the keys of its scores and of those in float64."""
    config = case.meta["config"]
    for one in config.get("scores", []):
        key = f"{one['cross_attn']}/{one['raw_feature_norm']}/{one['agg_func']}{one.get('suffix', '')}"
        yield one, f"out/scores/{key}", f"out/scores_eval/{key}" if "eval64" in one else None
    for threshold in config.get("thres_safe", []):
        key = f"thres{threshold:g}"
        yield {"thres_safe": threshold}, f"out/scores_test_f32/{key}", f"out/scores_test/{key}"
    if "out/scores_t2i/prob" in case.tensors:
        for focal in ("equal", "prob"):
            yield {"focal_type": focal}, f"out/scores/{focal}", f"out/scores_eval/{focal}"
    if "out/scores" in case.tensors:
        yield {}, "out/scores", None


@pytest.mark.parametrize("name", CASES)
def test_scores(golden, name):
    """As a matrix, as pairs, and in float64; BFAN's also direction by direction."""
    case, keys = golden(name), []
    for options, key, double_key in scored(case):
        found = load(case, **options)
        assert type(found.model) is MODELS[CASES[name]]
        case.check(key, found.matrix())
        case.check(key, found.model.pair_similarity(*found.pairs()).view_as(case[key]))
        if name == "bfan":
            block = found.model.pair_block(*found.pairs())
            for direction in ("t2i", "i2t"):
                keys.append(f"out/scores_{direction}/{options['focal_type']}")
                case.check(keys[-1], found.model.compare_in(block, direction).view_as(case[key]))
        if double_key is not None:
            case.check(double_key, found.double().matrix())
        keys += [key] if double_key is None else [key, double_key]
    assert sorted(keys) == case.keys("out/scores")


@pytest.mark.parametrize("name", SGRAF)
def test_what_sgrafs_scores_are_made_of(golden, name):
    case = golden(name)
    sgraf, summaries = load(case), []
    case.check("out/inter/img_global", sgraf.images.pooled)
    case.check("out/inter/cap_global", sgraf.captions.pooled)
    sgraf.model.score.register_forward_pre_hook(lambda _module, inputs: summaries.append(inputs[0]))
    sgraf.model.pair_similarity(*sgraf.pairs())
    case.check("out/inter/sim_vec", summaries[0].view_as(case["out/inter/sim_vec"]))


@pytest.mark.parametrize("name", SGRAF)
def test_loss_and_gradients_of_sgraf(golden, triplet, name):
    """Compare the first square of the matrix in eval mode; gradients pass through the pooled vectors too."""
    case = golden(name)
    sgraf = load(case)
    model, mask = sgraf.model, sgraf.captions.mask
    regions, words = (code.vectors.detach().requires_grad_() for code in (sgraf.images, sgraf.captions))
    images = Code(regions, None, model.pool_image(regions, None))
    captions = Code(words, mask, model.pool_caption(words, mask))
    square = min(len(images), len(captions))
    loss = triplet(model.similarity(images, captions)[:square, :square], hardest=True)
    case.check("out/loss", loss)
    loss.backward()
    case.check("out/grad/img_emb", regions.grad)
    case.check("out/grad/cap_emb", padded_like(words.grad, case["out/grad/cap_emb"]))
    assert not words.grad[~mask].any()


def comparing(name, options, size):
    """The model of the official options, for codes of this size."""
    ours = {ours: options[theirs[0]] for ours, theirs in MAPPED_OPTIONS[name].items() if theirs[0] in options}
    return build_model(name, feature_size=1, vocabulary_size=1, embedding_size=size, word_size=1, **ours)


def words_in(vectors, lengths):
    return Code(vectors, torch.arange(vectors.shape[1]) < lengths.unsqueeze(1))


@pytest.mark.parametrize("name", ["scan", "pfan", "bfan"])
def test_losses_and_gradients(golden, triplet, name):
    case = golden(f"{name}_loss")
    for variant in case.meta["config"]["variants"]:
        options, key = variant["opt"], variant["name"]
        images, captions = (case[f"in/{side}_emb"].clone().requires_grad_() for side in ("img", "cap"))
        similarity = comparing(name, options, images.shape[2]).similarity
        scores = similarity(Code(images), words_in(captions, case["in/lengths"]))
        loss = triplet(scores, hardest=options["max_violation"])
        case.check(f"out/{key}/loss", loss)
        loss.backward()
        case.check(f"out/{key}/grad/img_emb", images.grad)
        case.check(f"out/{key}/grad/cap_emb", captions.grad)
    assert len(case.keys("out/")) == 3 * len(case.meta["config"]["variants"])


@pytest.mark.parametrize("name", LOSSES)
def test_the_aoq_loss_on_bfan(golden, name):
    """The matrix of anchors, four lists of pairs, and gradients of all six inputs."""
    case = golden(f"aoq_bfan_loss_{name}")
    lengths = {"s": "s_l", "shnoff": "s_lhnoff", "shnoff2": "s_lhnoff2"}
    inputs = {key: case[f"in/{key}"].clone().requires_grad_() for key in ("im", "imhnoff", "imhnoff2", *lengths)}
    codes = {
        key: words_in(vectors, case[f"in/{lengths[key]}"]) if key in lengths else Code(vectors)
        for key, vectors in inputs.items()
    }
    model = comparing("bfan", case.meta["config"]["opt"], inputs["im"].shape[2])
    lists = {
        "i2t_off": ("im", "shnoff"),
        "t2i_off": ("imhnoff", "s"),
        "off_off": ("imhnoff", "shnoff"),
        "off2_off2": ("imhnoff2", "shnoff2"),
    }
    found = {key: model.pair_similarity(codes[i], codes[c]) for key, (i, c) in lists.items()}
    offline, matrix = OfflineSimilarities(*found.values()), model.similarity(codes["im"], codes["s"])
    for key, similarity in {"scores": matrix, **found}.items():
        case.check(f"out/inter/{key}", similarity)
    diagonal = positive_pairs(torch.arange(len(matrix)), mask_positives=False)
    numbers = case.meta["config"]["loss"]
    margins = {"margin_online": numbers["marginonline"], "margin_offline": numbers["marginoffline"]}
    weighting = {"alpha": numbers["alpha"], "beta": numbers["beta"]}
    loss = adap_off_quin(Similarities(matrix, diagonal, offline), **margins, **weighting).total
    case.check("out/loss", loss)
    loss.backward()
    for key, leaf in inputs.items():
        case.check(f"out/grad/{key}", leaf.grad)
