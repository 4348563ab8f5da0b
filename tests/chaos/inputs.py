"""Hostile input in every format through every command that reads it: one sentence, or a right result."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos import forks
from tests.chaos import mutations as m
from tests.chaos.campaign import Kind
from tests.chaos.oracle import Command, right_search, right_table
from tests.chaos.reference import (
    CHECKPOINT,
    EACH,
    KEYS,
    LEGACY,
    MINED,
    NAMED,
    PICTURES,
    PREPARED,
    READERS,
    TEXTS,
    VECTORS,
    Reference,
    luigi,
)
from tests.chaos.rules import nothing_left, refused_well

NPY = (m.any_bytes, m.npy_header, m.npy_header, m.npy_values, m.npy_values, m.npy_pickled, m.npy_as_zip)
PARQUET = (m.any_bytes, m.parquet_columns, m.parquet_columns)
TEXT = (m.any_bytes, m.lines, m.lines)
JSON = (m.any_bytes, m.json_values, m.json_values)
CSV = (m.csv_cells, m.csv_cells, m.any_bytes)
TOML = (m.toml_lines, m.toml_lines, m.toml_lines, m.any_bytes)
SAFETENSORS = (m.any_bytes, m.safetensors_header, m.safetensors_header)
FOLDER_OF_DATA = """
[dataset]
folder = "data"
vocabulary = "vocabulary.{ending}"

[model]
name = "vsepp"
embedding_size = 16
word_size = 8

[mining]
h_captions = 20
h_images = 8

[first_round]
epochs = 1
loss.name = "online"

[second_round]
epochs = 1
loss.name = "adapoffquin"
"""
SETTINGS = """
[paths]
data_root = data
artifact_root = artifacts
cache_root = cache

[engine]
device = cpu
threads = 1
tensorboard = false
"""
STUDY = """
baseline = "online"
seeds = [0]
columns = ["rsum"]

[models]
small = "./tiny.toml"

[arms.online]
says = "the table's own"

