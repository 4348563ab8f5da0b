"""Run a tiny world undisturbed, by the commands of the campaign: its bytes are those that every other run must have."""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
from filelock import FileLock
from PIL import Image
from safetensors.numpy import save_file

from tests.chaos import forks

HERE = Path(__file__).parent
TINY, NOISY = HERE.parent / "tiny.toml", HERE.parent / "noisy.toml"
CHECKPOINT = HERE.parent / "golden" / "ckpt_scan_bigru_zip.pth.tar"
LEGACY = HERE.parent / "golden" / "ckpt_bfan.pth.tar"
ADDED = {
    "refreshed": "\n[refresh]\nrounds = 1\nh_captions = 20\nh_images = 8\n",
    "screened": '\n[screen]\nsame_text = true\ncaption_similarity = 0.9\nsuspected = "drop"\n',
}
"""What an experiment adds to the tiny one."""
SHORT = "h_captions = 10\nh_images = 4\n"
OF_TABLES = {
    "reranked": '[rerank]\nshortlist = "./tiny.toml"\nteacher = "./tiny.toml@seed=1"\n' + SHORT,
    "fused": '[fusion]\nmembers = ["./tiny.toml", "./tiny.toml@seed=1"]\nmethod = "rank"\n' + SHORT,
}
"""Experiments that make a short table of the tiny one's."""
TIMED = ("steps_per_second",)
PAGE = 4096
IMAGES, EACH, SIZE = 40, 3, 12
PHOTOS = 12
NAMES = ("--captions", "captions.txt", "--image-ids", "ids.txt")
TEXTS = (*NAMES, "--image-texts", "described.txt")
PICTURES = (*NAMES, "--image-root", "pictures")
VECTORS = ("--vectors", "images.npy", "captions.npy")
NAMED = ("images.feather", "captions.feather")
KEYS = ("--image-ids", "images.feather::key", "--caption-ids", "captions.feather::key")
MINED = ("--per-image", EACH, "--normalise", "--h-captions", 9, "--h-images", 5)
PREPARED = ("--tokens", "pooled", "--threads", 1)


@dataclass(frozen=True)
class Writer:
    """A command that writes `output`, in a folder that holds the files it reads, and perhaps a chain's artefacts."""

    name: str
    command: tuple[object, ...]
    reads: str | None = None

    @property
    def output(self) -> str:
        return "out.safetensors" if "out.safetensors" in self.command else "out"


EXPORT, EXPORTED = ("export", "table", "out", "--format"), ("n-tuple", "labeled-list", "flagembedding", "ms-swift")
LISTS = ("import-table", "aoq/i2t_aoq.npy", "out", "--per-image", EACH, *VECTORS, "--normalise")
RUN = ("import-table", "trec/i2t.trec", "out", "--per-image", EACH, "--image-ids", "ids.txt")
COMMANDS: dict[str, tuple[object, ...]] = {
    "mine": ("mine", "images.npy", "captions.npy", "out", *MINED),
    "mine safetensors": ("mine", "both.safetensors::i", "both.safetensors::c", "out", *MINED),
    "mine parquet": ("mine", "images.parquet", "captions.parquet", "out", *MINED),
    "mine ids": ("mine", *NAMED, "out", *MINED, *KEYS),
    "screen": ("screen", "table", "out", "--same-text", "--texts", "captions.txt", "--mutual-rank", 3),
    "import lists": LISTS,
    "import run": RUN,
    "import checkpoint": ("import-checkpoint", CHECKPOINT, "out.safetensors"),
    "prepare": ("prepare", "photos.parquet", "out", *PREPARED),
    "embed": ("embed", "prepared", "out", "--encoder", "transformers:clip", "--threads", 1),
    "publish": ("publish", "table", "out", "--image-ids", "ids.txt"),
    **{name: (*EXPORT, name, "--direction", "i2t", *TEXTS) for name in ("triplet", *EXPORTED, "vlm2vec")},
    **{
        name: (*EXPORT, name, "--direction", "t2i", *PICTURES, "--pack")
        for name in ("ids", "tevatron", "colpali", "nemo")
    },
    "pylate": (*EXPORT, "pylate", "--direction", "t2i", *TEXTS),
    "trec": (*EXPORT, "trec"),
    "aoq": (*EXPORT, "aoq"),
}
WRITERS = (
    *(Writer(name, ("aoq", *words)) for name, words in COMMANDS.items()),
    Writer("report", ("aoq", "report", "./tiny.toml", "-o", "out"), reads="evaluation"),
)
SAVE_CLIP = "import pathlib; from tests.prepare.conftest import save_clip; save_clip(pathlib.Path('{}'))"
READERS = (
    ("aoq", "stats", "table", "--json"),
    ("aoq", "audit", "table"),
    ("aoq", "diff", "table", "table"),
    ("aoq", "export", "table", "out", "--format", "triplet", "--direction", "t2i", *TEXTS),
    ("aoq", "export", "table", "out", "--format", "trec"),
    ("aoq", "screen", "table", "out", "--mutual-rank", 3),
    ("aoq", "publish", "table", "out"),
)
"""Commands that read the folder `table`."""

