"""Time the pages of `aoq browse` on a made-up table of 10,000 images and 50,000 captions, h = 300/60.

    python benchmarks/browse.py

Prints the median and the longest time of 20 different pages of each kind, over HTTP, and the additional memory that
they took.
"""

from __future__ import annotations

import logging
import resource
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

from aoq.pipeline.browse.app import open_server
from aoq.pipeline.browse.marks import Marks
from aoq.pipeline.browse.source import Gallery, OpenTable, split_album
from aoq.pipeline.data.folder import Split
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.pairs import paired
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.tables.writing import write_table

IMAGES, CAPTIONS, H = 10_000, 50_000, {"i2t": 300, "t2i": 60}
WORDS = [f"{start}{end}" for start in ("dog", "man", "girl", "ball", "red", "run") for end in ("", "s", "ing", "ly")]
PAGES = 20


def made_up_lists(anchors: int, candidates: int, h: int) -> Iterator[NegativeLists]:
    rng = np.random.default_rng(h)
    for start in range(0, anchors, 1000):
        rows = min(1000, anchors - start)
        ids = rng.integers(0, candidates, (rows, h), dtype=np.int32)
        scores = -np.sort(-rng.random((rows, h), dtype=np.float32), axis=1)
        yield NegativeLists(ids, scores, rng.random(rows, dtype=np.float32))


def made_up_source(folder: Path) -> Gallery:
    rng = np.random.default_rng(0)
    captions = [" ".join(rng.choice(WORDS, 11)) for _ in range(CAPTIONS)]
    image_of = np.repeat(np.arange(IMAGES, dtype=np.int32), CAPTIONS // IMAGES)
    split = Split("train", np.zeros((IMAGES, 1, 1), np.float32), captions, image_of, [str(n) for n in range(IMAGES)])
    sizes = {"i2t": (IMAGES, CAPTIONS), "t2i": (CAPTIONS, IMAGES)}
    made = {name: ({"h": H[name]}, made_up_lists(*sizes[name], H[name])) for name in DIRECTIONS}
    write_table(folder / "table", {}, made, paired(image_of))
    table = OpenTable(("made up",), read_table(folder / "table"), None, None)
    return Gallery(split_album(folder, split), (table,), ())


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    rng = np.random.default_rng(1)
    with TemporaryDirectory() as scratch:
        marks = Marks(Path(scratch) / "m.csv", IMAGES, CAPTIONS, "one")
        server = open_server(made_up_source(Path(scratch)), marks, 0)
        port = server.port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for kind, count in (("image", IMAGES), ("caption", CAPTIONS)):
            rows = rng.choice(count, PAGES).tolist()
            show(f"{kind}'s list", [f"/{kind}/{row}" for row in rows], port)
            show(f"where {kind} is listed", [f"/{kind}/{row}/listed" for row in rows], port)
        pairs = rng.choice(WORDS, (PAGES, 2)).tolist()
        show("search", [f"/search?q={one}+{other}" for one, other in pairs], port)
        show("start", [f"/?page={page}" for page in range(1, PAGES)], port)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{(after - before) / 1024:.0f} MB beyond what was there before")
        server.shutdown()


def show(what: str, addresses: list[str], port: int) -> None:
    seconds = []
    for address in addresses:
        started = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{address}") as answer:
            answer.read()
        seconds.append(time.perf_counter() - started)
    print(f"{what:24} median {np.median(seconds):.3f} s, longest {max(seconds):.3f} s", flush=True)


if __name__ == "__main__":
    main()
