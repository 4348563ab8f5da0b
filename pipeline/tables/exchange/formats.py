"""The formats: the rows, columns and files of each, the lines that load them, and the form of images.

A pair is an anchor with one of its positives. sentence-transformers and PyLate make a column of each place, and
colpali-engine a tensor of each batch, so all their rows have the requested number of negatives. The other trainers draw
from lists of any length.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from aoq.pipeline.tables.exchange.bare_lists import write_official, write_run
from aoq.pipeline.tables.exchange.negclip import write_negclip
from aoq.pipeline.tables.exchange.outgoing import Names, Outgoing
from aoq.pipeline.tables.exchange.writers import Format, Lookup


def _swift_line(outgoing: Outgoing, _: str, row: dict[str, Any]) -> dict[str, Any]:
    """Make ms-swift's messages; `<image>` stands for the next of a message's images."""

    def messages(side: Names, value: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": "<image>" if side.are_pictures else value}]

    anchors, candidates = outgoing.anchors, outgoing.candidates
    line: dict[str, Any] = {"messages": messages(anchors, row["anchor"])}
    if anchors.are_pictures:
        line["images"] = [row["anchor"]]
    for part in ("positive", "negative"):
        line[f"{part}_messages"] = [messages(candidates, value) for value in row[part]]
        if candidates.are_pictures:
            line[f"{part}_images"] = [[value] for value in row[part]]
    return line


def _nemo_line(_: Outgoing, folder: str, row: dict[str, Any]) -> dict[str, Any]:
    documents = {part: [{"id": name} for name in row.pop(part)] for part in ("pos_doc", "neg_doc")}
    return {**row, "corpus_id": folder, **documents}


def _write_nemo_reader(outgoing: Outgoing, folder: Path) -> None:
    """Name the class that reads the corpus."""
    reader = "ColPaliDataset" if outgoing.candidates.are_pictures else "TextQADataset"
    about = json.dumps({"class": reader, "corpus_id": folder.name}) + "\n"
    (folder / "corpus" / "merlin_metadata.json").write_text(about, encoding="utf-8")


LOAD_ROWS = """
from datasets import load_dataset
train = load_dataset("$folder", split="train")
"""
LOAD_IDS = """
from datasets import load_dataset
from sentence_transformers.util import resolve_ids
train, $tables = (load_dataset("$folder", name, split="train") for name in ("train", $names))
train.set_transform(resolve_ids({"query_id": $queries, "positive_id": $documents, "negative_ids": $documents}))
"""
LOAD_TEVATRON = """
from tevatron.retriever.arguments import DataArguments
from tevatron.retriever.dataset import TrainDataset
data = TrainDataset(DataArguments(dataset_name="$folder/train", corpus_name="$folder/corpus"))
"""
LOAD_COLPALI = """
from colpali_engine.data import ColPaliEngineDataset, Corpus
from datasets import load_dataset
train, corpus = (load_dataset("$folder", name, split="train") for name in ("train", "corpus"))
data = ColPaliEngineDataset(train, Corpus(corpus), "query", "positive_passages", "negative_passages")
"""
LOAD_NEMO = """
from nemo_automodel.components.datasets.llm import make_retrieval_dataset
data = make_retrieval_dataset("$folder/train.json", n_passages=5)  # the positive, and the first four of each list
"""
LOAD_SWIFT = """
# Every listed negative is encoded with its pair: --num-negatives sets the cost of a step.
swift sft --dataset $folder/train.jsonl --task_type embedding --loss_type infonce …
"""
LOAD_VLM2VEC = """
$folder:  # in the trainer's dataset config: branch b3, as the main branch trains on no negatives
  {dataset_parser: mmeb_neg, dataset_name: $folder, subset_name: default, dataset_split: train, image_dir: "",
   num_hardneg: 4, weight: 1}
"""
LOAD_NEGCLIP = """
# open_clip with NegCLIP's CsvDataset, which reads lists of negatives
python -m training.main --dataset-type csv --train-data $folder/train.tsv --csv-img-key filepath \\
    --csv-caption-key title --csv-hard-captions-key neg_caption …
