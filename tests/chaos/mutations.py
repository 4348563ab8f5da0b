"""Hostile variants of each format: damaged bytes, lying headers, other kinds of values, values out of range.

A mutation writes `file` anew, from the whole one that stands there; Hypothesis draws nothing here, a seed does, so that
a case is repeated by its number.
"""

import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.pickles import ENDLESS

Mutation = Callable[[Path, random.Random], None]

CONTROLS = ("\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\u202eright to left", "nul\x00byte", "tab\tbed", "")
ODD_TEXT = (" ", "\ufeff", "a\rb", "\x9b2J", "\u2028", "\ud7ff", "\U0001f600" * 40, "\u200b")
HOSTILE_TEXT = (*CONTROLS, *ODD_TEXT, "x" * 100_000, "'; DROP TABLE", "../../etc/passwd", "=1+1")
INTEGERS = (-1, -2, 0, 1, 2**31, 2**32 + 25, 2**63 - 1, -(2**63))
FLOATS = (1e999, -1e999, float("nan"), 1e-320, 3e38, 0.5, -1.5, 1e300, 0.0)
NUMBERS: tuple[Any, ...] = (*INTEGERS, 10**20, *FLOATS, True, None, "7", [], {})
HEADER = {"descr": "'<f4'", "fortran_order": "False", "shape": "(40, 12)"}
LIES = {
    "descr": ("'|O'", "'>f4'", "'<c16'", "'<U10'", "[('a', '<f4'), ('b', '<i4')]", "'<M8[ns]'", "'junk'"),
    "fortran_order": ("True", "0.5"),
    "shape": ("(-40, 12)", "(40, 0)", "()", "40", "(40,)", "(4294967296, 4294967296)"),
    "more": ("1",),
}
NO_HEADERS = ("{'descr': '<f4' 'fortran_order'", "(" * 25, "\x00\xff\xfe", "__import__('os').system('touch canary')")
LONG_JSON = ("9" * 5000, "[" * 100_000, '{"a":' * 100_000)
TOML_VALUES = (
    *("-1", "0", "-0.0", "1e999", "1e-400", "nan", "inf", "99999999999999999999", "0x7fffffffffffffff", "true", "[]"),
    *("{}", "[[1], [2]]", "[" * 3000, "1979-05-27", '""', '"x"', '"""', '"\\u001b[31m"', '"\\u202e"', '"../../x"'),
    '"/dev/zero"',
)
TOML_LINES = ("junk", "a.b.c = 1", "[x]", "[[dataset]]", "\x00", "= 3", "[dataset]", '"\\ud800" = 1', "\ufeff")