[arms.longer]
change = {second_round.epochs = 4}
"""


@dataclass(frozen=True)
class Target:
    """A command, one of the files it reads, and how that one may be hostile."""

    command: Command
    files: tuple[str, ...]
    mutations: tuple[m.Mutation, ...]
    right: Callable[[Path, Command], str | None] = lambda place, command: None
    """What is wrong with the result, where the command ends with 0."""
    keeps: tuple[str, ...] = ()
    """What a refusal may leave, for the next run to go on with."""
    chain: str | None = None
    """The chain in whose folder the command runs; by default it has the files of the writers."""


@dataclass
class Vocabulary:
    """The object that official code pickles."""

    word2idx: dict[str, int]
    idx2word: dict[int, str]
    idx: int


PAIRED = ("--pairs", "pairs.npy", *MINED[2:])
LISTS = ("aoq", "import-table", "aoq/i2t_aoq.npy", "out", "--per-image", EACH)
RUN = ("aoq", "import-table", "trec_rows/i2t.trec", "out", "--per-image", EACH)
NAMED_RUN = ("aoq", "import-table", "trec/i2t.trec", "out", "--per-image", EACH, "--image-ids", "ids.txt")
TABLE = ("table/i2t.parquet", "table/t2i.parquet", "table/positives.parquet", "table/i2t.certificates.parquet")
EXPORTS = dict.fromkeys(("triplet", "n-tuple", "labeled-pair", "flagembedding", "tevatron", "ms-swift"), TEXTS)
EXPORTS["pylate"] = (*TEXTS, *VECTORS)
PICTURED = ("triplet", "ids", "tevatron", "vlm2vec")
SCREENED = ("aoq", "screen", "table", "out", "--positives")
JUDGED = ("aoq", "screen", "table", "out", "--judgements")
DATA = ("data/train_ims.npy", "data/train_pairs.npy", "data/dev_ims.npy")
TEXTS_OF_DATA = ("data/train_caps.txt", "data/train_ids.txt", "data/dev_caps.txt")

FILES = {
    "npy": [
        Target(
            ("aoq", "mine", "images.npy", "captions.npy", "out", *MINED),
            ("images.npy", "captions.npy"),
            NPY,
            right_search,
        ),
        Target(("aoq", "mine", "images.npy", "captions.npy", "out", *PAIRED), ("pairs.npy",), NPY, right_search),
        Target(
            (*LISTS, *VECTORS, "--normalise"), ("aoq/i2t_aoq.npy", "aoq/t2i_aoq.npy", "images.npy"), NPY, right_table
        ),
        Target(LISTS, ("aoq/i2t_aoq.npy", "aoq/t2i_aoq.npy"), NPY, right_table),
        Target(("aoq", "data", "check", "data"), DATA, NPY),
    ],
    "safetensors": [
        Target(
            ("aoq", "mine", "both.safetensors::i", "both.safetensors::c", "out", *MINED),
            ("both.safetensors",),
            SAFETENSORS,
            right_search,
        ),
    ],
    "parquet": [
        Target(
            ("aoq", "mine", "images.parquet", "captions.parquet", "out", *MINED),
            ("images.parquet",),
            PARQUET,
            right_search,
        ),
        Target((*SCREENED, "known.parquet"), ("known.parquet",), PARQUET),
        Target((*JUDGED, "judged.parquet"), ("judged.parquet",), PARQUET),
        *(Target(command, TABLE, PARQUET) for command in READERS),
    ],
    "arrow": [
        Target(
            ("aoq", "mine", *NAMED, "out", *MINED, *KEYS),
            ("images.feather", "captions.feather"),
            (m.any_bytes,),
            right_search,
        ),
    ],
    "json": [
        Target((*SCREENED, "known.json"), ("known.json",), JSON),
        Target((*JUDGED, "judged.jsonl"), ("judged.jsonl",), JSON),
        *(Target(command, ("table/manifest.json",), JSON) for command in READERS),
    ],
    "csv": [
        Target((*SCREENED, "known.csv"), ("known.csv",), CSV),
        Target((*JUDGED, "judged.csv"), ("judged.csv",), CSV),
    ],
    "sources": [
        Target(
            ("aoq", "prepare", "photos/photos.csv", "out", *PREPARED),
            ("photos/photos.csv",),
            (m.csv_cells, m.lines, m.any_bytes),
            keeps=(".out.work",),
        ),
        Target(
            ("aoq", "prepare", "photos.parquet", "out", *PREPARED),
            ("photos.parquet",),
            (m.any_bytes,),
            keeps=(".out.work",),
        ),
        Target(
            ("aoq", "prepare", "photos/photos.csv", "out", *PREPARED, "--skip-broken"),
            ("photos/3.png",),
            (m.any_bytes,),
        ),
    ],
    "trec": [
        Target(RUN, ("trec_rows/i2t.trec", "trec_rows/t2i.trec"), TEXT, right_table),
        Target(NAMED_RUN, ("trec/i2t.trec", "ids.txt"), TEXT, right_table),
    ],
    "texts": [
        *(
            Target(
                ("aoq", "export", "table", "out", "--format", name, "--direction", way, *options),
                ("captions.txt", "ids.txt", "described.txt"),
                TEXT,
            )
            for name, options in EXPORTS.items()
            for way in ("i2t", "t2i")
        ),
        *(
            Target(
                ("aoq", "export", "table", "out", "--format", name, "--direction", way, *PICTURES),
                ("captions.txt", "ids.txt", "pictures/3.jpg"),
                TEXT,
            )
            for name in PICTURED
            for way in ("i2t", "t2i")
        ),
        Target(("aoq", "export", "table", "out", "--format", "negclip", *PICTURES), ("captions.txt", "ids.txt"), TEXT),
        Target(("aoq", "data", "check", "data"), TEXTS_OF_DATA, TEXT),
        Target(("aoq", "screen", "table", "out", "--same-text", "--texts", "captions.txt"), ("captions.txt",), TEXT),
    ],
    "checkpoints": [
        Target(
            ("aoq", "import-checkpoint", "official.pth.tar", "out.safetensors"),
            ("official.pth.tar",),
            (m.any_bytes, m.zip_members, m.zip_members, m.pickles),
        ),
        Target(
            ("aoq", "import-checkpoint", "legacy.pth.tar", "out.safetensors"),
            ("legacy.pth.tar",),
            (m.any_bytes, m.any_bytes, m.pickles),
        ),
    ],
    "weights": [
        Target(
            luigi("FirstRound", "weighted.toml", "--data-root", "."),
            ("own.safetensors",),
            (*SAFETENSORS, m.weights_description),
            chain="tiny",
        ),
    ],
    "annotations": [
        Target(("aoq", "data", "check", "data"), ("data/dev_relevance.csv",), (m.csv_cells, m.csv_cells, m.any_bytes)),
        Target(("aoq", "data", "check", "data"), ("data/dev_judgements.parquet",), PARQUET),
        Target(("aoq", "data", "check", "data"), ("data/dev_classes.npy",), NPY),
        Target(("aoq", "data", "check", "data"), ("data/dev_phrases.jsonl",), (*TEXT, m.json_line, m.json_line)),
    ],
    "settings": [
        Target(command, ("luigi.cfg",), (m.any_bytes, m.toml_lines, m.toml_lines), chain="tiny")
        for command in (
            ("aoq", "status", "./tiny.toml"),
            ("aoq", "results", "./tiny.toml"),
            ("aoq", "estimate", "--experiment", "./tiny.toml"),
        )
    ],
    "studies": [
        Target(("aoq", "results", "--study", "./study.toml"), ("study.toml",), TOML, chain="evaluation"),
    ],
    "reports": [
        Target(
            command,
            ("artifacts/second_round/*/metrics.jsonl", "artifacts/evaluation/*/similarity.npy"),
            (m.any_bytes, m.any_bytes, m.json_line),
            chain="evaluation",
        )
        for command in (("aoq", "report", "./tiny.toml"), ("aoq", "results", "--study", "./study.toml"))
    ]
    + [
        Target(("aoq", "report", "./tiny.toml"), ("artifacts/evaluation/*/similarity.npy",), NPY, chain="evaluation"),
    ],
    "toml": [Target(("aoq", "status", "./tiny.toml"), ("tiny.toml",), TOML)],
    "vocabularies": [
        Target(luigi("Dataset", "pickled.toml", "--data-root", "."), ("vocabulary.pkl",), (m.pickles, m.any_bytes)),
        Target(luigi("Dataset", "worded.toml", "--data-root", "."), ("vocabulary.json",), JSON),
    ],
    "manifests": [
        Target(("aoq", *command), ("artifacts/*/*/MANIFEST.json",), JSON)
        for command in (("verify", "./tiny.toml"), ("status", "./tiny.toml"), ("results", "./tiny.toml"), ("gc",))
    ]
    + [Target(("aoq", "explain", "./tiny.toml", "second_round"), ("artifacts/*/*/MANIFEST.json",), JSON)],
}
CASES = {
    "npy": 1500,
    "safetensors": 500,
    "parquet": 900,
    "arrow": 300,
    "json": 500,
    "csv": 150,
    "sources": 150,
    "trec": 300,
    "texts": 500,
    "checkpoints": 250,
    "toml": 250,
    "weights": 200,
    "annotations": 200,
    "settings": 60,
    "studies": 60,
    "reports": 120,
    "vocabularies": 60,
    "manifests": 250,
}


def hostile_file(targets: list[Target], reference: Reference, folder: Path, rng: random.Random) -> str | None:
    target = rng.choice(targets)
    place = _prepared(reference, folder / "place", target)
    before = {path.name for path in place.iterdir()}
    file = rng.choice(sorted(place.glob(rng.choice(target.files))))
    mutation = rng.choice(target.mutations)
    mutation(file, rng)
    what = f"{' '.join(map(str, target.command))}, {file.relative_to(place)} after {mutation.__name__}"
    ended = forks.run(target.command, place)
    if broke := refused_well(ended):
        return f"{what}: {broke}"
    if (place / "canary").exists():
        return f"{what}: what stood in the file was executed"
    broke = (
        target.right(place, target.command)
        if ended.code == 0
        else nothing_left(place, before | {"artifacts", "runs", "cache", *target.keeps})
    )
    return f"{what}: {broke}" if broke else None


def whole_files(reference: Reference, folder: Path, rng: random.Random) -> str | None:
    """Every command of the targets, on files that nobody touched: else their hostile cases would prove little."""
    for number, target in enumerate(chain.from_iterable(FILES.values())):
        place = _prepared(reference, folder / str(number), target)
        ended = forks.run(target.command, place)
        broke = f"exit code {ended.code}\n{ended.said}" if ended.code != 0 else target.right(place, target.command)
        if broke:
            return f"{' '.join(map(str, target.command))}: {broke}"
    return None


def _prepared(reference: Reference, place: Path, target: Target) -> Path:
    if target.chain is not None or "./tiny.toml" in target.command or "gc" in target.command:
        reference.copy_chain(target.chain or "tiny", place)
        (place / "luigi.cfg").write_text(SETTINGS)
        (place / "study.toml").write_text(STUDY)
        (weights,) = place.glob("artifacts/first_round/*/model.safetensors")
        (place / "own.safetensors").write_bytes(weights.read_bytes())
        tiny = (place / "tiny.toml").read_text()
        before, after = tiny.split("[first_round]")
        weighted = f'teacher_weights = "own.safetensors"\n{before}[mining]{after.split("[mining]")[1]}'
        (place / "weighted.toml").write_text(weighted)
        return place
    reference.copy(place)
    for name, checkpoint in (("official", CHECKPOINT), ("legacy", LEGACY)):
        (place / f"{name}.pth.tar").write_bytes(checkpoint.read_bytes())
    if target.files[0].startswith("data/dev_"):
        _annotate(place / "data")
    if "luigi" in target.command:
        words = ("<pad>", "<start>", "<end>", "<unk>", "a", "caption", "of", "row", *map(str, range(200)))
        official = Vocabulary({word: n for n, word in enumerate(words)}, dict(enumerate(words)), len(words))
        (place / "vocabulary.json").write_text(json.dumps(vars(official)))
        (place / "vocabulary.pkl").write_bytes(pickle.dumps(official))
        for name, ending in (("pickled", "pkl"), ("worded", "json")):
            (place / f"{name}.toml").write_text(FOLDER_OF_DATA.format(ending=ending))
    return place


def _annotate(folder: Path) -> None:
    """All that may be known of a split."""
    captions = len((folder / "dev_caps.txt").read_text().splitlines())
    images = len((folder / "dev_ids.txt").read_text().splitlines())
    (folder / "dev_relevance.csv").write_text("caption_id,image_id\n7,3\n11,0\n")
    np.save(folder / "dev_classes.npy", np.arange(images * 4).reshape(images, 4) % 3 == 0)
    columns = {"image_id": [0, 1, 2], "caption_id": [3, 4, 5], "score": [0.5, 1.0, 2.0]}
    pq.write_table(pa.table(columns), folder / "dev_judgements.parquet")
    phrase = {"phrase": "caption", "start": 1, "regions": [0, 2]}
    (folder / "dev_phrases.jsonl").write_text(f"{json.dumps([phrase])}\n" * captions)


def _kind(name: str) -> Kind:
    def run(reference: Reference, folder: Path, rng: random.Random) -> str | None:
        return hostile_file(FILES[name], reference, folder, rng)

    return Kind(name, CASES[name], f"hostile {name} through the commands that read them", run)


KINDS = [
    Kind("whole", 1, "the commands of the hostile files below, on whole ones", whole_files),
    *map(_kind, FILES),
]
