"""Every rule against its definition in loops, and views kept beside tables."""

import json
import unicodedata
from dataclasses import replace
from statistics import NormalDist, mean, pstdev

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.config.screen import CERTAIN, EXCLUSIONS, RULES, VECTOR_RULES, ScreenSection
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.tables.screens.judge import PREDICATES, judge
from aoq.pipeline.tables.screens.judgements import Judgements
from aoq.pipeline.tables.screens.knowledge import Knowledge
from aoq.pipeline.tables.screens.view import bit, read_view, write_view
from tests.mining.conftest import by_norm

COLUMNS = pa.schema({"caption_id": pa.int64(), "image_id": pa.int64(), "probability": pa.float64()})
WORDS = ("a", "dog's", "dog’s", "café", "cafe\u0301", "sits")
IMAGE_OF = np.array([0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 5, 5, -1, -1], dtype=np.int32)
MATCHES = [(0, 5), (3, 2), (4, 11)]
JUDGED = {(image, caption): (image * 14 + caption) % 11 / 10 for image in range(6) for caption in range(1, 14, 3)}


@pytest.fixture(scope="module")
def world():
    """Six images with up to four captions, two captions of no image, clustered vectors, few words."""
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((3, 8))
    images = by_norm(centres[rng.integers(3, size=6)] + 0.4 * rng.standard_normal((6, 8)))
    captions = by_norm(centres[rng.integers(3, size=14)] + 0.4 * rng.standard_normal((14, 8)))
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 4))).capitalize() for _ in IMAGE_OF]
    texts = [text + "." * (row % 2) for row, text in enumerate(texts)]
    manifest = {"directions": {"i2t": {"sha256": "one"}, "t2i": {"sha256": "other"}}}
    table = hard_negatives(images, captions, IMAGE_OF, h=(12, 5), metric="dot")  # more than some have
    trust = rng.random(14).astype(np.float32)
    judgements = Judgements(np.array([*JUDGED], np.int32), np.array([*JUDGED.values()], np.float32))
    known = Knowledge(texts, images, captions, np.array(MATCHES, np.int32), trust, judgements)
    return replace(table, manifest=manifest), known


def plain(text):
    return unicodedata.normalize("NFKC", text).lower().rstrip(".").replace("’", "'")


def meets(rule, value, table, known, direction, anchor, place, mean=None):
    """The definition of each rule."""
    lists = table[direction]
    candidate, score = lists.negative_ids[anchor, place], float(lists.scores[anchor, place])
    image, caption = (anchor, candidate) if direction == "i2t" else (candidate, anchor)
    own = [c for c in range(14) if IMAGE_OF[c] == image]
    positive = float(lists.positive_score[anchor])
    if mean and direction == "i2t" and own:
        positive = float(np.mean([table.t2i.positive_score[c] for c in own]))
    words = set(tokenise(known.texts[caption]))
    others = [set(tokenise(known.texts[c])) for c in own]
    back = table["t2i" if direction == "i2t" else "i2t"].negative_ids[candidate]
    answers = {
        "range_min": lambda: place < value,
        "range_max": lambda: place >= value,
        "min_score": lambda: score < value,
        "max_score": lambda: score > value,
        "positives": lambda: (image, caption) in MATCHES,
        "same_text": lambda: any(plain(known.texts[c]) == plain(known.texts[caption]) for c in own),
        "near_text": lambda: any(len(words & other) / len(words | other) >= value for other in others),
        "caption_similarity": lambda: any(float(known.captions[c] @ known.captions[caption]) >= value for c in own),
        "image_similarity": lambda: (
            IMAGE_OF[caption] >= 0 and float(known.images[image] @ known.images[IMAGE_OF[caption]]) >= value
        ),
        "mutual_rank": lambda: place < value and anchor in back[:value],
        "absolute_margin": lambda: score > positive - value,
        "relative_margin": lambda: score > positive - value * abs(positive),
        "doubtful_pair": lambda: IMAGE_OF[caption] >= 0 and float(known.pair_probabilities[caption]) < value,
        "judgements": lambda: JUDGED.get((image, caption), 0) >= 0.5,
        "alike_owners": lambda: place in most_alike(table, known, direction, anchor, value),
    }
    is_cleared = rule not in (*EXCLUSIONS, *CERTAIN) and JUDGED.get((image, caption), 1) < 0.5
    return not is_cleared and answers[rule]()


