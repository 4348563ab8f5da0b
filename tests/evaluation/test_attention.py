"""Attention precision, recall and F1 against the paper's sentences in loops; annotations, and those that do not fit."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aoq.models import build_model
from aoq.pipeline.data.batches import PairData, TokenisedCaptions
from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.phrases import Phrase, find_phrases, read_phrases
from aoq.pipeline.data.vocabulary import Vocabulary, tokenise
from aoq.pipeline.evaluation.attention import (
    THRESHOLDS,
    box_overlap,
    measure_attention,
    phrase_scores,
    relevant_regions,
)

CPU = torch.device("cpu")


def slow_phrase_scores(weights, relevant, threshold):
    """Each word's sets, then the highest of each score."""
    words = []
    for row in weights:
        attended = {region for region, weight in enumerate(row) if weight > threshold}
        wanted = {region for region, is_relevant in enumerate(relevant) if is_relevant}
        precision = len(attended & wanted) / len(attended) if attended else 0.0
        recall = len(attended & wanted) / len(wanted)
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        words.append((precision, recall, f1))
    return [max(scores) for scores in zip(*words, strict=True)]


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 9))
def test_scores_are_the_papers(seed, words, regions):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(regions, 0.3), size=words)
    relevant = rng.random(regions) < 0.4
    relevant[rng.integers(regions)] = True
    found = phrase_scores(weights, relevant)
    for place, threshold in enumerate(THRESHOLDS):
        assert found[:, place].tolist() == pytest.approx(slow_phrase_scores(weights, relevant, threshold))


@given(st.integers(0, 10_000))
def test_overlaps_are_counted_cell_by_cell(seed):
    """On a grid of 10 x 10 cells, overlap is the cells in both boxes over the cells in either."""
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.integers(0, 11, size=(2, 3, 2, 2)), axis=2).reshape(2, 3, 4)
    cells = np.stack(np.meshgrid(np.arange(10), np.arange(10)), axis=-1).reshape(-1, 2)
    inside = [[((cells >= box[:2]) & (cells < box[2:])).all(axis=1) for box in boxes] for boxes in corners]
    expected = [[(a & b).sum() / max((a | b).sum(), 1) for b in inside[1]] for a in inside[0]]
    np.testing.assert_allclose(box_overlap(corners[0] / 10, corners[1] / 10), expected, atol=1e-12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("world")
    write_demo_world(path, images=1, dev_images=4, seed=0)
    return path


@pytest.fixture
def pairs(folder):
    split = open_split(folder, "dev")
    vocabulary = Vocabulary.build(split.captions, min_count=1)
    return PairData(split, TokenisedCaptions.build(split.captions, vocabulary))


def model_for(pairs, name="scan", **options):
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "word_size": 6, "feature_size": pairs.split.features.shape[2]}
    return build_model(name, **sizes, vocabulary_size=int(pairs.tokens.words.max()) + 1, **options)


def test_the_demo_worlds_phrases_are_judged_one_by_one(folder, pairs):
    """The whole measure against one caption at a time, by the world's own labels."""
    phrases, model = find_phrases(folder, pairs.split), model_for(pairs, "bfan").eval()
    labels = json.loads((folder / "dev_labels.json").read_text())
    scores, left_out = [], 0
    for row, told in enumerate(labels["phrases"]):
        codes = (
            model.encode_images(pairs.images(pairs.split.image_of[[row]]).to(CPU)),
            model.encode_captions(pairs.captions(np.array([row]))),
        )
        weights = model.fragment_attention(*codes)[0].weights[0].detach().numpy()
        for start, stop, regions in told:
            if not regions:
                left_out += 1
                continue
            relevant = [region in regions for region in range(weights.shape[1])]
            words = weights[1 + start : 1 + stop]  # <start> is the first
            scores.append([slow_phrase_scores(words, relevant, threshold) for threshold in THRESHOLDS])
    found = measure_attention(model, pairs, phrases, CPU)
    assert (found["phrases"], found["left_out"]) == (len(scores), left_out)
    curves = np.array([found["curve"][name] for name in ("precision", "recall", "f1")])
    np.testing.assert_allclose(curves, 100 * np.mean(scores, axis=0).T, atol=1e-4)
    best = curves[2].argmax()
    assert [found[name] for name in ("precision", "recall", "f1", "threshold")] == [*curves[:, best], THRESHOLDS[best]]
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(ValueError, match=f"none of {len(scores) + left_out} phrases has a relevant region"):
        measure_attention(model, pairs, [[replace(one, regions=()) for one in told] for told in phrases], CPU)


def test_attention_from_regions_alone_has_no_words_to_judge(folder, pairs):
    phrases = find_phrases(folder, pairs.split)
    assert measure_attention(model_for(pairs, direction="i2t"), pairs, phrases, CPU) is None


