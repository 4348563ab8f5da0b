"""A file that cannot be read ends in one sentence, which calls it damaged only if it is."""

from __future__ import annotations

import errno
import os

import numpy as np
import pyarrow as pa
import pytest

from aoq.pipeline.reading import parse_json, read_arrays, reading


@pytest.fixture
def file(tmp_path):
    (path := tmp_path / "file").write_bytes(b"whole")
    return path


@pytest.mark.parametrize(
    "error",
    [*(OSError(number, os.strerror(number)) for number in (errno.EMFILE, errno.EIO, errno.ESTALE)), MemoryError()],
    ids=repr,
)
def test_a_file_is_not_damaged_because_the_machine_cannot_read_it_now(file, error):
    number = getattr(error, "errno", errno.ENOMEM)
    with (
        pytest.raises(OSError, match=rf"^\[Errno {number}\] {os.strerror(number)}: '{file}'$"),
        reading(file, "a word"),
    ):
        raise error


@pytest.mark.parametrize(
    "error", [pa.ArrowInvalid("cut"), OSError("cut"), OSError(errno.EINVAL, "cut"), EOFError("cut")]
)
def test_what_parsers_raise_is_damage(file, error):
    said = r"file is damaged or not a word \(.*cut\); write it again\."
    with pytest.raises(ValueError, match=said), reading(file, "a word", "write it again"):
        raise error


def test_an_archive_that_leads_before_its_start_is_damaged(tmp_path):
    np.savez(path := tmp_path / "file.npz", rows=np.arange(9))
    content = bytearray(path.read_bytes())
    content[-3] = 255  # where the directory starts
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"file\.npz is damaged or not"):
        read_arrays(path, ["rows"])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_no_json(number):
    with pytest.raises(ValueError, match=f"the number {number} is not finite"):
        parse_json(f'{{"score": [{number}]}}', dict)
