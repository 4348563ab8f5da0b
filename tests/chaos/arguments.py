"""Hostile options and arguments of commands: one sentence, or a right result."""

import random
from pathlib import Path

from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.reference import EACH, MINED, Reference
from tests.chaos.rules import hold, nothing_left, refused_well

LARGE = "99999999999999999999"
INDEXES = ("IVF4,Flat|nprobe=-1", "IVF4,Flat|nprobe=99999999999", "Flat|x=1", "", "IVF100000,Flat", "PCA99,Flat")
OPTIONS = {
    "--threads": ("100000", "-1", LARGE, "0"),
    "--search": (
        *(f"faiss:{index}" for index in (*INDEXES, "\x1b[31m", "HNSW32", "IVF4,PQ5", "x" * 10_000)),
        "nothing",
    ),
    "--h-captions": ("0", "-1", LARGE, "2147483648", "1e3", "nan"),
    "--per-image": ("0", "2147483648", LARGE, "7"),
    "--recall-floor": ("nan", "2", "-1", "1e999"),
    "--pairs": ("/dev/zero", "/dev/null", ".", "missing\x1b[2J.npy", "images.npy", "captions.txt", "\udcff.npy"),
    "--memory-mb": ("0", "1", LARGE, "-5"),
    "--metric": ("dot", "l2", "\u202e"),
}
STATUS, SCREEN, EXPORT = ("status", "./tiny.toml"), ("screen", "table", "out"), ("export", "table")
ESTIMATE, INSPECT = ("estimate", "images.npy", "captions.npy", "--per-image"), ("inspect", "./tiny.toml")
ARGUMENTS = (
    *(("status", name) for name in ("./...toml", "/dev/zero", ".", "a\x1b[31mb")),
    *((*STATUS, "--override", change) for change in ("seed=1e999", "=,,=", "a" * 100_000, "seed=\u202e1")),
    (*STATUS, "--artifact-root", "/dev/null"),
    (*STATUS, "--data-root", "\x01x"),
    ("stats", "table", "--view", "table"),
    *(("stats", name) for name in ("/dev/zero", "ids.txt")),
    *(("diff", "table", "table", "--depth", depth) for depth in ("-1", LARGE)),
    (*SCREEN, "--min-score", "nan"),
    (*SCREEN, "--max-score", "1e999"),
    (*SCREEN, "--range-min", "-1"),
    (*SCREEN, "--mutual-rank", LARGE),
    (*SCREEN, "--near-text", "nan", "--texts", "captions.txt"),
    ("screen", "table", "table/inside", "--mutual-rank", "3"),
    (*EXPORT, "table", "--format", "aoq"),
    *((*EXPORT, output, "--format", "trec") for output in ("/dev/full", "no/such/folder/out")),
    (*EXPORT, "out", "--format", "trec", "--num-negatives", LARGE),
    (*EXPORT, "out", "--format", "trec", "--image-root", "."),
    (*EXPORT, "out", "--format", "ids", "--direction", "t2i", "--image-root", "/dev/null"),
    *((*INSPECT, "--image", image) for image in (LARGE, "\x1b[31m")),
    (*INSPECT, "--caption", "-1"),
    ("explain", "./tiny.toml", "\u202estage"),
    *(("data", "check", folder) for folder in ("missing\x1b[2J", "/dev")),
    (*ESTIMATE, LARGE),
    (*ESTIMATE, "3", "--h-captions", "-1"),
    ("import-checkpoint", "/dev/zero", "out.safetensors"),
    ("results", "\x07"),
)


def hostile_argument(reference: Reference, folder: Path, rng: random.Random) -> None:
    place = reference.copy(folder / "place")
    reference.copy_chain("evaluation", place)
    before = {path.name for path in place.iterdir()}
    if rng.random() < 0.5:
        command = ["aoq", *rng.choice(ARGUMENTS)]
    else:
        option = rng.choice([*OPTIONS])
        given = {**dict(zip(MINED[3::2], MINED[4::2], strict=True)), option: rng.choice(OPTIONS[option])}
        given |= {} if option == "--pairs" else {"--per-image": given.get("--per-image", EACH)}
        vectors = ("images.npy", "captions.npy", "out", "--normalise")
        command = ["aoq", "mine", *vectors, *(part for one in given.items() for part in one)]
    ended = forks.run(command, place)
    broke = refused_well(ended) or (nothing_left(place, before) if ended.code != 0 else None)
    hold(broke, ascii(" ".join(str(part)[:80] for part in command)))


KINDS = [Kind("arguments", 200, "hostile options and arguments", hostile_argument)]