def test_only_regions_that_are_used_and_real_are_relevant(pairs):
    boxes = np.zeros((4, 12, 4), dtype=np.float32)
    boxes[:, :3] = [[0.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.4, 1.0], [0.5, 0.0, 1.0, 1.0]]
    mask = np.ones((4, 12), dtype=bool)
    mask[3, 1] = False
    split = replace(pairs.split, boxes=boxes, mask=mask)
    phrase = Phrase(0, 1, np.array([[0.0, 0.0, 0.5, 1.0], [0.9, 0.9, 1.0, 1.0]]))
    for used, image, expected in ((None, 0, [0, 1]), (1, 0, [0]), (None, 3, [0])):
        found = relevant_regions(PairData(split, pairs.tokens, used), phrase, image)
        assert found.nonzero()[0].tolist() == expected
        assert len(found) == (used or 12)
    assert relevant_regions(PairData(split, pairs.tokens, 5), Phrase(0, 1, regions=(4, 7)), 0).nonzero()[0] == [4]


CAPTION = "A man's dog runs."
GOOD = {"phrase": "A man's dog", "start": 0, "boxes": [[0.1, 0.1, 0.5, 0.5], [0.2, 0.2, 0.9, 1.0]]}
RUNS = {"phrase": "runs", "start": 4, "boxes": [[0, 0, 1, 1]]}


def test_phrases_stand_at_their_tokens(tmp_path):
    path = tmp_path / "dev_phrases.jsonl"
    path.write_text(f"{json.dumps([GOOD, RUNS])}\n[]\n")
    ((dog, runs), nothing), _ = read_phrases(path, [CAPTION, CAPTION])
    assert tokenise(CAPTION)[dog.start : dog.stop] == ["a", "man", "'s", "dog"]
    assert dog.boxes.tolist() == GOOD["boxes"]
    assert (runs.start, runs.stop, runs.boxes.tolist()) == (4, 5, RUNS["boxes"])
    assert nothing == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[", "is not a json list"),
        ("{}", r"'\{\}' is not a json list of phrases .*; write \[\] for none"),
        ('["dog"]', r"not a json list of phrases \(0: input should be a valid dictionary"),
        ([{"phrase": "dog", "start": 3}], r"0\.boxes: field required\); each has `phrase`, `start` and `boxes`"),
        ([GOOD | {"start": 1}], r"phrase \"A man's dog\" is not at token 1 of the caption, whose tokens are \['a'"),
        ([GOOD | {"start": -5}], r"0\.start: input should be greater than or equal to 0"),
        ([GOOD | {"start": "0"}], r"0\.start: input should be a valid integer"),
        ([GOOD | {"phrase": " "}], "is not at token 0"),
        ([GOOD | {"boxes": []}], r"0\.boxes: list should have at least 1 item"),
        ([GOOD | {"boxes": [[1, 1]]}], r"0\.boxes\.0: list should have at least 4 items"),
        ([GOOD | {"boxes": [["a", 0, 1, 1]]}], r"0\.boxes\.0\.0: input should be a valid number"),
        (
            [GOOD | {"boxes": [[0, 0, 640, 480]]}],
            r"0\.boxes\.0\.2: input should be less than or equal to 1.* fractions of",
        ),
        ([GOOD | {"boxes": [[0.5, 0, 0.2, 1]]}], "x2 < x1"),
        ([GOOD | {"boxes": [[0, 0, 1, float("nan")]]}], r"the number NaN is not finite"),
    ],
)
def test_an_annotation_that_does_not_fit_is_refused(tmp_path, line, message):
    path = tmp_path / "dev_phrases.jsonl"
    path.write_text("[]\n" + (line if isinstance(line, str) else json.dumps(line)) + "\n")
    ((number, problem),) = read_phrases(path, [CAPTION, CAPTION])[1]
    assert number == 2
    assert re.search(message, problem)


def test_boxes_and_regions_must_be_those_of_the_split(folder, pairs, tmp_path):
    split = pairs.split
    word = {"phrase": tokenise(split.captions[0])[0], "start": 0}
    rest = "[]\n" * (split.caption_count - 1)
    path = tmp_path / "dev_phrases.jsonl"
    path.write_text(json.dumps([word | {"boxes": [[0, 0, 1, 1]]}]) + "\n" + rest)
    assert find_phrases(tmp_path, split)[0][0].boxes.tolist() == [[0, 0, 1, 1]]
    for boxes in (None, np.zeros((4, 12, 30))):
        with pytest.raises(ValueError, match=r"write them to dev_boxes.npy"):
            find_phrases(tmp_path, replace(split, boxes=boxes))
    path.write_text("[]\n[3]\n" + rest.removesuffix("[]\n"))
    with pytest.raises(ValueError, match=r"dev_phrases\.jsonl:2: '\[3\]' is not a json list"):
        find_phrases(tmp_path, split)
    path.unlink()
    assert find_phrases(tmp_path, split) is None


def test_the_folders_check_reads_annotations(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "dev_phrases.jsonl"
    path.write_text("[]\n" * 20)
    assert examine_folder(tmp_path / "copy").flaws == examine_folder(folder).flaws
    path.write_text("[]\n" * 19 + "[3]\n")
    (problem,) = [p for p in examine_folder(tmp_path / "copy").flaws if p.file == path.name]
    assert problem.line == 20
    assert "is not a json list of phrases (0: input should be a valid dictionary)" in problem.message
    path.write_text("[]\n")
    (problem,) = [p for p in examine_folder(tmp_path / "copy").flaws if p.file == path.name]
    assert problem.message.startswith("1 lines for 20 captions; write one line per caption")
