"""Every extractor keeps these promises; extractors without their library are left out."""

import json

import numpy as np
import pytest
import torch

from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.prepare.extractor import Extractor, hash_weights
from aoq.pipeline.prepare.extractors import EFFICIENTNET, LIBRARIES, open_extractor
from tests.prepare.conftest import picture
from tests.prepare.tiny import MAKERS

CPU = torch.device("cpu")
VECTORS_ALONE = {"sentence-transformers"}
REGIONS_ALONE = {"torchvision"}
KINDS = [
    *((library, "patches") for library in MAKERS if library not in VECTORS_ALONE),
    *((library, "pooled") for library in MAKERS if library not in REGIONS_ALONE),
]
SIZES = [(90, 60), (50, 70), (64, 64)]


@pytest.fixture(params=KINDS, ids="-".join)
def kind(request, tmp_path):
    """A name and its tokens."""
    library, tokens = request.param
    torch.manual_seed(0)
    return MAKERS[library](tmp_path), tokens


@pytest.fixture
def extractor(kind):
    return open_extractor(*kind)


def extract(extractor: Extractor, *sizes: tuple[int, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Extract one picture of each size, all as one batch."""
    pictures = [picture(seed, *size) for size in sizes]
    pixels = np.stack([extractor.preprocessing.pixels(one) for one in pictures])
    widths, heights = np.array(sizes).T
    return dict(extractor.extract(torch.from_numpy(pixels), widths, heights, CPU))


def test_every_library_is_here():
    assert {*MAKERS} == {EFFICIENTNET, *LIBRARIES} - {"means"}


def test_arrays_have_the_kinds_of_their_columns(extractor):
    for size in SIZES:
        arrays = extract(extractor, size)
        assert {name: np.dtype((array.dtype, array.shape[1:])) for name, array in arrays.items()} == extractor.columns
        regions = arrays.get("mask", np.ones((1, extractor.tokens), bool))
        boxes = arrays["boxes"][regions]
        assert (boxes >= 0).all()
        assert (boxes <= 1).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert regions.any()
        assert not arrays["ims"][~regions].any()


def test_an_image_is_the_same_in_any_batch(extractor):
    alone, twice = extract(extractor, SIZES[0]), extract(extractor, SIZES[0], SIZES[0])
    for name, array in alone.items():
        for row in range(2):
            np.testing.assert_allclose(twice[name][row], array[0], atol=2e-3)
    assert not np.array_equal(extract(extractor, SIZES[0], seed=1)["ims"], alone["ims"])


def test_the_same_weights_have_the_same_fingerprint(kind, extractor):
    assert open_extractor(*kind).fingerprint == extractor.fingerprint
    with torch.no_grad():
        next(extractor.module.parameters()).add_(1)
    assert hash_weights(extractor.module) != extractor.fingerprint


def test_a_folder_is_prepared(kind, extractor, photos, prepared):
    folder = prepared(photos, extractor=kind[0], tokens=kind[1])
    assert examine_folder(folder).flaws == []
    split = open_split(folder, "dev")
    assert split.features.shape == (4, extractor.tokens, extractor.dims)
    assert (split.mask is not None) == ("mask" in extractor.columns)
    about = json.loads((folder / "prepared.json").read_text())["extractor"]
    assert about["weights_sha256"] == extractor.fingerprint


@pytest.mark.parametrize(("library", "tokens"), [("sentence-transformers", "patches"), ("torchvision", "pooled")])
def test_what_an_extractor_has_not_is_one_sentence(library, tokens):
    with pytest.raises(ValueError, match=r"^\S+:any .*--tokens pooled \(.*\)\.$"):
        open_extractor(f"{library}:any", tokens)