def most_alike(table, known, direction, anchor, share):
    """SaHa's: of what is left by rank and score, the places whose most similar owner is most like the anchor."""
    lists, similarity = table[direction], {}
    last = min(SETTINGS["range_max"], lists.h)
    for place in range(SETTINGS["range_min"], last):
        candidate, score = lists.negative_ids[anchor, place], float(lists.scores[anchor, place])
        if candidate >= 0 and SETTINGS["min_score"] <= score <= SETTINGS["max_score"]:
            vectors = known.images if direction == "i2t" else known.captions
            owners = [IMAGE_OF[candidate]] if direction == "i2t" else np.flatnonzero(candidate == IMAGE_OF)
            found = [float(vectors[owner] @ vectors[anchor]) for owner in owners if owner >= 0]
            similarity[place] = max(found, default=-np.inf)
    order = sorted(similarity, key=lambda place: (-similarity[place], place))
    return [place for place in order[: int(share * len(order))] if similarity[place] > -np.inf]


SETTINGS = {
    "range_min": 2,
    "range_max": 4,
    "min_score": 0.0,
    "max_score": 0.8,
    "positives": "some.csv",
    "same_text": True,
    "near_text": 0.5,
    "caption_similarity": 0.7,
    "image_similarity": 0.7,
    "mutual_rank": 3,
    "absolute_margin": 0.2,
    "relative_margin": 0.3,
    "doubtful_pair": 0.4,
    "judgements": "judged.csv",
    "alike_owners": 0.5,
}
FILES = {"pair_probabilities": "clean_pairs.parquet"}


@pytest.mark.parametrize(("direction", "mean"), [("i2t", None), ("t2i", None), ("i2t", "mean"), ("t2i", "mean")])
def test_every_rule_means_what_its_definition_says(world, direction, mean):
    table, known = world
    view = judge(table, ScreenSection(**SETTINGS, **FILES, margin_positive=mean), known)
    flags, ids = view[direction].flags, table[direction].negative_ids
    met = dict.fromkeys(SETTINGS, 0)
    for anchor, place in np.ndindex(*ids.shape):
        for rule, value in SETTINGS.items():
            expected = ids[anchor, place] >= 0 and meets(rule, value, table, known, direction, anchor, place, mean)
            assert bool(flags[anchor, place] & bit(rule)) == expected, (rule, anchor, place)
            met[rule] += expected
    assert all(0 < count < (ids >= 0).sum() for rule, count in met.items()), met


def test_lists_are_judged_by_the_highest_positive_if_pairs_have_margins_of_their_own(world):
    table, known = world
    highest = [
        max((table.t2i.positive_score[c] for c in np.flatnonzero(m == IMAGE_OF)), default=np.nan) for m in range(6)
    ]
    by_highest = replace(table, i2t=replace(table.i2t, positive_score=np.array(highest, np.float32)))
    expected, lowest = (judge(one, ScreenSection(relative_margin=0.3), known).i2t.flags for one in (by_highest, table))
    found = judge(table, ScreenSection(relative_margin=0.3, margin_positive="own"), known).i2t.flags
    np.testing.assert_array_equal(found, expected)
    assert (found != lowest).any()


def test_a_cap_leaves_each_candidate_its_best_places(world):
    table, known = world
    view = judge(table, ScreenSection(range_min=1, max_uses=2), known)
    ids, flags = table.i2t.negative_ids, view.i2t.flags
    for candidate in range(14):
        places = sorted((place, anchor) for anchor, place in zip(*np.nonzero(ids == candidate), strict=True))
        after = [(place, anchor) for place, anchor in places if place >= 1]
        assert [bool(flags[anchor, place] & bit("max_uses")) for place, anchor in after] == [
            number >= 2 for number in range(len(after))
        ]


def test_suspicion_is_the_share_of_rules_and_certain_where_people_said_so(world):
    table, known = world
    view = judge(table, ScreenSection(positives="some.csv", mutual_rank=3, near_text=0.5, min_score=0.0), known)
    judged = view.i2t
    met = [(judged.flags & bit(rule) > 0).astype(int) for rule in ("positives", "mutual_rank", "near_text")]
    np.testing.assert_allclose(judged.suspicion, np.where(met[0], 1.0, sum(met) / 3), rtol=1e-6)
    assert len(np.unique(judged.suspicion)) == 4
    excluded = judged.flags & bit("min_score") > 0
    left_in = {"drop": judged.suspicion == 0, "downweight": 1 - judged.suspicion, "soft_margin": 1, "keep": 1}
    for suspected, left in left_in.items():
        np.testing.assert_array_equal(judged.weights(suspected), np.where(excluded, 0, left).astype(np.float32))


