"""Hostile input in every format through every command that reads it: one sentence, or a right result."""

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos import forks
from tests.chaos import mutations as m
from tests.chaos.campaign import Kind
from tests.chaos.reference import (
    CHECKPOINT,
    EACH,
    LEGACY,
    MINED,
    PICTURES,
    PREPARED,
    READERS,
    TEXTS,
    VECTORS,
    WRITERS,
    Reference,
    luigi,
)
from tests.chaos.rules import Command, failed, hold, nothing_left, refused_well, right_search, right_table

NPY = (m.any_bytes, m.npy_header, m.npy_header, m.npy_values, m.npy_values, m.npy_pickled, m.npy_as_zip)
PARQUET = (m.any_bytes, m.parquet_columns, m.parquet_columns)
TEXT = (m.any_bytes, m.lines, m.lines)
JSON = (m.any_bytes, m.json_values, m.json_values)
CSV = (m.csv_cells, m.csv_cells, m.any_bytes)
TOML = (m.toml_lines, m.toml_lines, m.toml_lines, m.any_bytes)
SAFETENSORS = (m.any_bytes, m.safetensors_header, m.safetensors_header)
WEIGHTS = (*SAFETENSORS, m.weights_description, m.weights_description)
BYTES, ZIP = (m.any_bytes,), (m.zip_members, m.zip_members)
FOLDER_OF_DATA = """
dataset = {{folder = "data", vocabulary = "vocabulary.{ending}"}}
model = {{name = "vsepp", embedding_size = 16, word_size = 8}}
mining = {{h_captions = 20, h_images = 8}}
first_round = {{epochs = 1, loss.name = "online"}}
second_round = {{epochs = 1, loss.name = "adapoffquin"}}
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


MADE = {writer.name: writer.command for writer in WRITERS}
LISTS = ("aoq", "import-table", "aoq/i2t_aoq.npy", "out", "--per-image", EACH)
RUN = ("aoq", "import-table", "trec_rows/i2t.trec", "out", "--per-image", EACH)
PAIRED = ("aoq", "mine", "images.npy", "captions.npy", "out", "--pairs", "pairs.npy", *MINED[2:])
TABLE = ("table/i2t.parquet", "table/t2i.parquet", "table/positives.parquet", "table/i2t.certificates.parquet")
EXPORTS = dict.fromkeys(("triplet", "n-tuple", "labeled-pair", "flagembedding", "tevatron", "ms-swift"), TEXTS)
EXPORTS["pylate"] = (*TEXTS, *VECTORS)
EXPORT, PICTURED = ("aoq", "export", "table", "out", "--format"), ("triplet", "ids", "tevatron", "vlm2vec")
POSITIVES = ("aoq", "screen", "table", "out", "--positives")
JUDGED = ("aoq", "screen", "table", "out", "--judgements")
CHECK, STATUS = ("aoq", "data", "check", "data"), ("aoq", "status", "./tiny.toml")
RESULTS, REPORT = ("aoq", "results", "./tiny.toml"), ("aoq", "report", "./tiny.toml")
OF_STUDY = ("aoq", "results", "--study", "./study.toml")
PREPARE = {
    name: ("aoq", "prepare", name, "out", *PREPARED)
    for name in ("photos/photos.csv", "photos/photos.tsv", "photos/photos.jsonl", "photos.tar")
}
SOURCES = dict(zip(PREPARE, ((m.csv_cells, *TEXT[:2]), TEXT, (*TEXT, m.json_line), BYTES), strict=True))
IMPORT = ("aoq", "import-checkpoint")
DATA = ("data/train_ims.npy", "data/train_pairs.npy", "data/dev_ims.npy")
TEXTS_OF_DATA = ("data/train_caps.txt", "data/train_ids.txt", "data/dev_caps.txt")
METRICS, SIMILARITY = "artifacts/second_round/*/metrics.jsonl", "artifacts/evaluation/*/similarity.npy"

FILES = {
    ("npy", 1500): [
        Target(MADE["mine"], ("images.npy", "captions.npy"), NPY, right_search),
        Target(PAIRED, ("pairs.npy",), NPY, right_search),
        Target(MADE["import lists"], ("aoq/i2t_aoq.npy", "aoq/t2i_aoq.npy", "images.npy"), NPY, right_table),
        Target(LISTS, ("aoq/i2t_aoq.npy", "aoq/t2i_aoq.npy"), NPY, right_table),
        Target(CHECK, DATA, NPY),
    ],
    ("safetensors", 500): [Target(MADE["mine safetensors"], ("both.safetensors",), SAFETENSORS, right_search)],
    ("parquet", 900): [
        Target(MADE["mine parquet"], ("images.parquet",), PARQUET, right_search),
        Target((*POSITIVES, "known.parquet"), ("known.parquet",), PARQUET),
        Target((*JUDGED, "judged.parquet"), ("judged.parquet",), PARQUET),
        *(Target(command, TABLE, PARQUET) for command in READERS),
    ],
    ("arrow", 300): [Target(MADE["mine ids"], ("images.feather", "captions.feather"), BYTES, right_search)],
    ("json", 500): [
        Target((*POSITIVES, "known.json"), ("known.json",), JSON),
        Target((*JUDGED, "judged.jsonl"), ("judged.jsonl",), JSON),
        *(Target(command, ("table/manifest.json",), JSON) for command in READERS),
    ],
    ("csv", 150): [
        Target((*POSITIVES, "known.csv"), ("known.csv",), CSV),
        Target((*JUDGED, "judged.csv"), ("judged.csv",), CSV),
    ],
    ("sources", 150): [
        *(Target(PREPARE[name], (name,), how, keeps=(".out.work",)) for name, how in SOURCES.items()),
        Target(MADE["prepare"], ("photos.parquet",), BYTES, keeps=(".out.work",)),
        *(Target((*command, "--skip-broken"), ("photos/3.png",), BYTES) for command in PREPARE.values()),
    ],
    ("trec", 300): [
        Target(RUN, ("trec_rows/i2t.trec", "trec_rows/t2i.trec"), TEXT, right_table),
        Target(MADE["import run"], ("trec/i2t.trec", "ids.txt"), TEXT, right_table),
    ],
    ("texts", 500): [
        *(
            Target((*EXPORT, name, "--direction", way, *more), ("captions.txt", "ids.txt", "described.txt"), TEXT)
            for name, more in EXPORTS.items()
            for way in ("i2t", "t2i")
        ),
        *(
            Target((*EXPORT, name, "--direction", way, *PICTURES), ("captions.txt", "ids.txt", "pictures/3.jpg"), TEXT)
            for name in PICTURED
            for way in ("i2t", "t2i")
        ),
        Target((*EXPORT, "negclip", *PICTURES), ("captions.txt", "ids.txt"), TEXT),
        Target(CHECK, TEXTS_OF_DATA, TEXT),
        Target(("aoq", "screen", "table", "out", "--same-text", "--texts", "captions.txt"), ("captions.txt",), TEXT),
    ],
    ("checkpoints", 250): [
        Target((*IMPORT, "official.pth.tar", "out.safetensors"), ("official.pth.tar",), (*BYTES, *ZIP, m.pickles)),
        Target((*IMPORT, "legacy.pth.tar", "out.safetensors"), ("legacy.pth.tar",), (*BYTES, *BYTES, m.pickles)),
    ],
    ("weights", 200): [
        Target(luigi("FirstRound", "weighted.toml", "--data-root", "."), ("own.safetensors",), WEIGHTS, chain="tiny"),
    ],
    ("annotations", 200): [
        Target(CHECK, ("data/dev_relevance.csv",), CSV),
        Target(CHECK, ("data/dev_judgements.parquet",), PARQUET),
        Target(CHECK, ("data/dev_classes.npy",), NPY),
        Target(CHECK, ("data/dev_phrases.jsonl",), (*TEXT, m.json_line, m.json_line)),
    ],
    ("settings", 60): [
        Target(command, ("luigi.cfg",), TOML[1:], chain="tiny")
        for command in (STATUS, RESULTS, ("aoq", "estimate", "--experiment", "./tiny.toml"))
    ],
    ("studies", 60): [Target(OF_STUDY, ("study.toml",), TOML, chain="evaluation")],
    ("reports", 120): [
        *(
            Target(command, (METRICS, SIMILARITY), (*BYTES, *BYTES, m.json_line), chain="evaluation")
            for command in (REPORT, OF_STUDY)
        ),
        Target(REPORT, (SIMILARITY,), NPY, chain="evaluation"),
    ],
    ("toml", 250): [Target(STATUS, ("tiny.toml",), TOML)],
    ("vocabularies", 60): [
        Target(luigi("Dataset", "pickled.toml", "--data-root", "."), ("vocabulary.pkl",), (m.pickles, *BYTES)),
        Target(luigi("Dataset", "worded.toml", "--data-root", "."), ("vocabulary.json",), JSON),
    ],
    ("manifests", 250): [
        Target(command, ("artifacts/*/*/MANIFEST.json",), JSON)
        for command in (
            *(STATUS, RESULTS, ("aoq", "verify", "./tiny.toml"), ("aoq", "gc")),
            ("aoq", "explain", "./tiny.toml", "second_round"),
        )
    ],
}
"""Kinds of files with the number of their cases, and what reads them."""


def hostile_file(targets: list[Target], reference: Reference, folder: Path, rng: random.Random) -> None:
    target = rng.choice(targets)
    place = _prepared(reference, folder / "place", target)
    before = {path.name for path in place.iterdir()}
    file = rng.choice(sorted(place.glob(rng.choice(target.files))))
    mutation = rng.choice(target.mutations)
    mutation(file, rng)
    what = f"{' '.join(map(str, target.command))}, {file.relative_to(place)} after {mutation.__name__}"
    ended = forks.run(target.command, place)
    hold(refused_well(ended), what)
    hold("what stood in the file was executed" if (place / "canary").exists() else None, what)
    if ended.code == 0:
        hold(target.right(place, target.command), what)
    else:
        hold(nothing_left(place, before | {"artifacts", "runs", "cache", *target.keeps}), what)


def whole_files(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Every command of the targets, on files that nobody touched: else their hostile cases would prove little."""
    for number, target in enumerate(chain.from_iterable(FILES.values())):
        place = _prepared(reference, folder / str(number), target)
        ended = forks.run(target.command, place)
        hold(failed(ended) or target.right(place, target.command), " ".join(map(str, target.command)))


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
    phrase = {"phrase": "caption", "start": 1, "boxes": [[0.1, 0.2, 0.5, 1.0]]}
    (folder / "dev_phrases.jsonl").write_text(f"{json.dumps([phrase])}\n" * captions)


def _kind(name: str, cases: int, targets: list[Target]) -> Kind:
    what = f"hostile {name} through the commands that read them"
    return Kind(name, cases, what, partial(hostile_file, targets))


KINDS = [
    Kind("whole", 1, "the commands of the hostile files below, on whole ones", whole_files),
    *(_kind(*kind, targets) for kind, targets in FILES.items()),
]