"""
LOAD_PYLATE = """
from datasets import load_dataset
from pylate.utils import KDProcessing
train, queries, documents = (load_dataset("$folder", name, split="train") for name in ("train", "queries", "documents"))
train.set_transform(KDProcessing(queries=queries, documents=documents).transform)
"""
LOAD_FLAGEMBEDDING = """
torchrun -m FlagEmbedding.finetune.embedder.encoder_only.base --train_data $folder/train.jsonl --train_group_size 8 …
"""
LOAD_RUN = """
aoq import-table $folder/i2t.trec table --pairs pairs.npy  # of two sides; or any reader of runs: ir_measures, trec_eval
"""
LOAD_OFFICIAL = """
aoq import-table $folder/i2t_$folder.npy table --pairs pairs.npy  # of two sides; or the code of 2020
"""

SWIFT_PLACEHOLDERS = ("<image>", "<video>", "<audio>", "<bbox>", "<ref-object>", "<cot-process>", "<start-image>")
NEMO_CORPUS = "corpus/data/train-00000-of-00001.parquet"
"""`datasets` finds a file of this name in a folder beside the metadata, which it would otherwise take for data."""
MARGIN_LOSSES = "MarginMSELoss and DistillKLDivLoss"
_for_sentence_transformers = partial(Format, LOAD_ROWS, needs_endings=True, scores="optional")

FORMATS: dict[str, Format] = {
    "triplet": _for_sentence_transformers(
        one_each=("positives", "negatives"),
        columns="anchor=anchor.value positive=positive.value negative=negative.value scores=documents.score",
        scores_are_for=MARGIN_LOSSES,
    ),
    "n-tuple": _for_sentence_transformers(
        full=True,
        columns="anchor=anchor.value positive=positive.value negative_n=negatives.value scores=documents.score",
        scores_are_for=MARGIN_LOSSES,
    ),
    "labeled-pair": _for_sentence_transformers(
        one_each=("documents",),
        columns="anchor=anchor.value positive=document.value label=document.label score=document.score",
    ),
    "labeled-list": _for_sentence_transformers(
        columns="anchor=anchor.value positive=documents.value labels=documents.label scores=documents.score",
        scores_are_for="listwise losses of CrossEncoder",
    ),
    "ids": Format(
        LOAD_IDS,
        full=True,
        columns="query_id=anchor.id positive_id=positive.id negative_ids=negatives.id scores=documents.score",
        lookups=(
            Lookup("{noun}s.parquet", "anchors", ("{noun}_id", "{noun}_id")),
            Lookup("{noun}s.parquet", "candidates", ("{noun}_id", "{noun}_id")),
        ),
        images="lookup",
        scores="optional",
        scores_are_for=MARGIN_LOSSES,
    ),
    "tevatron": Format(
        LOAD_TEVATRON,
        one_each=(),
        columns="query_id=anchor.id query_text=anchor.text query_image=anchor.picture "
        "positive_document_ids=positives.id negative_document_ids=negatives.id",
        path="train/train.parquet",  # a folder for each table: the trainer takes one name for each
        lookups=(Lookup("corpus/train.parquet", "candidates", ("docid", "docid")),),
        images="lookup",
    ),
    "colpali": Format(
        LOAD_COLPALI,
        full=True,
        columns="query=anchor.value positive_passages=positives.number negative_passages=negatives.number",
        lookups=(Lookup("corpus.parquet", "candidates", (None, None), ("doc", "doc")),),
        images="lookup",
        queries="text",
    ),
    "nemo": Format(
        LOAD_NEMO,
        one_each=(),
        columns="question_id=anchor.id question=anchor.value pos_doc=positives.id neg_doc=negatives.id",
        path="train.json",
        line=_nemo_line,
        frame=('{"corpus": {"path": "corpus"}, "data": [\n', ",\n", "\n]}\n"),
        lookups=(Lookup(NEMO_CORPUS, "candidates", ("id", "image_filename")),),
        finish=_write_nemo_reader,
        images="lookup",
        queries="text",
    ),
    "ms-swift": Format(
        LOAD_SWIFT,
        "bash",
        columns="anchor=anchor.value positive=positives.value negative=negatives.value",
        path="train.jsonl",
        line=_swift_line,
        placeholders=SWIFT_PLACEHOLDERS,
    ),
    # The parser `mmeb_neg` of branch b3 zips texts and paths, and opens a path where there is one.
    "vlm2vec": Format(
        LOAD_VLM2VEC,
        "yaml",
        columns="qry=anchor.query qry_image_path=anchor.path pos_text=positive.document pos_image_path=positive.path "
        "neg_text=negatives.document neg_image_path=negatives.path",
        placeholders=("<|image_1|>",),
    ),
    "negclip": Format(LOAD_NEGCLIP, "bash", write_folder=write_negclip, directions="joined"),
    "pylate": Format(
        LOAD_PYLATE,
        full=True,
        columns="query_id=anchor.id document_ids=documents.id scores=documents.score",
        lookups=(
            Lookup("queries.parquet", "anchors", ("query_id", None)),
            Lookup("documents.parquet", "candidates", ("document_id", None)),
        ),
        images="text",
        scores="always",
    ),
    "flagembedding": Format(
        LOAD_FLAGEMBEDDING,
        "bash",
        one_each=(),
        columns="query=anchor.value pos=positives.value neg=negatives.value "
        "pos_scores=positives.score neg_scores=negatives.score",
        path="train.jsonl",
        images="text",
        scores="optional",
        scores_are_for="--knowledge_distillation True",
    ),
    "trec": Format(LOAD_RUN, "bash", write_folder=write_run, images="id", scores="of negatives", directions="each"),
    "aoq": Format(LOAD_OFFICIAL, "bash", write_folder=write_official, images="id", directions="each"),
}


def find_format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"there is no format {name!r}; formats are {', '.join(FORMATS)}.")
    return FORMATS[name]