def test_a_judge_overrides_weaker_rules_and_nobody_overrides_people(world):
    table, known = world
    settings = {"positives": "some.csv", "mutual_rank": 3, "near_text": 0.5, "match_prior": 0.2}
    view = judge(table, ScreenSection(**settings, judgements="judged.csv", judged_match=0.7), known)
    without = judge(table, ScreenSection(**settings), known)
    seen = set()
    for anchor, place in np.ndindex(*table.i2t.negative_ids.shape):
        caption, flags = int(table.i2t.negative_ids[anchor, place]), int(view.i2t.flags[anchor, place])
        if caption < 0:
            assert flags == 0
            continue
        suspicion, judged = float(view.i2t.suspicion[anchor, place]), JUDGED.get((anchor, caption))
        is_known, weaker = (anchor, caption) in MATCHES, int(without.i2t.flags[anchor, place]) & ~bit("positives")
        assert bool(flags & bit("positives")) == is_known
        assert bool(flags & bit("judgements")) == (judged is not None and judged >= 0.7)
        assert flags & ~bit("positives") & ~bit("judgements") == (0 if judged is not None and judged < 0.7 else weaker)
        if is_known:
            assert suspicion == 1
        elif judged is not None:
            assert suspicion == pytest.approx(judged)
        seen.add((judged is None, is_known, weaker > 0))
    assert len(seen) >= 5, seen
    shown = view.manifest["directions"]["i2t"]["judged"]
    ids = table.i2t.negative_ids
    assert shown == sum((anchor, ids[anchor, place]) in JUDGED for anchor, place in np.ndindex(*ids.shape))


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_a_posterior_is_bayes_rule_between_two_normal_distributions(world, direction):
    """The posterior counts where it rises; `mutual_rank` counts where its share is larger."""
    table, known = world
    table = replace(table, t2i=replace(table.t2i, positive_score=table.t2i.positive_score + np.float32(0.5)))
    view = judge(table, ScreenSection(match_prior=0.1, mutual_rank=2), known)
    share = judge(table, ScreenSection(mutual_rank=2), known)[direction].suspicion
    listed = [float(score) for score in table[direction].scores.ravel() if not np.isnan(score)]
    positives = [float(score) for score in table.t2i.positive_score if not np.isnan(score)]
    of_match, of_listed = (NormalDist(mean(scores), pstdev(scores)) for scores in (positives, listed))

    def bayes(score):
        match, other = 0.1 * of_match.pdf(score), 0.9 * of_listed.pdf(score)
        return match / (match + other)

    grid = np.linspace(-2, 2, 20_001)
    rising = grid[:-1][np.diff([bayes(score) for score in grid]) > 0]
    held = np.clip(table[direction].scores, rising.min(), rising.max())
    for anchor, place in np.ndindex(*held.shape):
        score = float(held[anchor, place])
        expected = 0 if np.isnan(score) else max(bayes(score), share[anchor, place])
        assert view[direction].suspicion[anchor, place] == pytest.approx(expected, abs=1e-3)
    assert (view[direction].flags == judge(table, ScreenSection(mutual_rank=2), known)[direction].flags).all()
    assert len(np.unique(view[direction].suspicion)) > 10


