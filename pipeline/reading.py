"""One checked reader per file format; a bad file raises one sentence that names it.

Nothing that is read is executed, and no memory is allocated for a size that a header claims but the file lacks.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import pickletools
import stat
import sys
import zipfile
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Any, BinaryIO, Literal, TypeVar, cast

import numpy as np
from numpy.lib import format as npy

from aoq.pipeline.console import visible

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_Kind = TypeVar("_Kind")
LONGEST_REASON = 200
MOST_FILE_BYTES = 4_000_000_000
"""Largest size of a file that is read whole, in bytes."""
MOST_VALUES = 10_000
_HASHED = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET", "DUP", "MEMOIZE")
"""Pickle opcodes that repeat a value, or build one whose parts hashing visits."""
_OTHER_ENCODINGS = {
    b"\x1f\x8b": "the file is compressed by gzip; unpack it",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "the file is UTF-16 by its byte order mark; save it as UTF-8"),
}


@contextmanager
def reading(path: Path, what: str, remedy: str = "") -> Iterator[None]:
    """Turn any failure inside into one sentence: `path` is missing, may not be read, or is not `what`.

    Raises:
        FileNotFoundError, PermissionError: if it is missing or may not be read.
        OSError: for failures of the machine, such as too little memory, which say nothing about the file.
        ValueError: for everything else, with the remedy.
    """
    advice = f"; {remedy}" if remedy else ""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is a folder" if path.is_dir() else "it is not a regular file")
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename or path} does not exist{advice}.") from None
    except PermissionError as error:
        raise PermissionError(f"{error.filename or path} cannot be read (permission denied).") from None
    except Exception as error:  # parsers raise errors of any kind on hostile files
        if type(error) is UnicodeError:  # `read_utf8` has named the file
            raise
        number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
        if number not in (None, errno.EINVAL):  # pyarrow's have none; zipfile seeks to where a header points
            raise OSError(number, os.strerror(number), str(path)) from None
        reason = (str(error).splitlines() or [type(error).__name__])[0][:LONGEST_REASON].rstrip(".")
        raise ValueError(f"{path} is damaged or not {what} ({visible(reason)}){advice}.") from None


def read_file(path: Path | str, most: int = MOST_FILE_BYTES, *, start: int = 0, size: int | None = None) -> bytes:
    """Read a regular file of up to `most` bytes, or `size` bytes of any from `start` on; refused before it is opened.

    A device may never end, a pipe may never be written, and a sparse file takes more memory than disk.
    """
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("is a folder" if stat.S_ISDIR(about.st_mode) else "is not a regular file")
    size = about.st_size if size is None else size
    if size > most:
        raise ValueError(f"has more than {most / 1e6:,.0f} MB")
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(size)


def read_utf8(path: Path) -> str:
    """Read a text file in UTF-8, with or without a byte order mark."""
    try:
        return read_file(path).removeprefix(BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UnicodeError(f"{path}:{line}: {not_utf8(error)}.") from None


def not_utf8(error: UnicodeDecodeError) -> str:
    """Say which byte of its line (from 1) is not UTF-8, or what the file is instead."""
    content, at = error.object, error.start
    place = at - content.rfind(b"\n", 0, at)
    byte = f"byte {place} (0x{content[at]:02x}) is not UTF-8; save the file as UTF-8"
    return next((kind for mark, kind in _OTHER_ENCODINGS.items() if content.startswith(mark)), byte)


def open_array(path: Path, mode: Literal["r", "c"] = "r") -> np.ndarray:
    """Open the array of a `.npy` file as a memory map, read-only or copy-on-write; nothing is unpickled.

    Raises:
        ValueError: if the file is cut short, holds Python objects or is no `.npy` file.
    """
    with reading(path, "a .npy file of numbers", "copy it again, or write it with numpy.save as a plain array"):
        with path.open("rb") as file:
            shape, is_fortran, dtype = _read_header(file, path.stat().st_size)
            start = file.tell()
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype, mode, start, shape, "F" if is_fortran else "C")


def read_arrays(path: Path, *names: str, remedy: str = "") -> dict[str, np.ndarray]:
    """Read arrays of an `.npz` file, by default all, into memory, which takes as much as a member really unpacks to."""
    arrays: dict[str, np.ndarray] = {}
    what = f"an .npz file{' of ' * bool(names)}{' and '.join(names)}"
    with reading(path, what, remedy), zipfile.ZipFile(path) as archive:
        most = max(MOST_FILE_BYTES, path.stat().st_size)
        for name in names or [Path(member).stem for member in archive.namelist()]:
            if (size := archive.getinfo(f"{name}.npy").file_size) > most:
                raise ValueError(f"{name} unpacks to {size:,} bytes, but at most {most:,} are read")
            content = archive.read(f"{name}.npy")
            shape, is_fortran, dtype = _read_header(member := io.BytesIO(content), len(content))
            values = np.frombuffer(content, dtype, offset=member.tell())
            arrays[name] = values.reshape(shape, order="F" if is_fortran else "C")
    return arrays


def _read_header(file: io.BufferedIOBase, size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the shape, order and dtype of an array that must fill a file of `size` bytes."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the format is unknown")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if any(not isinstance(length, int) or length < 0 for length in shape):
        raise ValueError(f"its header says shape {shape}")
    needed, there = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != there:
        raise ValueError(f"shape {shape} of {dtype} takes {needed:,} bytes, but the file has {there:,}")
    return shape, is_fortran, dtype


def host_array(values: Any, name: str) -> np.ndarray:
    """Bring an array, a tensor on any device, or lists into host memory; bfloat16, which numpy lacks, as float32."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} is a masked array, whose mask would be ignored; fill or drop the masked values.")
    torch = sys.modules.get("torch")  # a tensor has loaded it already
    if torch is None or not isinstance(values, torch.Tensor):
        return np.asarray(values)
    try:
        values = values.detach().cpu()
        return np.asarray(values.float() if values.dtype == torch.bfloat16 else values)
    except (RuntimeError, TypeError) as error:
        kind = f"{values.dtype} on {values.device}, {values.layout}".replace("torch.", "")
        raise ValueError(f"{name} is a tensor of {kind}, which has no plain numbers ({error}).") from None


