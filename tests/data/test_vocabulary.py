import copyreg
import json
import pickle
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.tokenize.destructive import NLTKWordTokenizer

from aoq.pipeline.data.vocabulary import SPECIAL_WORDS, Vocabulary, tokenise
from tests.pickles import ENDLESS

PIECES = ["a", "dog", "T-shirt", "cannot", "gonna", "3", "1,000", ",", ", ", ".", "!", "?", " ", "'s", '"', "é", "("]


@given(st.one_of(st.lists(st.sampled_from(PIECES)).map("".join), st.text(alphabet="ab1 ,.'-\t", max_size=30)))
def test_tokens_are_those_of_nltk(caption: str) -> None:
    nltk = NLTKWordTokenizer()
    sentences = re.split(r"(?<=[.!?])\s+", caption.lower())
    assert tokenise(caption) == [token for sentence in sentences for token in nltk.tokenize(sentence)]


def test_order_is_by_count_then_word() -> None:
    captions = ["b a c", "c b", "c d a"]
    assert Vocabulary.build(captions, min_count=2).words == (*SPECIAL_WORDS, "c", "a", "b")
    assert Vocabulary.build(captions[::-1], min_count=2) == Vocabulary.build(captions, min_count=2)


def test_four_times_is_enough_by_default() -> None:
    assert Vocabulary.build(["dog"] * 4 + ["cat"] * 3).words[4:] == ("dog",)
    with pytest.raises(
        ValueError, match=r"none of 2 words occurs 4 times \(the most frequent, 'dog', 3\)\. Cut .* `da"
    ):
        Vocabulary.build(["dog"] * 3 + ["cat"])


def test_saved_vocabulary_is_read_back(tmp_path: Path) -> None:
    vocabulary = Vocabulary((*SPECIAL_WORDS, "a", "café", '"'))
    vocabulary.save(tmp_path / "vocab.json")
    assert Vocabulary.load(tmp_path / "vocab.json") == vocabulary
    content = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert content["idx"] == 7
    assert content["word2idx"]["a"] == 4
    assert content["idx2word"]["4"] == "a"


def _content(**changes: Any) -> dict[str, Any]:
    words = (*SPECIAL_WORDS, "a", "b")
    index = {word: i for i, word in enumerate(words)}
    return {"word2idx": index, "idx2word": {str(i): word for word, i in index.items()}, "idx": 6} | changes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON in the expected form"),
        ("[" * 100_000, "not JSON in the expected form"),
        ('{"idx": ' + "9" * 5000 + "}", "not JSON in the expected form"),
        ([1], "the whole: input should be a valid dictionary"),
        ({"word2idx": {}}, "idx2word: field required"),
        (_content(word2idx={"<pad>": 0, "<start>": 1, "a": 2}), "lacks the special words <end>, <unk>"),
        (_content(idx=7), "6 words, idx=7"),
        (_content(word2idx=_content()["word2idx"] | {"b": 4}), "each once"),
        (_content(word2idx=_content()["word2idx"] | {"b": "5"}), "word2idx.b: input should be a valid integer"),
        (_content(idx2word=_content()["idx2word"] | {"5": "c"}), "idx2word and word2idx differ"),
    ],
)
def test_bad_file_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=r"vocab\.json .*" + re.escape(message)):
        Vocabulary.load(path)


def python_2(words: list[str]) -> bytes:
    """The bytes that Python 2's pickle wrote of the official class, protocol 0."""
    head = "ccopy_reg\n_reconstructor\n(cvocab\nVocabulary\nc__builtin__\nobject\nNtR(d"
    names = "".join(f"I{i}\nV{word}\ns" for i, word in enumerate(words))
    ids = "".join(f"V{word}\nI{i}\ns" for i, word in enumerate(words))
    return f"{head}S'idx2word'\n(d{names}sS'word2idx'\n(d{ids}sS'idx'\nI{len(words)}\nsb.".encode("raw_unicode_escape")


def test_a_pickled_vocabulary_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*SPECIAL_WORDS, "dog", "café"]
    official = ModuleType("vocab")
    official.Vocabulary = type("Vocabulary", (), {"__module__": "vocab"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vocab", official)
    given = official.Vocabulary()
    vars(given).update(
        word2idx={word: i for i, word in enumerate(words)}, idx2word=dict(enumerate(words)), idx=len(words)
    )
    path = tmp_path / "vocab.pkl"
    for content in (python_2(words), *(pickle.dumps(given, protocol) for protocol in (0, 2, 4))):
        path.write_bytes(content)
        assert Vocabulary.load(path).words == tuple(words)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "it asks for (posix|nt|os).system, which no vocabulary needs"),
        (python_2([*SPECIAL_WORDS, "dog"])[:80], "not a pickled vocabulary"),
        (pickle.dumps([1, 2]), "not a pickled vocabulary"),
        (python_2(["<pad>", "dog"]), "lacks the special words <start>, <end>, <unk>"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "LONG_BINPUT 2147483647 in a file of 9 bytes"),
        (b"\x80\x04\x8e" + b"\xff" * 6 + b"\0\0.", "expected 281474976710655 bytes"),
        (b"\x80\x04\x95" + b"\xff" * 6 + b"\0\0].", "data was truncated"),
        (ENDLESS, "its tuples are nested too deeply"),
        (pickle.dumps({"word2idx": {b"dog": 0}, "idx2word": {}, "idx": 1}), "not a pickled vocabulary"),
    ],
)
def test_what_is_no_pickled_vocabulary_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "vocab.pkl").write_bytes(content)
    with pytest.raises(ValueError, match=rf"vocab.pkl .*{message}.*; take another vocabulary file"):
        Vocabulary.load(tmp_path / "vocab.pkl")


def test_a_pickle_changes_nothing_outside_it(tmp_path: Path) -> None:
    """State that is set on a class or a function it names would outlive the file."""
    for name in ("vocab\nVocabulary", "copyreg\n_reconstructor"):
        (tmp_path / "vocab.pkl").write_bytes(f"c{name}\n(NdS'kept'\nI1\nstb.".encode())
        with pytest.raises(ValueError, match="damaged or not a pickled vocabulary"):
            Vocabulary.load(tmp_path / "vocab.pkl")
    assert not hasattr(copyreg._reconstructor, "kept")
    (tmp_path / "vocab.pkl").write_bytes(python_2([*SPECIAL_WORDS, "dog"]))
    assert "dog" in Vocabulary.load(tmp_path / "vocab.pkl").words


def test_naafs_order_of_special_words(tmp_path: Path) -> None:
    index = {"<pad>": 0, "<unk>": 1, "<start>": 2, "<end>": 3, "dog": 4}
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"word2idx": index, "idx2word": {str(i): w for w, i in index.items()}, "idx": 5}))
    assert Vocabulary.load(path).encode(["dog", "cat"]) == [2, 4, 1, 3]