def test_a_table_of_one_direction_has_posteriors_in_that_one():
    rng = np.random.default_rng(0)
    images, captions = by_norm(rng.normal(size=(6, 8))), by_norm(rng.normal(size=(12, 8)))
    for h in ((4, 0), (0, 4)):
        table = hard_negatives(images, captions, np.arange(12) // 2, h=h)
        screened = table.screen(match_prior=0.1, judgements=COLUMNS.empty_table())
        for direction in ("i2t", "t2i"):
            assert screened.suspicion(direction).shape == table[direction].negative_ids.shape
            assert (screened.suspicion(direction) > 0).all()


def test_counts_add_up_and_lists_grow_short(world):
    table, known = world
    view = judge(table, ScreenSection(range_max=8, near_text=0.5, absolute_margin=0.1), known)
    for direction, counts in view.manifest["directions"].items():
        left = table[direction].keep(view[direction].flags == 0)
        assert counts["listed"] == (table[direction].negative_ids >= 0).sum()
        assert counts["left"] + sum(counts["takes"].values()) == counts["listed"]
        assert counts["left"] == (left.negative_ids >= 0).sum()
        assert counts["empty"] == (left.negative_ids[:, 0] < 0).sum()
        for flags, ids, kept in zip(
            view[direction].flags, table[direction].negative_ids, left.negative_ids.tolist(), strict=True
        ):
            expected = ids[(flags == 0) & (ids >= 0)].tolist()
            assert kept == expected + [-1] * (len(ids) - len(expected))


@pytest.fixture
def written(world, tmp_path):
    """A view, written to `tmp_path`."""
    view = judge(world[0], ScreenSection(mutual_rank=2), world[1])
    write_view(view, tmp_path)
    return view


def test_older_views_are_read_and_others_refused(world, written, tmp_path):
    """Views had fewer rules, no hashes, and 16-bit flags while there were no more than 16 rules."""
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["sha256"]
    for direction in ("i2t", "t2i"):
        rows = pq.read_table(tmp_path / f"{direction}.parquet")
        narrow = rows["flags"].cast(pa.list_(pa.uint16(), rows.schema.field("flags").type.list_size))
        pq.write_table(rows.set_column(1, "flags", narrow), tmp_path / f"{direction}.parquet")
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "rules": manifest["rules"][:-1]}))
    np.testing.assert_array_equal(read_view(tmp_path, world[0].manifest).i2t.flags, written.i2t.flags)
    for content, message in (
        ({**manifest, "rules": manifest["rules"][1:]}, "screen again"),
        ({"format_version": 1, "directions": {}}, "not a view's manifest"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            read_view(tmp_path, world[0].manifest)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="aoq screen"):
        read_view(tmp_path, world[0].manifest)


def test_damaged_files_and_those_of_another_view_are_refused(world, written, tmp_path):
    write_view(judge(world[0], ScreenSection(mutual_rank=1), world[1]), tmp_path / "other")
    data = bytearray((tmp_path / "t2i.parquet").read_bytes())
    data[len(data) // 2] ^= 0xFF
    for content in (bytes(data), (tmp_path / "other" / "t2i.parquet").read_bytes()):
        (tmp_path / "t2i.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=r"t2i.parquet is damaged .*its sha256 is not the one in .*; screen again"):
            read_view(tmp_path, world[0].manifest)


@pytest.mark.parametrize("rule", [rule for rule, question in PREDICATES.items() if question.needs])
def test_a_rule_says_what_it_lacks(world, rule):
    screen = ScreenSection(**{rule: SETTINGS[rule]}, **(FILES if rule == "doubtful_pair" else {}))
    with pytest.raises(ValueError, match=f"the rule {rule} needs"):
        judge(world[0], screen, Knowledge())


def test_scores_are_limited_only_where_there_are_any(world):
    unscored = replace(world[0].i2t, scores=np.full_like(world[0].i2t.scores, np.nan))
    table = replace(world[0], i2t=unscored, t2i=replace(world[0].t2i, scores=np.full_like(world[0].t2i.scores, np.nan)))
    with pytest.raises(ValueError, match="max_score needs scores, but this table has none; screen by other rules"):
        judge(table, ScreenSection(max_score=0.5), Knowledge())


def test_every_rule_has_a_bit_and_a_test():
    assert {*SETTINGS, "max_uses"} == set(RULES)
    assert set(EXCLUSIONS) < set(RULES)
    assert {*CERTAIN, *VECTOR_RULES} < {*RULES} - {*EXCLUSIONS}
    assert len(RULES) <= 32


def test_a_mean_needs_the_scores_of_all_captions(world):
    table, known = world
    unscored = replace(table, t2i=replace(table.t2i, positive_score=np.full_like(table.t2i.positive_score, np.nan)))
    with pytest.raises(
        ValueError, match="mean positive needs the score of every caption with its image, which this table lacks"
    ):
        judge(unscored, ScreenSection(relative_margin=0.1, margin_positive="mean"), known)
    bare = replace(unscored, i2t=replace(table.i2t, positive_score=np.full_like(table.i2t.positive_score, np.nan)))
    with pytest.raises(ValueError, match="absolute_margin needs the positives' scores, but this table has none; scr"):
        judge(bare, ScreenSection(absolute_margin=0.1), known)
