"""Hostile options and arguments of commands: one sentence, or a right result."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.reference import MINED, Reference
from tests.chaos.rules import nothing_left, refused_well

OPTIONS = (
    ("--threads", ("100000", "-1", "99999999999999999999", "0")),
    (
        "--search",
        (
            "faiss:IVF4,Flat|nprobe=-1",
            "faiss:IVF4,Flat|nprobe=99999999999",
            "faiss:Flat|x=1",
            "faiss:",
            "faiss:IVF100000,Flat",
            "faiss:PCA99,Flat",
            "faiss:\x1b[31m",
            "nothing",
            "faiss:HNSW32",
            "faiss:IVF4,PQ5",
            "faiss:" + "x" * 10_000,
        ),
    ),
    ("--h-captions", ("0", "-1", "99999999999999999999", "2147483648", "1e3", "nan")),
    ("--per-image", ("0", "2147483648", "99999999999999999999", "7")),
    ("--recall-floor", ("nan", "2", "-1", "1e999")),
    ("--pairs", ("/dev/zero", "/dev/null", ".", "missing\x1b[2J.npy", "images.npy", "captions.txt", "\udcff.npy")),
    ("--memory-mb", ("0", "1", "99999999999999999999", "-5")),
    ("--metric", ("dot", "l2", "\u202e")),
)
ARGUMENTS = (
    ("aoq", "status", "./...toml"),
    ("aoq", "status", "/dev/zero"),
    ("aoq", "status", "."),
    ("aoq", "status", "a\x1b[31mb"),
    ("aoq", "status", "./tiny.toml", "--override", "seed=1e999"),
    ("aoq", "status", "./tiny.toml", "--override", "=,,="),
    ("aoq", "status", "./tiny.toml", "--override", "a" * 100_000),
    ("aoq", "status", "./tiny.toml", "--override", "seed=\u202e1"),
    ("aoq", "status", "./tiny.toml", "--artifact-root", "/dev/null"),
    ("aoq", "status", "./tiny.toml", "--data-root", "\x00x"),
    ("aoq", "stats", "table", "--view", "table"),
    ("aoq", "stats", "/dev/zero"),
    ("aoq", "stats", "ids.txt"),
    ("aoq", "diff", "table", "table", "--depth", "-1"),
    ("aoq", "diff", "table", "table", "--depth", "99999999999999999999"),
    ("aoq", "screen", "table", "out", "--min-score", "nan"),
    ("aoq", "screen", "table", "out", "--max-score", "1e999"),
    ("aoq", "screen", "table", "out", "--range-min", "-1"),
    ("aoq", "screen", "table", "out", "--mutual-rank", "99999999999999999999"),
    ("aoq", "screen", "table", "out", "--near-text", "nan", "--texts", "captions.txt"),
    ("aoq", "screen", "table", "table/inside", "--mutual-rank", "3"),
    ("aoq", "export", "table", "table", "--format", "aoq"),
    (
        "aoq",
        "export",
        "table",
        "out",
        "--format",
        "trec",
        "--num-negatives",
        "99999999999999999999",
    ),
    ("aoq", "export", "table", "/dev/full", "--format", "trec"),
    ("aoq", "export", "table", "no/such/folder/out", "--format", "trec"),
    ("aoq", "export", "table", "out", "--format", "ids", "--direction", "t2i", "--image-root", "/dev/null"),
    ("aoq", "export", "table", "out", "--format", "trec", "--image-root", "."),
    ("aoq", "inspect", "./tiny.toml", "--image", "99999999999999999999"),
    ("aoq", "inspect", "./tiny.toml", "--caption", "-1"),
    ("aoq", "inspect", "./tiny.toml", "--image", "\x1b[31m"),
    ("aoq", "explain", "./tiny.toml", "\u202estage"),
    ("aoq", "data", "check", "missing\x1b[2J"),
    ("aoq", "data", "check", "/dev"),
    ("aoq", "estimate", "images.npy", "captions.npy", "--per-image", "99999999999999999999"),
    ("aoq", "estimate", "images.npy", "captions.npy", "--per-image", "3", "--h-captions", "-1"),
    ("aoq", "import-checkpoint", "/dev/zero", "out.safetensors"),
    ("aoq", "results", "\x07"),
)


def hostile_argument(reference: Reference, folder: Path, rng: random.Random) -> str | None:
    place = reference.copy(folder / "place")
    shutil.copytree(reference.folder / "tiny", place, symlinks=True, dirs_exist_ok=True)
    before = {path.name for path in place.iterdir()}
    if rng.random() < 0.5:
        command = [*rng.choice(ARGUMENTS)]
    else:
        option, values = rng.choice(OPTIONS)
        given = dict(zip(MINED[3::2], MINED[4::2], strict=True))  # --normalise stands alone
        command = [
            "aoq",
            "mine",
            "images.npy",
            "captions.npy",
            "out",
            "--normalise",
            *({} if option == "--pairs" else MINED[:2]),
        ]
        command += [part for name, value in given.items() if name != option for part in (name, value)]
        command += [option, rng.choice(values)]
    if any("\x00" in str(part) for part in command):
        command = [str(part).replace("\x00", "\x01") for part in command]
    ended = forks.run(command, place)
    shown = ascii(" ".join(str(part)[:80] for part in command))
    if broke := refused_well(ended):
        return f"{shown}: {broke}"
    if ended.code != 0 and (broke := nothing_left(place, before)):
        return f"{shown}: {broke}"
    return None


KINDS = [Kind("arguments", 200, "hostile options and arguments", hostile_argument)]
