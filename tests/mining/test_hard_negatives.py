"""`hard_negatives` against its definition in loops, on every kind of input; and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table
from tests.mining.conftest import by_norm, check, unit


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), queries=st.integers(1, 12), documents=st.integers(9, 40), kind=st.integers(0, 3))
def test_a_corpus_with_several_positives_and_with_none(seed, queries, documents, kind):
    rng = np.random.default_rng(seed)
    one, other = unit(rng, queries), unit(rng, documents)
    own = [sorted(rng.choice(documents, rng.integers(0, 4), replace=False).tolist()) for _ in range(queries)]
    pairs = np.array([(query, row) for query, rows in enumerate(own) for row in rows], dtype=np.int64).reshape(-1, 2)
    positives = ([*map(np.array, own)], pairs, [*map(tuple, pairs)], {*map(tuple, pairs)})[kind if len(pairs) else 0]
    table = hard_negatives(queries=one, documents=other, positives=positives, h=(4, 0))
    check(table.i2t, one, other, own, 4)
    assert table.t2i.negative_ids.shape == (documents, 0)
    assert sorted(map(tuple, table.positives.tolist())) == sorted(map(tuple, pairs.tolist()))


def check_one_set(table, vectors, pairs, h):
    own = [[other for row, other in pairs if row == anchor] for anchor in range(len(vectors))]
    check(table.i2t, vectors, vectors, own, h, one_set=True)
    assert {*map(tuple, table.positives.tolist())} == pairs
    assert len(table.positives) == len(pairs)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(12, 40), count=st.integers(0, 5), search=st.booleans())
def test_one_set_with_any_pairs_is_saved_and_read_as_it_was(seed, rows, count, search, tmp_path_factory):
    """Pairs in either order, twice, and of a row with itself; the lists of both directions are the same."""
    rng = np.random.default_rng(seed)
    vectors, given = unit(rng, rows), rng.integers(0, rows, (count, 2))
    table = hard_negatives(queries=vectors, positives=given, h=5, search="faiss-flat" if search else "onepass")
    pairs = {(int(a), int(b)) for a, b in np.concatenate([given, given[:, ::-1]]) if a != b}
    check_one_set(table, vectors, pairs, 5)
    assert (table.t2i is table.i2t, table.directions, table.sides) == (True, ("i2t",), ("queries",))
    assert audit(table) == []
    folder = tmp_path_factory.mktemp("one") / "table"
    table.save(folder)
    assert audit(folder) == []
    assert not (folder / "t2i.parquet").exists()
    read = read_table(folder)
    check_one_set(read, vectors, pairs, 5)
    assert (read.sha256, repr(read)) == (table.sha256, f"NegativeTable(i2t: {rows} lists of 5, one set)")


@pytest.mark.parametrize("kind", [np.float16, np.float64, torch.float32, torch.bfloat16, list])
def test_any_kind_of_numbers(kind):
    rng = np.random.default_rng(3)
    sides = same = [unit(rng, 10), unit(rng, 10)]
    if isinstance(kind, torch.dtype):
        given = [torch.from_numpy(side).to(kind).requires_grad_() for side in sides]
        same = [side.detach().float().numpy() for side in given]
    elif kind is list:
        given = [side.tolist() for side in sides]
    else:
        given = same = [side.astype(kind) for side in sides]
    found, expected = hard_negatives(*given, h=3), hard_negatives(*map(by_norm, same), h=3, metric="dot")
    assert found.sha256 == expected.sha256


def test_cosine_divides_by_the_norms_and_dot_does_not():
    rng = np.random.default_rng(4)
    images, captions = unit(rng, 10), unit(rng, 10)
    longer = captions * rng.uniform(1, 5, (10, 1)).astype(np.float32)
    for metric in ("cosine", "dot"):
        own = [[row] for row in range(10)]
        check(hard_negatives(images, longer, h=3, metric=metric).i2t, images, longer, own, 3, metric=metric)


def test_vectors_that_were_normalised_in_half_precision_are_listed_by_cosine():
    """Their norms are within 1e-3 of 1, which is more than scores in a narrow cone differ by."""
    rng = np.random.default_rng(11)
    cone = 1.2 * rng.normal(size=64)
    images, captions = (by_norm(cone + rng.normal(size=(rows, 64))).astype(np.float16) for rows in (60, 300))
    images, captions = images.astype(np.float32), captions.astype(np.float32)
    table = hard_negatives(images, captions, np.arange(300) // 5, h=20)
    check(table.i2t, images, captions, np.arange(300).reshape(60, 5).tolist(), 20)
    check(table.t2i, captions, images, [[row // 5] for row in range(300)], 20)


GOOD = np.eye(4, dtype=np.float32)
MASKED = np.ma.masked_equal(GOOD, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give images with captions"),
        ({"images": GOOD}, "images go with captions"),
        ({"queries": GOOD, "documents": GOOD, "image_of": [0]}, "queries go with documents"),
        ({"queries": GOOD, "documents": GOOD}, r"as positives; \[\] if there are none"),
        ({"queries": GOOD, "documents": GOOD, "positives": [[0]]}, "1 items and there are 4 queries"),
        ({"queries": GOOD, "documents": GOOD, "positives": np.array([0, 1])}, r"shape \(2,\); give integer rows"),
        ({"queries": GOOD, "documents": GOOD, "positives": np.array([[0, 9]])}, "row 9 of the documents, whose"),
        ({"images": GOOD, "captions": GOOD[:3]}, "3 captions and 4 images do not form pairs"),
        ({"images": GOOD, "captions": GOOD, "image_of": [0.5] * 4}, "image_of is float64"),
        ({"images": GOOD, "captions": GOOD, "image_of": [0, 1, 2, 4]}, "caption 3 is paired with image 4"),
        (
            {"images": GOOD, "captions": GOOD, "h": 4},
            "h_captions = 4, but i2t lists have at most 3 negatives; lower it",
        ),
        (
            {"images": GOOD[:1], "captions": GOOD, "image_of": [0] * 4, "h": 1},
            "0 negatives; add items that are not all",
        ),
        ({"images": GOOD, "captions": GOOD, "h": 0}, "h is 0; give a positive number"),
        ({"images": GOOD, "captions": GOOD * 0}, "row 0 of captions is zero"),
        (
            {"images": GOOD, "captions": GOOD.astype(np.float64) * [[1], [1], [1e60], [1]], "metric": "dot"},
            "row 2 of captions is too large for float32, which ends at 3.4e38; divide all vectors by one number",
        ),
        ({"images": GOOD[0], "captions": GOOD}, r"images are float32 of shape \(4,\)"),
        ({"images": GOOD.astype(int), "captions": GOOD}, "images are int64"),
        ({"images": GOOD, "captions": GOOD, "metric": "l2"}, "metric is 'l2'"),
        ({"images": GOOD, "captions": GOOD, "h": True}, "h is True; give a positive number, or two"),
        ({"queries": GOOD, "h": (1, 1)}, "queries alone have one side"),
        ({"queries": GOOD, "documents": GOOD, "positives": [[0.5]] * 4}, "give a list of document rows"),
        ({"queries": GOOD, "documents": GOOD, "positives": [0, 1, 2, 3]}, "give a list of document rows"),
        ({"images": torch.eye(4).to(torch.complex64), "captions": GOOD}, "images are complex64"),
        ({"images": MASKED, "captions": GOOD}, "images is a masked array, whose mask would be ignored"),
        ({"queries": GOOD, "documents": GOOD, "positives": [MASKED[0]] * 4}, "positives is a masked array"),
        ({"images": torch.eye(4, device="meta"), "captions": GOOD}, "images is a tensor of float32 on meta"),
        ({"images": torch.eye(4).to_sparse(), "captions": GOOD}, "a tensor of float32 on cpu, sparse_coo, "),
        ({"images": GOOD * 1e25, "captions": GOOD * 1e25, "metric": "dot"}, "dot products fit into float32 only"),
    ],
)
def test_what_does_not_fit_is_said(given, message):
    with pytest.raises(ValueError, match=message):
        hard_negatives(**{"h": 1, **given})


@pytest.mark.parametrize("scale", [1e-44, 1e-100, 1e100])
def test_cosines_of_very_long_and_short_vectors(scale):
    rng = np.random.default_rng(7)
    images, captions = rng.normal(size=(20, 3)), rng.normal(size=(20, 3))
    found, expected = hard_negatives(images * scale, captions, h=3), hard_negatives(images, captions, h=3)
    np.testing.assert_array_equal(found.i2t.negative_ids, expected.i2t.negative_ids)
    np.testing.assert_allclose(found.i2t.scores, expected.i2t.scores, atol=1e-6)


def test_tensors_of_float64_are_not_rounded_before_their_norms():
    rng = np.random.default_rng(8)
    images, captions = rng.normal(size=(50, 3)), rng.normal(size=(150, 3))
    images[:, 0] += 1e6
    captions[:, 0] += 1e6
    image_of = np.arange(150) // 3
    tensors = hard_negatives(torch.from_numpy(images), torch.from_numpy(captions), torch.from_numpy(image_of), h=10)
    assert tensors.sha256 == hard_negatives(images, captions, image_of, h=10).sha256
