"""Words and their ids.

Tokens are those of the field's loaders, `nltk.word_tokenize` on lower-cased text, but without punkt data:
sentences end at white space after `.`, `!` or `?`, and `NLTKWordTokenizer` cuts each of them into words. The results
differ where punkt sees no end, as in "mr. smith".
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typing_extensions import TypedDict

from aoq.pipeline.reading import checked, read_file, read_json, reading, require_shallow

PAD = 0
SPECIAL_WORDS = ("<pad>", "<start>", "<end>", "<unk>")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
PLAIN = re.compile(r"(?!.*(?:cannot|gimme|gonna|gotta|lemme|wanna))(?:[a-z0-9 ]|,(?= ))*\.?")
"""Sentences that NLTK cuts at spaces, commas and the last full stop only, forty times slower than `split`."""

TYPOGRAPHIC = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u2010\u2012\u2013\u2014", "'''" + '"""' + "----")
_VOCABULARY_REMEDY = "take another vocabulary file, or build one from the captions"


class Official(TypedDict):
    """The content of the field's vocabulary files."""

    word2idx: dict[str, int]
    idx2word: dict[str, str]
    idx: int


def tokenise(caption: str) -> list[str]:
    """Split a caption into lower-cased words and punctuation marks.

    >>> tokenise("A dog's ball. Two men run!")
    ['a', 'dog', "'s", 'ball', '.', 'two', 'men', 'run', '!']
    """
    tokens: list[str] = []
    for sentence in SENTENCE_END.split(caption.lower()):
        if PLAIN.fullmatch(sentence):
            tokens += sentence.replace(",", " , ").replace(".", " . ").split()
        else:
            tokens += _word_tokeniser().tokenize(sentence)
    return tokens


def comparable_words(caption: str) -> tuple[str, ...]:
    """Return the tokens of a caption by which it is the same text as another.

    Case, full stops, forms of a letter (NFKC) and typographic quotation marks and dashes make no other text.

    >>> comparable_words("A dog\u2019s ball.") == comparable_words("\uff41 dog's ball")
    True
    """
    plain = caption if caption.isascii() else unicodedata.normalize("NFKC", caption).translate(TYPOGRAPHIC)
    return tuple(token for token in tokenise(plain) if token != ".")


def is_punctuation(token: str) -> bool:
    """Return whether a token is made of punctuation marks alone, NLTK's quotation marks included.

    >>> [is_punctuation(token) for token in (".", "``", "'s", "!?")]
    [True, True, False, True]
    """
    return all(unicodedata.category(mark).startswith("P") for mark in token.replace("`", "'"))


@cache
def _word_tokeniser() -> Any:
    # Imported on first use: it takes half a second, which planning should not pay.
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()


@dataclass(frozen=True)
class Vocabulary:
    """Words in the order of their ids: `<pad>`, then `<start>`, `<end>`, `<unk>` (in NAAF's files in another order)."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[:1] != SPECIAL_WORDS[:1] or set(self.words[:4]) != set(SPECIAL_WORDS):
            raise ValueError(f"a vocabulary starts with {SPECIAL_WORDS}; this one starts with {self.words[:4]}.")

    @classmethod
    def build(cls, captions: Iterable[str], *, min_count: int = 4) -> Vocabulary:
        """Collect the captions' words with at least `min_count` occurrences, most frequent first, then by spelling.

        >>> Vocabulary.build(["a dog", "a cat", "a dog"], min_count=2).words[4:]
        ('a', 'dog')
        """
        counts = Counter(token for caption in captions for token in tokenise(caption))
        frequent = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        if not frequent:
            word, most = counts.most_common(1)[0] if counts else ("", 0)
            raise ValueError(
                f"none of {len(counts):,} words occurs {min_count} times (the most frequent, {word!r}, {most}). Cut "
                "captions that are written without spaces into words, or lower `dataset.min_count`."
            )
        return cls(SPECIAL_WORDS + tuple(word for _, word in frequent))

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Return ids between `<start>` and `<end>`; an unknown word becomes `<unk>`.

        >>> Vocabulary((*SPECIAL_WORDS, "dog")).encode(["a", "dog"])
        [1, 3, 4, 2]
        """
        index, unknown = self.index, self.index["<unk>"]
        return [index["<start>"], *(index.get(token, unknown) for token in tokens), index["<end>"]]

    def save(self, path: Path) -> None:
        """Write the json that SCAN, BFAN and SGRAF read."""
        names = {str(i): word for i, word in enumerate(self.words)}
        content = {"word2idx": self.index, "idx2word": names, "idx": len(self)}
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read the json of `save`, or SCAN's, or VSRN's pickled one (`.pkl`).

        Refuses one that contradicts itself or lacks a special word.
        """
        is_pickled = path.suffix == ".pkl"
        content = _unpickled(path) if is_pickled else read_json(path, Official, remedy=_VOCABULARY_REMEDY)
        with reading(path, "a vocabulary", _VOCABULARY_REMEDY):
            return cls(_words(content))


def _words(content: Official) -> tuple[str, ...]:
    """Read the words in id order from SCAN's `word2idx`, `idx2word` and `idx`, which must agree."""
    index, names, size = content["word2idx"], content["idx2word"], content["idx"]
    missing = [word for word in SPECIAL_WORDS if word not in index]
    if missing:
        raise ValueError(f"word2idx lacks the special words {', '.join(missing)}.")
    words = tuple(sorted(index, key=index.__getitem__))
    if [index[word] for word in words] != list(range(len(words))) or size != len(words):
        raise ValueError(f"word2idx must hold 0 to idx - 1, each once; it has {len(words)} words, idx={size}.")
    if names != {str(i): word for i, word in enumerate(words)}:
        raise ValueError("idx2word and word2idx differ.")
    return words


class _Reader(pickle.Unpickler):
    """Reads pickled objects without executing their code: stand-ins for classes only hold what the file gives them."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary":
            return SimpleNamespace
        if module in ("copyreg", "copy_reg") and name == "_reconstructor":
            return lambda kind, base, state: SimpleNamespace()
        if module in ("builtins", "__builtin__") and name == "object":
            return object
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no vocabulary needs")


def _unpickled(path: Path) -> Official:
    with reading(path, "a pickled vocabulary", _VOCABULARY_REMEDY):
        pickled = read_file(path)
        for opcode, argument, _ in pickletools.genops(pickled):  # raises on lengths beyond the file's end
            if "PUT" in opcode.name and int(argument or 0) > len(pickled):  # pickle allocates that much
                raise ValueError(f"{opcode.name} {argument} in a file of {len(pickled)} bytes")
        require_shallow(pickled)
        content = vars(_Reader(io.BytesIO(pickled), encoding="utf-8").load())
        names = {str(i): word for i, word in content["idx2word"].items()}
        return checked({**content, "idx2word": names}, Official)