class Mark:
    """Unpickled, it makes the file `canary`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("canary", "w")


PICKLES = (
    pickle.dumps(Mark()),
    ENDLESS,
    b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo index of two billion
    b"\x80\x04]\x8a\x04\xff\xff\xff\x7f.",
    b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x00.",  # a bytes object of 2^56
    b"\x80\x04X\xff\xff\xff\x7f.",
    b"cos\nsystem\n(S'touch canary'\ntR.",
    b"\x80\x02cbuiltins\neval\n(X\x15\x00\x00\x00open('canary', 'w')  tR.",
    b"(" * 100_000 + b".",
    b"]" * 100_000 + b".",
    b"\x80\x02}q\x00(U\x01aK\x01U\x01aK\x02u.",
    pickle.dumps({"word2idx": {HOSTILE_TEXT[0]: -1}, "idx2word": {}, "idx": 10**20}),
    pickle.dumps([1, 2, 3]),
    pickle.dumps({"idx": 2}, protocol=0),
    *(b"", b".", b"\x80\x09."),
)
"""Pickles that would run code, take memory or never end."""


def flip(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def blank(content: bytearray, rng: random.Random) -> None:
    start, length, byte = rng.randrange(len(content)), rng.choice((64, 512)), rng.choice((b"\0", b"\xff"))
    content[start : start + length] = byte * len(content[start : start + length])


def grow(content: bytearray, rng: random.Random) -> None:
    content += rng.randbytes(rng.randint(1, 64))


def insert(content: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(content))
    content[place:place] = rng.randbytes(rng.choice((1, 7, 4096)))


def lose(content: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(content))
    del content[place : place + rng.choice((1, 8, 100))]


def swap(content: bytearray, rng: random.Random) -> None:
    """Exchange two halves of a stretch: no byte is lost."""
    length = min(256, len(content) // 2)
    start = rng.randrange(len(content) - 2 * length + 1)
    one, other = content[start : start + length], content[start + length : start + 2 * length]
    content[start : start + 2 * length] = other + one


def replace_all(content: bytearray, rng: random.Random) -> None:
    others = (b"", b"\x00", b"PAR1PAR1", b"\x93NUMPY", b"PK\x05\x06" + bytes(18), b"{}", b"null", b"\n")
    content[:] = rng.choice(others)


DAMAGES = (flip, flip, flip, cut, blank, grow, swap)
"""What disks do to files."""


def any_bytes(file: Path, rng: random.Random) -> None:
    file.write_bytes(_other_bytes(file.read_bytes(), rng))


def _other_bytes(given: bytes, rng: random.Random) -> bytes:
    content = bytearray(given)
    for _ in range(rng.choice((1, 1, 2, 8))):
        how = rng.choice((*DAMAGES, insert, lose, replace_all)) if content else replace_all
        how(content, rng)
    return bytes(content)


def npy_header(file: Path, rng: random.Random) -> None:
    """A header that lies, over the same numbers; at times with a wrong length or version."""
    key = rng.choice([*LIES])
    shape = f"({rng.choice((0, 1, 39, 41, 10**6, 10**18))}, 12)"
    lying = {**HEADER, key: rng.choice((*LIES[key], shape) if key == "shape" else LIES[key])}
    text = "{" + "".join(f"'{name}': {value}, " for name, value in lying.items()) + "}"
    header = (rng.choice(NO_HEADERS) if rng.random() < 0.2 else text).encode("latin-1")
    header += b" " * (117 - len(header)) + b"\n"
    length = struct.pack("<H", rng.choice((len(header), len(header), len(header), 65535, 0, 3)))
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x09\x09"))
    file.write_bytes(b"\x93NUMPY" + version + length + header + file.read_bytes()[128:])


def npy_values(file: Path, rng: random.Random) -> None:
    """Other numbers in the same shape, or the same in another shape or type."""
    array, odd = np.load(file), (np.nan, np.inf, -np.inf, 3e38, 1e19, 1e-45, 0.0, -1.0, 2.0**31, 2.0**32 + 25, 1e300)

    def put() -> np.ndarray:
        whole = array.dtype.kind == "i"
        changed = array.astype(np.int64 if whole else rng.choice((array.dtype, np.float64))).reshape(-1)
        some = slice(rng.randrange(changed.size), rng.choice((None, changed.size // 2)))
        changed[some] = rng.choice(INTEGERS if whole else odd)
        return changed.reshape(array.shape)

    ways = (
        *(put, put, put),
        lambda: array[: rng.choice((0, 1, 7, len(array) - 1))],
        lambda: array.reshape(rng.choice(((-1,), (1, *array.shape), (-1, 1)))),
        lambda: array.astype(rng.choice(("f2", "i1", "u1", "?", "c16", "i8", "f8", "U8", "S4", ">f4"))),
        lambda: np.broadcast_to(array.reshape(-1)[:1], (3, 3)),
        lambda: np.concatenate([array, array]),
    )
    with np.errstate(all="ignore"):
        np.save(file, rng.choice(ways)())


def npy_pickled(file: Path, rng: random.Random) -> None:
    """Python objects where numbers belong; unpickling them would leave a mark."""
    array = np.empty(2, object)
    array[:] = [Mark(), Mark()]
    if rng.random() < 0.5:
        np.save(file, array, allow_pickle=True)
    else:
        file.write_bytes(pickle.dumps(Mark()))


def _safetensors(file: Path) -> tuple[Any, bytes]:
    """The header and the numbers."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def npy_as_zip(file: Path, rng: random.Random) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("arr_0.npy", file.read_bytes()[: rng.choice((10, 200, None))])
    content = buffer.getvalue()
    file.write_bytes(content[: rng.choice((None, len(content) // 2))])


TENSOR_LIES: dict[str, tuple[Any, ...]] = {
    "data_offsets": ([0, 10**12], [-8, 8], [8, 0], [0], "all", [0.5, 2], [2**63, 2**64]),
    "shape": ([-1, 12], [2**40, 2**40], [40], [], "x", [40, 12, 1], [0, 12], [40.0, 12]),
    "dtype": ("F64", "I64", "BOOL", "F8_E4M3", "junk", "", None, 4, "BF16", "F16", "C64"),
}


def safetensors_header(file: Path, rng: random.Random) -> None:
    header, body = _safetensors(file)
    name = rng.choice([key for key in header if key != "__metadata__"])
    how = rng.choice((*TENSOR_LIES, "named", "described", "lost", "other", "deep", "sized", "cut", "odd"))
    if how in TENSOR_LIES:
        header[name][how] = rng.choice(TENSOR_LIES[how])
    elif how == "named":
        header[rng.choice(HOSTILE_TEXT)] = header[name]
    elif how == "described":
        header["__metadata__"] = rng.choice((*({"aoq": one} for one in ("null", "[]", 7, '{"name": "x"}')), "x", None))
    elif how == "lost":
        del header[name]
    elif how == "other":
        header = rng.choice(([], None, 7, "x", {}, {"i": []}))
    elif how == "odd":
        values = np.frombuffer(body, np.float32).copy()
        values[rng.randrange(len(values))] = rng.choice((np.nan, np.inf, 3e38))
        body = values.tobytes()
    made = b"[" * 5000 * (how == "deep") + json.dumps(header).encode()
    size = rng.choice((10**15, 2**63, 0, len(made) + 1)) if how == "sized" else len(made)
    file.write_bytes(struct.pack("<Q", size) + made + body[: len(body) // 2 if how == "cut" else None])


def weights_description(file: Path, rng: random.Random) -> None:
    """Change the description of the model in a file of weights: values of other types and sizes, more or fewer."""
    header, body = _safetensors(file)
    described = header["__metadata__"]["aoq"].encode()
    header["__metadata__"]["aoq"] = _other_json(described, rng).decode(errors="replace")
    made = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(made)) + made + body)


def parquet_columns(file: Path, rng: random.Random) -> None:
    """Other columns, kinds of columns and values, in a whole Parquet file."""
    table = pq.read_table(file)
    name, rows = rng.choice(table.column_names), table.num_rows
    place, kind = table.column_names.index(name), table.schema.field(name).type

    def put(values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
        return table.set_column(place, name, pa.array(values, kind))

    ways = (
        lambda: table.drop_columns([name]),
        lambda: table.rename_columns([rng.choice(CONTROLS) if one == name else one for one in table.column_names]),
        lambda: put(rng.choices(HOSTILE_TEXT, k=rows)),
        lambda: put([None] * rows, rng.choice((kind, pa.null()))),
        lambda: put(rng.choices(INTEGERS, k=rows), pa.int64()),
        lambda: put(rng.choices(FLOATS, k=rows), pa.float64()),
        lambda: put([[[1], []]] * rows),
        lambda: put(rng.choices((True, False), k=rows)),
        lambda: table.slice(0, rng.choice((0, 1, rows // 2))),
        lambda: pa.concat_tables([table, table]),
        lambda: table.append_column(name, table.column(name)),
    )
    metadata = dict(table.schema.metadata or {})
    if rng.random() < 0.3:
        metadata[b"aoq"] = rng.choice((b"null", b"[]", b"7", b"\xff\xfe", b"{", b"{}", b"[" * 50_000))
    pq.write_table(rng.choice(ways)().replace_schema_metadata(metadata), file)


def json_values(file: Path, rng: random.Random) -> None:
    """One value, at any depth, of another kind or far out of range; or a text that is no JSON."""
    file.write_bytes(_other_json(file.read_bytes(), rng))


def _other_json(given: bytes, rng: random.Random) -> bytes:
    try:
        content = json.loads(given)
    except ValueError:  # a file of lines
        return _other_bytes(given, rng)
    how, holders, text = rng.randrange(10), list(_holders(content)), json.dumps(content).encode()
    if how == 0:
        text = rng.choice(("null", "[]", "7", '"x"', "true", "1e999", "", "{}", "NaN", *LONG_JSON)).encode()
    elif how == 1:
        text = rng.choice((b"\xef\xbb\xbf" + text, b'{"\xff\xfe": 1}'))
    elif holders:
        holder, key = rng.choice(holders)
        if how == 3:
            del holder[key]
        elif how == 4 and isinstance(holder, dict):
            holder[rng.choice(HOSTILE_TEXT)] = holder.pop(key)
        else:
            holder[key] = rng.choice(HOSTILE_TEXT if how == 5 else NUMBERS)
        text = json.dumps(content).replace("Infinity", "1e999").encode()
    return text


def json_line(file: Path, rng: random.Random) -> None:
    """One line of a file of JSON lines, as `json_values` changes a file."""
    found = file.read_bytes().splitlines()
    row = rng.randrange(len(found))
    found[row] = _other_json(found[row], rng)
    file.write_bytes(b"\n".join([*found, b""]))


def _holders(content: Any) -> Iterator[tuple[Any, Any]]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items):
        yield content, key
        yield from _holders(value)


def lines(file: Path, rng: random.Random) -> None:
    """Lines and fields of a text: lost, doubled, hostile."""
    found = file.read_bytes().split(b"\n")
    for _ in range(rng.choice((1, 1, 3))):
        row, text = rng.randrange(len(found)), rng.choice(HOSTILE_TEXT).encode()
        fields = found[row].split(b" ")
        place = rng.randrange(len(fields))
        found[row : row + 1] = rng.choice(
            (
                [],
                [found[row], rng.choice(found)],
                [b" ".join([*fields[:place], str(rng.choice(NUMBERS)).encode(), *fields[place + 1 :]])],
                [b" ".join([*fields[:place], text, *fields[place + 1 :]])],
                [b" ".join([*fields[:place], *fields[place + 1 :]])],
                [rng.choice((b"", b" ", b"\xff\xfe\x00", b"\xc3", b"x" * 2_000_000, b"\r", b"\x00", text))],
                [found[row] + b"\r"],
                [b"\xef\xbb\xbf" + found[row]],
            )
        )
        found = found or [b""]
    file.write_bytes(b"\n".join(found))


def csv_cells(file: Path, rng: random.Random) -> None:
    rows = [line.split(",") for line in file.read_text().splitlines()]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = str(rng.choice((*NUMBERS, *CONTROLS, '"', '"",""', "7,7")))
    file.write_text("\n".join(",".join(row) for row in rows), encoding="utf-8", errors="replace")


def toml_lines(file: Path, rng: random.Random) -> None:
    """Values of another kind or out of range, lines that are no TOML, and lines that stand there twice."""
    found = file.read_text().splitlines()
    row = rng.choice([row for row, line in enumerate(found) if "=" in line])
    value = f"{found[row].split('=')[0]}= {rng.choice(TOML_VALUES)}"
    others = (rng.choice(TOML_LINES), f"{found[row]}\n{found[row]}", f"{rng.choice(CONTROLS)!r} = 1")
    found[row] = rng.choice((value, value, value, value, *others))
    file.write_text("\n".join(found), encoding="utf-8", errors="replace")


def pickles(file: Path, rng: random.Random) -> None:
    file.write_bytes(rng.choice(PICKLES))


def zip_members(file: Path, rng: random.Random) -> None:
    """A checkpoint's or an .npz's members: lost, renamed, cut, exchanged, changed."""
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice(sorted(members))
    content, how = members.pop(name), rng.choice(("lost", "renamed", "cut", "exchanged", "changed"))
    changed = bytearray(content)
    for _ in range(rng.choice((1, 4)) if how == "changed" and changed else 0):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    if how == "cut":
        del changed[len(changed) // 2 :]
    if how == "exchanged" and members:
        changed[:] = members[rng.choice(sorted(members))]
    if how != "lost":
        members[f"../{name}" if how == "renamed" else name] = bytes(changed)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for one, content in members.items():
            archive.writestr(one, content)