CHAINS = {
    "tiny": ("SecondRound", "tiny.toml"),
    "noisy": ("SecondRound", "noisy.toml"),
    "evaluation": ("Evaluation", "tiny.toml"),
    **{name: ("SecondRound", f"{name}.toml") for name in ADDED},
    **{name: ("HardNegatives", f"{name}.toml") for name in OF_TABLES},
}


def luigi(task: str, experiment: str, *more: object) -> tuple[object, ...]:
    return ("luigi", "--module", "tasks", task, "--experiment", f"./{experiment}", "--engine-threads", "1", *more)


@dataclass(frozen=True)
class Made:
    """What a writer or a chain makes: the sha256 of each file, and the time, operations and bytes of disk it takes."""

    files: dict[str, str]
    seconds: float
    operations: int
    room: int


@dataclass(frozen=True)
class Reference:
    """A folder with the inputs (`files`), and what writers and chains make undisturbed, each at its first use."""

    folder: Path

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def made(self, name: str) -> Made:
        """What a writer or a chain makes."""
        known = self.folder / f"{name}.json"
        with FileLock(f"{known}.lock"):
            if not known.is_file():
                known.write_text(json.dumps(vars(self._make(name))))
        return Made(**json.loads(known.read_text()))

    def _make(self, name: str) -> Made:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        if name in CHAINS:
            place.mkdir()
            write_experiments(place)
            ended = _succeed(luigi(*CHAINS[name]), place)
            return Made(artefacts(place), ended.seconds, ended.operations, taken(place))
        writer = next(one for one in WRITERS if one.name == name)
        ended, output = _succeed(writer.command, self.copy(place, writer)), place / writer.output
        return Made(content(output), ended.seconds, ended.operations, taken(output))

    def copy(self, place: Path, writer: Writer | None = None) -> Path:
        """The inputs in a folder of their own, with the artefacts that the writer reads."""
        if writer and writer.reads:
            self.copy_chain(writer.reads, place)
        return Path(shutil.copytree(self.files, place, dirs_exist_ok=True))

    def copy_chain(self, name: str, place: Path) -> Path:
        """The experiments and what the chain makes."""
        self.made(name)
        return Path(shutil.copytree(self.folder / name, place, symlinks=True, dirs_exist_ok=True))


def make(folder: Path) -> Reference:
    """Write the inputs, unless they are there."""
    reference, written = Reference(folder), folder / "written"
    if not written.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _write_files(reference.files)
        written.touch()
    return reference


def write_experiments(place: Path) -> None:
    tiny = TINY.read_text()
    (place / "tiny.toml").write_text(tiny)
    shutil.copy(NOISY, place)
    for name, added in ADDED.items():
        (place / f"{name}.toml").write_text(tiny + added)
    for name, text in OF_TABLES.items():
        (place / f"{name}.toml").write_text(text)


