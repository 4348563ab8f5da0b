"""Experiments of several trained models, judged by the mean of their similarities."""

import numpy as np
import pytest

from aoq.pipeline.data.folder import open_split
from aoq.pipeline.evaluation.retrieval import evaluate_similarity
from tests.stages.conftest import TINY


def ensemble_of(*members, weights=None):
    text = f"[ensemble]\nmembers = {[*map(str, members)]}\n"
    return f"{text}weights = {weights}" if weights else text


def test_an_ensemble_averages_the_members_similarities(make, tmp_path):
    """Members may have vocabularies of their own."""
    stages = ["mining", "second_round", "evaluation"]
    one = make("one", *stages)
    two = make("two", *stages, more="dataset.min_count = 1")
    members = tmp_path / "one.toml", f"{tmp_path / 'one.toml'}@dataset.min_count=1"
    both = make("both", "evaluation", text=ensemble_of(*members, weights=[1.0, 3.0]))
    assert [member.chain["evaluation"].key for member in both.members] == [one["evaluation"].key, two["evaluation"].key]
    scores = [np.load(chain["evaluation"].path / "similarity.npy") for chain in (one, two, both)]
    np.testing.assert_allclose(scores[2], (scores[0] + 3 * scores[1]) / 4, atol=1e-6)
    manifest, image_of = both["evaluation"].manifest(), open_split(both.folder, "dev").image_of
    assert manifest["metrics"] == evaluate_similarity(scores[2], image_of)
    assert manifest["member_metrics"] == [chain["evaluation"].manifest()["metrics"] for chain in (one, two)]
    assert make("equal", text=ensemble_of(*members))["evaluation"].key != both["evaluation"].key


def test_an_ensemble_that_cannot_be_is_refused(make, taught_by, tmp_path):
    make("own")
    make("elsewhere", folder="two")
    own, elsewhere = (tmp_path / f"{name}.toml" for name in ("own", "elsewhere"))
    both = make("both", text=ensemble_of(own, f"{own}@seed=1"))
    with pytest.raises(ValueError, match=r"ensemble 'both' has stages .*'evaluation'\], not 'second_round'"):
        both["second_round"]
    for members, message in (
        ((own, elsewhere), "'own' and 'elsewhere' have different data"),
        ((TINY, f"{TINY}@dataset.demo.seed=1"), r"have different data .*'world'"),
    ):
        with pytest.raises(ValueError, match=message):
            make("wrong", text=ensemble_of(*members))
    with pytest.raises(ValueError, match=r"both.toml' is an ensemble, which mines no table"):
        make("student", teacher=taught_by("both"))
