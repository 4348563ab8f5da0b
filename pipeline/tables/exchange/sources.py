"""Which files hold another program's lists, and how many images and captions they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.exchange.official import open_official
from aoq.pipeline.tables.exchange.outgoing import check_ids
from aoq.pipeline.tables.exchange.raw import RawLists
from aoq.pipeline.tables.exchange.trec import Rows, measure_run, read_run


def find_files(source: Path) -> dict[Direction, Path]:
    """The images' lists, and the captions' beside them."""
    if not source.name.startswith("i2t"):
        raise ValueError(
            f"{source} is not the name of a file with images' lists; name i2t_NAME.npy or i2t_NAME.trec, beside which "
            "the captions' lists lie as t2i_NAME.npy or t2i_NAME.trec."
        )
    files: dict[Direction, Path] = {"i2t": source, "t2i": source.with_name("t2i" + source.name.removeprefix("i2t"))}
    for path in files.values():
        if not path.is_file():
            raise FileNotFoundError(f"{path} is no file; a table needs the lists of images (i2t) and captions (t2i).")
    return files


def open_sources(
    files: Mapping[Direction, Path], image_ids: Sequence[str] | None, captions: int | None, work: Path
) -> dict[Direction, RawLists]:
    """Official `.npy` lists as they are; TREC runs by way of files in the folder `work`.

    A run has rows for all `image_ids` and so many `captions`; where these are not known, for as many as it speaks of.
    """
    if files["i2t"].suffix == ".npy":
        return {direction: open_official(path) for direction, path in files.items()}
    if image_ids is not None:
        check_ids(image_ids)
    images: Rows = None if image_ids is None else {name: row for row, name in enumerate(image_ids)}
    i2t, t2i = measure_run(files["i2t"], images, None), measure_run(files["t2i"], None, images)
    image_count = max(i2t.queries, t2i.documents) if image_ids is None else len(image_ids)
    caption_count = max(t2i.queries, i2t.documents) if captions is None else captions
    if t2i.queries > caption_count:
        raise ValueError(
            f"{files['t2i']} has a list for caption {t2i.queries - 1}, and there are captions 0 to {caption_count - 1}."
        )
    return {
        "i2t": read_run(files["i2t"], images, None, image_count, i2t.longest, work),
        "t2i": read_run(files["t2i"], None, images, caption_count, t2i.longest, work),
    }
