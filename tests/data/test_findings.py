"""Texts that become the same token ids are counted, and refused if hardly any stays apart."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline.data.findings import Flaw, confusion
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import SPECIAL_WORDS, Vocabulary

VOCABULARY = Vocabulary((*SPECIAL_WORDS, *"abcde", "."))


def found(captions: Sequence[str]) -> Flaw | None:
    return confusion("x_caps.txt", captions, TokenisedCaptions.build(captions, VOCABULARY).sequences())


@given(st.lists(st.text("abcxyz", min_size=1, max_size=2), min_size=1, max_size=9))
def test_the_count_is_its_definition(captions: list[str]) -> None:
    ids = [tuple(VOCABULARY.encode([text])) for text in captions]
    places = range(len(captions))
    alike = sum(any(ids[i] == ids[j] and captions[i] != captions[j] for j in places) for i in places)
    flaw = found(captions)
    if len(set(captions)) > 1 and len(set(ids)) == 1:
        assert flaw is not None
        assert flaw.severity == "error"
    elif alike:
        assert flaw is not None
        assert flaw.message.startswith(f"{alike} of {len(captions)} captions have the token ids of another text")
    else:
        assert flaw is None


def test_few_alike_are_no_flaw_and_more_are_a_warning() -> None:
    known = [" ".join(word) for word in ("abc", "bca", "cab", "aab", "bbc", "cca", "dea", "eda", "aed", "ade")]
    assert found(known * 10 + ["x", "y"]) is None
    flaw = found([*known, "a x", "a y"])
    assert flaw is not None
    assert (flaw.severity, flaw.message[:32]) == ("warning", "2 of 12 captions have the token ")
    assert "(the first in line 11: 'a x')" in flaw.message
