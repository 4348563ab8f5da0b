"""Publish a table with a data card, without pictures and texts.

    i2t.parquet, t2i.parquet, positives.parquet, manifest.json, certificates   the table, which reads back as one
    view/           a screen's judgement of each place
    images.parquet  image_id of each row; captions.parquet likewise; for one set, items.parquet
    README.md       the card, with YAML for the Hugging Face hub

Nothing in it describes this machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.card import VIEW, write_card
from aoq.pipeline.tables.files import MANIFEST, POSITIVES, directions_of, read_ids, read_manifest
from aoq.pipeline.tables.screens.view import read_view, write_view
from aoq.pipeline.tables.writing import write_ids


def publish_table(
    table: Path,
    output: Path,
    *,
    view: Path | None = None,
    image_ids: Sequence[str] | None = None,
    caption_ids: Sequence[str] | None = None,
    licence: str | None = None,
) -> list[str]:
    """Audit the table, check its view, write both to the new folder `output`, and name the files."""
    if findings := audit(table):
        more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise ValueError(f"{table} does not pass `aoq audit`: {findings[0]}{more}; mine it again.")
    manifest = read_manifest(table)
    judged = None if view is None else read_view(view, manifest)
    directions = directions_of(manifest)
    if len(directions) == 1 and caption_ids is not None:
        raise ValueError("the table is of one set, whose ids are --image-ids; leave out --caption-ids.")
    output.mkdir()
    files = (f"{direction}{ending}" for direction in directions for ending in (".parquet", ".certificates.parquet"))
    for name in (*files, POSITIVES, MANIFEST):
        if (table / name).is_file():
            shutil.copyfile(table / name, output / name)
    ids = {"images": image_ids, "captions": caption_ids}
    write_ids(output, read_ids(table, manifest) | {side: names for side, names in ids.items() if names is not None})
    if judged is not None:
        write_view(judged, output / VIEW)
    rules = () if judged is None else judged.manifest["rules"]
    write_card(output, name=output.name, licence=licence, rules=rules)
    return sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
