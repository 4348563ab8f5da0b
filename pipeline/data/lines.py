"""Text files of a dataset folder: UTF-8, one caption or id a line, none of them empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_lines(path: Path) -> list[str]:
    """Every line as it stands, without its line end; refuses undecodable bytes and empty lines."""
    content = path.read_bytes()
    for number, problem in line_problems(content):
        raise ValueError(f"{path}:{number}: {problem}")
    return [line.decode("utf-8") for line in split_lines(content)]


def line_problems(content: bytes) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and what is wrong with it, for every bad line."""
    if not content.strip():
        yield 1, "the file is empty; write one line a caption (or id)"
        return
    for number, line in enumerate(split_lines(content), start=1):
        try:
            if not line.decode("utf-8").strip():
                yield number, "the line is empty; write its caption (or id), or remove the line"
        except UnicodeDecodeError as error:
            byte = f"byte {error.start + 1} (0x{line[error.start]:02x})"
            yield number, f"{byte} is not UTF-8; save the file as UTF-8"


def split_lines(content: bytes) -> list[bytes]:
    """The lines without their ends. Bytes, because `str.splitlines` also cuts at characters a caption may hold."""
    lines = content.removeprefix(BYTE_ORDER_MARK).removesuffix(b"\n").split(b"\n")
    return [line.removesuffix(b"\r") for line in lines]
