"""Hostile variants of each format: damaged bytes, lying headers, other kinds of values, values out of range.

A mutation writes `file` anew, from the whole one that stands there; Hypothesis draws nothing here, a seed does, so that
a case is repeated by its number.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.pickles import ENDLESS

Mutation = Callable[[Path, random.Random], None]

HOSTILE_TEXT = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\u202eright to left",
    "nul\x00byte",
    "tab\tbed",
    "",
    " ",
    "\ufeff",
    "a\rb",
    "\x9b2J",
    "\u2028",
    "x" * 100_000,
    "'; DROP TABLE",
    "../../etc/passwd",
    "=1+1",
    "\ud7ff",
    "\U0001f600" * 40,
    "\u200b",
)
NUMBERS: tuple[Any, ...] = (
    -1,
    0,
    2**31,
    2**32 + 25,
    2**63 - 1,
    -(2**63),
    10**20,
    1e999,
    -1e999,
    float("nan"),
    1e-320,
    3e38,
    0.5,
    True,
    None,
    "7",
    [],
    {},
)
HEADERS = (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 12), }",
    b"{'descr': '<f4', 'fortran_order': True, 'shape': (40, 12), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (40, 12), }",
    b"{'descr': '>f4', 'fortran_order': False, 'shape': (40, 12), }",
    b"{'descr': '<c16', 'fortran_order': False, 'shape': (40, 12), }",
    b"{'descr': '<U10', 'fortran_order': False, 'shape': (40,), }",
    b"{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (40,), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-40, 12), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (40, 0), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': 40, }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
    b"{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (40, 12), }",
    b"{'descr': '<f4', 'fortran_order': 0.5, 'shape': (40, 12), }",
    b"{'descr': 'junk', 'fortran_order': False, 'shape': (40, 12), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (40, 12), 'more': 1}",
    b"{'descr': '<f4' 'fortran_order'",
    b"(((((((((((((((((((((((((",
    b"\x00\xff\xfe",
    b"__import__('os').system('touch canary')",
)


def any_bytes(file: Path, rng: random.Random) -> None:
    """Flips, cuts, insertions, repetitions, another file's bytes."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(content)) if content else 0
        how = rng.randrange(8)
        if how <= 2 and content:
            content[place] ^= 1 << rng.randrange(8)
        elif how == 3:
            del content[place:]
        elif how == 4:
            content[place:place] = rng.randbytes(rng.choice((1, 7, 4096)))
        elif how == 5:
            content[place : place + 64] = b"\xff" * 64
        elif how == 6:
            del content[place : place + rng.choice((1, 8, 100))]
        else:
            content[:] = rng.choice(
                (b"", b"\x00", b"PAR1PAR1", b"\x93NUMPY", b"PK\x05\x06" + bytes(18), b"{}", b"null", b"\n")
            )
    file.write_bytes(content)


def npy_header(file: Path, rng: random.Random) -> None:
    """A header that lies, over the same numbers; at times with a wrong length or version."""
    body = file.read_bytes()[128:]
    header = rng.choice(HEADERS)
    if b"%d" in header:
        header = header % rng.choice((0, 1, 39, 41, 10**6, 10**18))
    header += b" " * (117 - len(header)) + b"\n"
    length = struct.pack("<H", rng.choice((len(header), len(header), len(header), 65535, 0, 3)))
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x09\x09"))
    file.write_bytes(b"\x93NUMPY" + version + length + header + body)