def content(path: Path) -> dict[str, str]:
    """The sha256 of every file below a path, or of the file itself."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path.parent)): _sha256(file) for file in files}


def artefacts(place: Path) -> dict[str, str]:
    """The sha256 of every published file that is a function of the experiment: but for manifests and clocks."""
    root = place / "artifacts"
    files = [
        file for manifest in root.glob("*/[!.]*/MANIFEST.json") for file in manifest.parent.rglob("*") if file.is_file()
    ]
    return {str(file.relative_to(root)): _sha256(file) for file in sorted(files) if file.name != "MANIFEST.json"}


def taken(path: Path) -> int:
    """Bytes of disk that a file, or a folder with all in it, takes: whole pages."""
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(PAGE if file.is_dir() else -(-file.lstat().st_size // PAGE) * PAGE for file in files)


def left_behind(place: Path) -> str | None:
    """Name unfinished work, scratch folders and temporary files below a folder."""
    left = [str(path.relative_to(place)) for path in place.rglob("*") if path.suffix == ".work" or ".tmp" in path.name]
    return f"{sorted(left)} stay behind" if left else None


def _sha256(file: Path) -> str:
    stored = file.read_bytes()
    if file.name == "metrics.jsonl":
        lines = [json.loads(line) for line in stored.splitlines()]
        stored = json.dumps([{k: v for k, v in line.items() if k not in TIMED} for line in lines]).encode()
    return hashlib.sha256(stored).hexdigest()


def _succeed(command: tuple[object, ...], place: Path) -> forks.Ended:
    ended = forks.run(command, place, kill_before=0)
    if ended.code != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {ended.code}\n{ended.output}{ended.errors}")
    return ended


def _write_files(files: Path) -> None:
    """Vectors in four formats, texts, pairs, a table of them, its lists and runs, matches, and a data set's folder."""
    files.mkdir()
    rng = np.random.default_rng(7)
    images = rng.normal(size=(IMAGES, SIZE)).astype(np.float32)
    captions = (np.repeat(images, EACH, 0) + 2 * rng.normal(size=(IMAGES * EACH, SIZE))).astype(np.float32)
    save_file({"i": images, "c": captions}, files / "both.safetensors")
    for name, vectors in (("images", images), ("captions", captions)):
        np.save(files / f"{name}.npy", vectors)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), SIZE)
        pq.write_table(pa.table({"vector": column}), files / f"{name}.parquet")
        named = pa.table({"key": [f"{name}-{row}" for row in range(len(vectors))], "vector": column})
        feather.write_feather(named, files / f"{name}.feather", compression="uncompressed")
    np.save(files / "pairs.npy", np.repeat(np.arange(IMAGES), EACH))
    (files / "captions.txt").write_text("".join(f"a caption of row {row}\n" for row in range(IMAGES * EACH)))
    (files / "ids.txt").write_text("".join(f"{row}.jpg\n" for row in range(IMAGES)))
    (files / "described.txt").write_text("".join(f"a picture of row {row}\n" for row in range(IMAGES)))
    (files / "pictures").mkdir()
    for row in range(IMAGES):
        (files / "pictures" / f"{row}.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(row))
    (files / "known.json").write_text('{"7": [3], "11": [0, 1]}')
    judged = pa.table({"caption_id": [7, 11], "image_id": [3, 0], "probability": [0.25, 1.0]})
    for name, table in (("known", judged.select(["caption_id", "image_id"])), ("judged", judged)):
        pq.write_table(table, files / f"{name}.parquet")
        pyarrow.csv.write_csv(table, files / f"{name}.csv", pyarrow.csv.WriteOptions(quoting_style="none"))
    (files / "judged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged.to_pylist()))
    (files / "photos").mkdir()
    lines = ["image,caption,split"]
    for row in range(PHOTOS):
        pixels = rng.integers(0, 256, (8, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(files / "photos" / f"{row}.png")
        lines.append(f"{row}.png,a picture of row {row},{'train' if row % 4 else 'dev'}")
    (files / "photos" / "photos.csv").write_text("\n".join(lines) + "\n")
    columns = pyarrow.csv.read_csv(files / "photos" / "photos.csv").to_pydict()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (files / "photos" / "photos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (files / "photos" / "photos.tsv").write_text("\n".join(line.replace(",", "\t") for line in lines) + "\n")
    with tarfile.open(files / "photos.tar", "w") as shard:
        for row in rows:
            (files / "caption.txt").write_text(row["caption"])
            shard.add(files / "photos" / row["image"], row["image"])
            shard.add(files / "caption.txt", row["image"].replace("png", "txt"))
    (files / "caption.txt").unlink()
    columns["image"] = [(files / "photos" / name).read_bytes() for name in columns["image"]]  # whose paths are nowhere
    pq.write_table(pa.table(columns), files / "photos.parquet")
    data = files / "data"
    data.mkdir()
    for split in ("train", "dev"):
        np.save(data / f"{split}_ims.npy", rng.normal(size=(IMAGES, 4, 6)).astype(np.float32))
        np.save(data / f"{split}_pairs.npy", np.repeat(np.arange(IMAGES), EACH))
        (data / f"{split}_caps.txt").write_text((files / "captions.txt").read_text())
        (data / f"{split}_ids.txt").write_text((files / "ids.txt").read_text())
    # In a process of its own: nothing may have computed in a process that forks.
    subprocess.run([sys.executable, "-c", SAVE_CLIP.format(files / "clip")], check=True, cwd=HERE.parent.parent)
    _succeed(("aoq", "prepare", "photos/photos.csv", "prepared", *PREPARED), files)
    _succeed(("aoq", "mine", "images.npy", "captions.npy", "table", *MINED), files)
    _succeed(("aoq", "export", "table", "aoq", "--format", "aoq"), files)
    _succeed(("aoq", "export", "table", "trec", "--format", "trec", "--image-ids", "ids.txt"), files)
    _succeed(("aoq", "export", "table", "trec_rows", "--format", "trec"), files)
