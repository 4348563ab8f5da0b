"""Search of captions by words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

KEPT_RESULTS = 8


class CaptionSearch:
    """Finds captions with all words of a query, in any order and case, each at the start of a word.

    In scripts without spaces, and in emoji, a word may start anywhere.

    >>> CaptionSearch(["Two DOGS run", "a woman runs", "ein dog"]).rows("run dog")
    [0]
    """

    def __init__(self, captions: Sequence[str]) -> None:
        self._texts = [_folded(caption) for caption in captions]
        self.rows = lru_cache(KEPT_RESULTS)(self._rows)

    def _rows(self, query: str) -> Sequence[int]:
        """Rows of the captions; none for an empty query."""
        words = set(_folded(query).split())
        found: Sequence[int] = range(len(self._texts)) if words else ()
        for word in words:
            starts = re.compile(_start(word) + re.escape(word)).search
            found = [row for row in found if word in self._texts[row] and starts(self._texts[row])]
        return found


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _start(word: str) -> str:
    """Pattern for what must precede a word: no letter, in scripts with spaces between words."""
    return "" if unicodedata.east_asian_width(word[0]) in "WF" else r"(?<!\w)"