def npy_values(file: Path, rng: random.Random) -> None:
    """Other numbers in the same shape, or the same in another shape or type."""
    array = np.load(file)
    how = rng.randrange(8)
    if how <= 2:
        value = rng.choice((np.nan, np.inf, -np.inf, 3e38, 1e19, 1e-45, 0.0, -1.0, 2.0**31, 2.0**32 + 25, 1e300))
        if how:
            array = array.astype(rng.choice((array.dtype, np.float64)))
        elif array.dtype.kind == "i":
            array = array.astype(np.int64)
            value = rng.choice((-1, -2, 2**31, 2**32 + 25, 2**63 - 1, -(2**63)))
        flat = array.reshape(-1)
        with np.errstate(all="ignore"):
            flat[rng.randrange(flat.size) : rng.choice((None, flat.size // 2))] = np.asarray(value).astype(array.dtype)
    elif how == 3:
        array = array[: rng.choice((0, 1, 7, len(array) - 1))]
    elif how == 4:
        array = array.reshape(rng.choice(((-1,), (1, *array.shape), (-1, 1))))
    elif how == 5:
        with np.errstate(all="ignore"):
            array = array.astype(
                rng.choice(
                    (np.float16, np.int8, np.uint8, np.bool_, np.complex64, np.int64, np.float64, "U8", "S4", ">f4")
                )
            )
    elif how == 6:
        array = np.broadcast_to(array.reshape(-1)[:1], (3, 3)).copy()
    else:
        array = np.concatenate([array, array])
    if array.dtype.kind == "c":
        array = array.astype(np.complex128)
    np.save(file, array)


def npy_pickled(file: Path, rng: random.Random) -> None:
    """Python objects where numbers belong; unpickling them would leave a mark."""
    array = np.empty(2, object)
    array[:] = [Mark(), Mark()]
    if rng.random() < 0.5:
        np.save(file, array, allow_pickle=True)
    else:
        file.write_bytes(pickle.dumps(Mark()))


class Mark:
    """Unpickled, it makes the file `canary`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("canary", "w")


def npy_as_zip(file: Path, rng: random.Random) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("arr_0.npy", file.read_bytes()[: rng.choice((10, 200, None))])
    content = buffer.getvalue()
    file.write_bytes(content[: rng.choice((None, len(content) // 2))])


def safetensors_header(file: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    name = rng.choice([key for key in header if key != "__metadata__"])
    tensor, how = header[name], rng.randrange(11)
    if how == 0:
        tensor["data_offsets"] = rng.choice(([0, 10**12], [-8, 8], [8, 0], [0], "all", [0.5, 2], [2**63, 2**64]))
    elif how == 1:
        tensor["shape"] = rng.choice(([-1, 12], [2**40, 2**40], [40], [], "x", [40, 12, 1], [0, 12], [40.0, 12]))
    elif how == 2:
        tensor["dtype"] = rng.choice(("F64", "I64", "BOOL", "F8_E4M3", "junk", "", None, 4, "BF16", "F16", "C64"))
    elif how == 3:
        header[rng.choice(HOSTILE_TEXT)] = tensor
    elif how == 4:
        header["__metadata__"] = rng.choice(
            ({"aoq": "null"}, {"aoq": "[]"}, {"aoq": 7}, "x", None, {"aoq": '{"name": "x"}'})
        )
    elif how == 5:
        del header[name]
    elif how == 6:
        header = rng.choice(([], None, 7, "x", {}, {"i": []}))
    made = json.dumps(header).encode()
    if how == 7:
        made = b"[" * 5000 + made
    size = rng.choice((10**15, 2**63, 0, len(made) + 1)) if how == 8 else len(made)
    if how == 9:
        body = body[: len(body) // 2]
    if how == 10:
        values = np.frombuffer(body, np.float32).copy()
        values[rng.randrange(len(values))] = rng.choice((np.nan, np.inf, 3e38))
        body = values.tobytes()
    file.write_bytes(struct.pack("<Q", size) + made + body)


def weights_description(file: Path, rng: random.Random) -> None:
    """Change the description of the model in a file of weights: values of other types and sizes, more or fewer."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    described = file.with_suffix(".json")
    described.write_text(header["__metadata__"]["aoq"])
    json_values(described, rng)
    header["__metadata__"]["aoq"] = described.read_bytes().decode(errors="replace")
    described.unlink()
    made = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(made)) + made + body)


def parquet_columns(file: Path, rng: random.Random) -> None:
    """Other columns, kinds of columns and values, in a whole Parquet file."""
    table = pq.read_table(file)
    name, how = rng.choice(table.column_names), rng.randrange(11)
    place, rows = table.column_names.index(name), table.num_rows

    def put(values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
        return table.set_column(place, name, pa.array(values, kind))

    if how == 0:
        table = table.drop_columns([name])
    elif how == 1:
        table = table.rename_columns(
            [rng.choice(HOSTILE_TEXT[:5]) if one == name else one for one in table.column_names]
        )
    elif how == 2:
        table = put([rng.choice(HOSTILE_TEXT) for _ in range(rows)])
    elif how == 3:
        table = put([None] * rows, table.schema.field(name).type if rng.random() < 0.5 else pa.null())
    elif how == 4:
        table = put(
            [rng.choice((-1, -2, 2**31, 2**32 + 25, 2**63 - 1, -(2**63), 0, 1)) for _ in range(rows)], pa.int64()
        )
    elif how == 5:
        table = put([rng.choice((np.nan, np.inf, -1.5, 1e300, 0.0)) for _ in range(rows)], pa.float64())
    elif how == 6:
        table = put([[[1], []]] * rows)
    elif how == 7:
        table = table.slice(0, rng.choice((0, 1, rows // 2)))
    elif how == 8:
        table = pa.concat_tables([table, table])
    elif how == 9:
        table = put([rng.random() < 0.5 for _ in range(rows)])
    else:
        table = table.append_column(name, table.column(name))
    metadata = dict(table.schema.metadata or {})
    if rng.random() < 0.3:
        metadata[b"aoq"] = rng.choice((b"null", b"[]", b"7", b"\xff\xfe", b"{", b"{}", b"[" * 50_000))
    pq.write_table(table.replace_schema_metadata(metadata), file)


def json_values(file: Path, rng: random.Random) -> None:
    """One value, at any depth, of another kind or far out of range; or a text that is no JSON."""
    try:
        content = json.loads(file.read_text())
    except ValueError:  # a file of lines
        return any_bytes(file, rng)
    how = rng.randrange(10)
    if how == 0:
        text = rng.choice(
            ("null", "[]", "7", '"x"', "true", "[" * 100_000, '{"a":' * 100_000, "1e999", "9" * 5000, "", "{}", "NaN")
        )
        return _keep(file.write_text(text))
    if how == 1:
        return _keep(file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes()))
    if how == 2:
        return _keep(file.write_bytes(b'{"\xff\xfe": 1}'))
    holders = list(_holders(content))
    if holders:
        holder, key = rng.choice(holders)
        if how == 3:
            del holder[key]
        elif how == 4 and isinstance(holder, dict):
            holder[rng.choice(HOSTILE_TEXT)] = holder.pop(key)
        elif how == 5:
            holder[key] = rng.choice(HOSTILE_TEXT)
        else:
            holder[key] = rng.choice(NUMBERS)
    file.write_text(json.dumps(content).replace("Infinity", "1e999"))
    return None


def json_line(file: Path, rng: random.Random) -> None:
    """One line of a file of JSON lines, as `json_values` changes a file."""
    found = file.read_bytes().splitlines()
    row, one = rng.randrange(len(found)), file.with_suffix(".line")
    one.write_bytes(found[row])
    json_values(one, rng)
    found[row] = one.read_bytes()
    one.unlink()
    file.write_bytes(b"\n".join([*found, b""]))


def _keep(_: int) -> None:
    return None


def _holders(content: Any) -> Any:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items):
        yield content, key
        yield from _holders(value)


def lines(file: Path, rng: random.Random) -> None:
    """Lines and fields of a text: lost, doubled, exchanged, hostile."""
    found = file.read_bytes().split(b"\n")
    for _ in range(rng.choice((1, 1, 3))):
        row, how = rng.randrange(len(found)), rng.randrange(9)
        fields = found[row].split(b" ")
        if how == 0:
            del found[row : row + 1]
            found = found or [b""]
        elif how == 1:
            found.insert(row, rng.choice(found))
        elif how == 2:
            fields[rng.randrange(len(fields))] = str(rng.choice(NUMBERS)).encode()
            found[row] = b" ".join(fields)
        elif how == 3:
            fields[rng.randrange(len(fields))] = rng.choice(HOSTILE_TEXT).encode("utf-8", "replace")
            found[row] = b" ".join(fields)
        elif how == 4:
            found[row] = rng.choice((b"", b" ", b"\xff\xfe\x00", b"\xc3", b"x" * 2_000_000, b"\r", b"\x00"))
        elif how == 5:
            del fields[rng.randrange(len(fields))]
            found[row] = b" ".join(fields)
        elif how == 6:
            found[row] = found[row] + b"\r"
        elif how == 7:
            found[0] = b"\xef\xbb\xbf" + found[0]
        else:
            found[row] = rng.choice(HOSTILE_TEXT).encode("utf-8", "replace")
    file.write_bytes(b"\n".join(found))


def csv_cells(file: Path, rng: random.Random) -> None:
    rows = [line.split(",") for line in file.read_text().splitlines()]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = str(rng.choice((*NUMBERS, *HOSTILE_TEXT[:6], '"', '"",""', "7,7")))
    file.write_text("\n".join(",".join(row) for row in rows), encoding="utf-8", errors="replace")


def toml_lines(file: Path, rng: random.Random) -> None:
    """Values of another kind or out of range, sections renamed, text that is no TOML."""
    found = file.read_text().splitlines()
    values = (
        "-1",
        "0",
        "1e999",
        "nan",
        "99999999999999999999",
        '"x"',
        "[]",
        "{}",
        "true",
        '"\\u001b[31m"',
        "[" * 3000,
        "1979-05-27",
        '"""',
        "0x7fffffffffffffff",
        '"\\u202e"',
        "[[1], [2]]",
        "-0.0",
        "1e-400",
        '""',
        "inf",
        '"../../x"',
        '"/dev/zero"',
    )
    rows = [row for row, line in enumerate(found) if "=" in line]
    row, how = rng.choice(rows), rng.randrange(7)
    if how <= 3:
        found[row] = f"{found[row].split('=')[0]}= {rng.choice(values)}"
    elif how == 4:
        found[row] = rng.choice(
            ("junk", "a.b.c = 1", "[x]", "[[dataset]]", "\x00", "= 3", "[dataset]", '"\\ud800" = 1', "\ufeff")
        )
    elif how == 5:
        found.append(found[row])
    else:
        found[row] = f"{rng.choice(HOSTILE_TEXT[:6])!r} = 1"
    file.write_text("\n".join(found), encoding="utf-8", errors="replace")


def pickles(file: Path, rng: random.Random) -> None:
    """Pickles that would run code, take memory or never end."""
    file.write_bytes(
        rng.choice(
            (
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
                b"",
                b".",
                b"\x80\x09.",
            )
        )
    )


def zip_members(file: Path, rng: random.Random) -> None:
    """A checkpoint's or an .npz's members: renamed, cut, exchanged, their lengths lies."""
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name, how = rng.choice(sorted(members)), rng.randrange(5)
    if how == 0:
        del members[name]
    elif how == 1:
        changed = bytearray(members[name])
        for _ in range(rng.choice((1, 4))):
            if changed:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
        members[name] = bytes(changed)
    elif how == 2:
        members[name] = members[name][: len(members[name]) // 2]
    elif how == 3:
        members[f"../{name}"] = members.pop(name)
    else:
        members[name] = members[rng.choice(sorted(members))]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for one, content in members.items():
            archive.writestr(one, content)
