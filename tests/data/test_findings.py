"""Texts that become the same token ids are counted, and refused if hardly any stays apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline.data.findings import Flaw, confusion, isolation
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


@given(st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3), min_size=2, max_size=9))
def test_captions_without_a_shared_word_are_counted(worded: list[list[str]]) -> None:
    captions = [" ".join(words) for words in worded]
    occurs = Counter(word for words in worded for word in set(words))
    shared = {word for word, count in occurs.items() if 1 < count < len(captions) / 2}
    own = {word for word, count in occurs.items() if count == 1}
    alone = [line for line, words in enumerate(worded, start=1) if own & set(words) and not shared & set(words)]
    flaw = isolation("x_caps.txt", captions, TokenisedCaptions.build(captions, VOCABULARY))
    if len(alone) <= len(captions) / 2:
        assert flaw is None
    else:
        assert flaw is not None
        assert flaw.severity == "warning"
        first = f"(the first in line {alone[0]}: {captions[alone[0] - 1]!r})"
        assert flaw.message.startswith(f"{len(alone)} of {len(captions)} captions share no word with another {first}.")
