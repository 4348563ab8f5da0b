"""NeMo Automodel's retrieval data: a JSON file of questions with ids, and a corpus in a folder of its own.

train.json                    corpus (its path), data: question_id, question, corpus_id, pos_doc, neg_doc (lists of id)
corpus/merlin_metadata.json   class (who reads the corpus), corpus_id
corpus/data/…                 image_filename, image; or id, text
"""

from __future__ import annotations

import json
from pathlib import Path

from aoq.pipeline.tables.exchange.lookups import write_lookup
from aoq.pipeline.tables.exchange.outgoing import Listed, Outgoing, Written

SHARD = "train-00000-of-00001.parquet"
"""Name of the data file; `datasets` finds it beside the metadata, which would be taken for data too."""
LOAD = """
from nemo_automodel.components.datasets.llm import make_retrieval_dataset
data = make_retrieval_dataset("$folder/train.json", n_passages=5)  # the positive, and the first four of each list
"""


def write_nemo(outgoing: Outgoing, folder: Path) -> Written:
    """Write the files; an anchor without positives or negatives is left out."""
    corpus, name = folder / "corpus", folder.name
    (corpus / "data").mkdir(parents=True)
    columns = ("image_filename", "image") if outgoing.candidates.are_pictures else ("id", "text")
    write_lookup(corpus / "data" / SHARD, outgoing.candidates, *columns, packed=outgoing.packed)
    reader = "ColPaliDataset" if outgoing.candidates.are_pictures else "TextQADataset"
    about = {"class": reader, "corpus_id": name}
    (corpus / "merlin_metadata.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    rows = 0
    with (folder / "train.json").open("w", encoding="utf-8") as file:
        file.write('{"corpus": {"path": "corpus"}, "data": [')
        for rows, one in enumerate(outgoing.complete(), start=1):
            file.write((",\n" if rows > 1 else "\n") + json.dumps(_question(outgoing, name, one), ensure_ascii=False))
        file.write("\n]}\n")
    return Written(rows, len(outgoing.anchors.ids) - rows)


def _question(outgoing: Outgoing, corpus: str, one: Listed) -> dict[str, object]:
    ids = outgoing.candidates.ids
    return {
        "question_id": outgoing.anchors.ids[one.anchor],
        "question": outgoing.anchors.values[one.anchor],
        "corpus_id": corpus,
        "pos_doc": [{"id": ids[row]} for row in one.positives.tolist()],
        "neg_doc": [{"id": ids[row]} for row in one.negatives.tolist()],
    }
