"""`aoq prepare` and `aoq embed` killed with SIGKILL at random instants of their time, then run again.

    python -m tests.prepare.kills FOLDER prepare|embed ...       says in a line what broke

A process of its own, which computes nothing: what commands import is loaded once, and each is a fork of it.
"""

import importlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from aoq.pipeline import embedding
from aoq.pipeline.prepare import extraction, prepare
from tests.chaos import forks
from tests.prepare.conftest import contents
from tests.programs import processes_of

BLOCK, BATCH = 12, 4
KILLS = 3
PRELOADED = ["aoq.pipeline.prepare.extractors", "aoq.pipeline.stages.encoding", "PIL.Image"]
PRELOADED += [f"transformers.models.{name}" for name in ("auto.modeling_auto", "auto.tokenization_auto")]
PRELOADED += ["transformers.models.clip.modeling_clip", "transformers.image_processing_base"]
GONE_SECONDS = 5


def main(folder: Path, source: str, encoder: str) -> str | None:
    forks.preload()
    for module in PRELOADED:
        importlib.import_module(module)
    extraction.BLOCK_IMAGES = embedding.STORE_ROWS = BLOCK  # the commands' forks have them, too
    embedding.BATCH = BATCH
    prepare._workers = lambda engine: 2  # with one thread: two wait for each other on a busy machine
    extracting = ("--extractor", encoder, "--tokens", "pooled", "--threads", "1", "--batch-size", str(BATCH))
    encoding = ("--encoder", encoder, "--threads", "1")
    return _broken(folder, "data", "prepare", *extracting, source) or _broken(
        folder, "vectors", "embed", *encoding, "data"
    )


def _broken(folder: Path, made: str, *arguments: str) -> str | None:
    """Run a command undisturbed, and for another output with kills; say what differs."""
    command, scratch = ("aoq", *arguments), folder / f".{made}.work"
    whole = forks.run((*command, f"whole-{made}"), folder)
    if whole.code != 0:
        return f"undisturbed, it ends with {whole.code}: {whole.output}"
    rng, wanted = random.Random(0), contents(folder / f"whole-{made}")
    for _ in range(KILLS):
        if broke := _kill((*command, made), folder, rng.uniform(0.1, 0.9) * whole.seconds):
            return broke
        if (lost := lost_images(scratch)) > BLOCK + BATCH:
            return f"a kill loses {lost} images"
    if not (folder / made).exists():
        ended = forks.run((*command, made), folder)
        if ended.code != 0 or scratch.exists():
            return f"after the kills it ends with {ended.code}, scratch left: {scratch.exists()}: {ended.output}"
    if contents(folder / made) != wanted:
        return "after the kills there are other bytes"
    return None


def _kill(command: tuple[str, ...], folder: Path, after: float) -> str | None:
    """The command's own process alone; those that it started must end with it."""
    running = forks.start(command, folder)
    time.sleep(after)
    os.kill(running.process, signal.SIGKILL)
    until = time.monotonic() + GONE_SECONDS
    while (left := processes_of(running.process)) and time.monotonic() < until:
        time.sleep(0.01)
    running.wait()
    return f"processes {left} outlive it" if left else None


def lost_images(scratch: Path) -> int:
    """Images that `aoq prepare` extracted, and that the next run extracts again."""
    lost = 0
    for records in scratch.glob("work/*.records"):
        progress = records.with_name(records.name.replace(".records", ".progress.json"))
        kept = json.loads(progress.read_text())["kept"] if progress.is_file() else 0
        lost += records.stat().st_size // extraction.RECORD.itemsize - kept
    return lost


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
