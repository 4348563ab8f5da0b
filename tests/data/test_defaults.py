"""A folder that is sound may still stop an experiment with the default options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.learnable import check_defaults

Write = Callable[..., Path]
KNOWN = ["a dog", "a cat", "dog a", "cat a", "dog dog", "cat cat"] * 2


def test_words_that_are_known_are_no_flaw(write_split: Write) -> None:
    write_split("dev", caps=KNOWN)
    assert list(check_defaults(write_split(caps=KNOWN))) == []


def test_a_missing_split_is_said(write_split: Write) -> None:
    (flaw,) = check_defaults(write_split(caps=KNOWN))
    assert str(flaw) == (
        "error: dev_ims.npy: is missing, which experiments choose their best epoch by; add this split, or name "
        "another in `dataset.dev`"
    )


def test_captions_without_a_frequent_word(write_split: Write) -> None:
    captions = [f"{row}人走路" for row in range(12)]
    write_split("dev", caps=captions)
    (flaw,) = check_defaults(write_split(caps=captions))
    assert (flaw.file, flaw.severity) == ("train_caps.txt", "error")
    assert flaw.message.startswith("none of 12 words occurs 4 times (the most frequent, '0人走路', 2). Cut captions")


def test_captions_that_are_alike_are_a_warning(write_split: Write) -> None:
    write_split("dev", caps=KNOWN)
    (flaw,) = check_defaults(write_split(caps=[*KNOWN[:10], "a fox", "a cow"]))
    assert (flaw.file, flaw.severity) == ("train_caps.txt", "warning")
    assert flaw.message.startswith("with the default vocabulary, 2 of 12 captions have the token ids of another text")


def test_what_cannot_be_read_is_left_to_the_files_check(write_split: Write, tmp_path: Path) -> None:
    write_split("dev", caps=KNOWN)
    assert list(check_defaults(write_split(caps=b"\xff\n"))) == []
    (tmp_path / "train_caps.txt").unlink()
    assert list(check_defaults(tmp_path)) == []
    assert examine_folder(tmp_path).flaws != []
    assert list(check_defaults(tmp_path / "elsewhere")) == []