def read_json(path: Path, kind: type[_Kind] | GenericAlias, *, remedy: str = "") -> _Kind:
    """Read a JSON file whose content fits a type or a TypedDict; additional keys are kept."""
    with reading(path, "JSON in the expected form", remedy):
        return parse_json(read_file(path), kind)


def parse_json(text: bytes | str, kind: type[_Kind] | GenericAlias) -> _Kind:
    """Parse a JSON text whose content fits a type or a TypedDict.

    Raises:
        ValueError: for invalid JSON, a repeated key, a number that is not finite, and a value of another
            type, with its place.
    """
    try:
        content = json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_named_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return checked(content, kind)


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; Python's parser would silently keep the last of equal keys."""
    content = dict(pairs)
    if len(content) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the key {twice!r:.100} twice")
    return content


def checked(content: object, kind: type[_Kind] | GenericAlias) -> _Kind:
    """Return the content if it fits the type; otherwise raise an error that names the place."""
    from pydantic import ValidationError  # late: readers of arrays start without it

    try:
        _adapter(cast(Any, kind)).validate_python(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place or 'the whole'}: {first['msg'].lower()}") from None
    return cast(_Kind, content)


def require_shallow(pickled: bytes | BinaryIO) -> None:
    """Refuse a pickle with a tuple of more than MOST_VALUES values, those of nested tuples included.

    `x = (x, x)`, nested 60 deep, takes some hundred bytes, and as a key 2^60 steps to hash. Other damage is left to the
    unpickler.
    """
    is_deep = False
    with suppress(Exception):
        is_deep = any(size > MOST_VALUES for size in _pickled_sizes(pickled))
    if is_deep:
        raise ValueError("its tuples are nested too deeply")


def _pickled_sizes(pickled: bytes | BinaryIO) -> Iterator[int]:
    """Yield the number of values in each object of a pickle, by what its opcodes do to the stack."""
    stack, marks, memo = list[int](), list[int](), dict[Any, int]()
    for opcode, argument, _ in pickletools.genops(pickled):
        name, before = opcode.name, opcode.stack_before
        if name == "MARK":
            marks.append(len(stack))
            continue
        if name == "POP" and marks[-1:] == [len(stack)]:
            marks.pop()
            continue
        is_marked = pickletools.markobject in before
        first = marks.pop() - before.index(pickletools.markobject) if is_marked else len(stack) - len(before)
        members = stack[first:]
        del stack[first:]
        size = memo[argument] if "GET" in name else sum(members) + 1 if name in _HASHED else 1
        yield size
        stack += [size] * len(opcode.stack_after)
        if "PUT" in name or name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = stack[-1]


def read_toml(path: Path) -> dict[str, Any]:
    with reading(path, "a TOML file"):
        return parse_toml(read_utf8(path))


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text; its integers have 64 bits."""
    try:
        content = tomllib.loads(text)
        _check_integers(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def _check_integers(value: object) -> None:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_integers(item)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"the number {str(value)[:20]} has more than 64 bits")


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is not finite in 64 bits")
    return number
