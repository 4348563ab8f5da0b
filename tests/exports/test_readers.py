"""Other trainers' readers read their exports: the real ones of those on PyPI, of the others what their source does."""

from __future__ import annotations

import json
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.exports.conftest import DEPTHS, PICTURES, TEXTS, VECTORS, colour, negatives, run

NEMO = "nemo_automodel.components.datasets.llm.retrieval_dataset"

pytestmark = [pytest.mark.exports, pytest.mark.filterwarnings("ignore")]


def test_colpali_engine(reader, export, loaded, world):
    reader("colpali_engine.data.dataset")
    rows = loaded(export("colpali", "t2i", *PICTURES)).data
    assert len(rows) == len(world.captions)
    for caption in range(len(rows)):
        row = rows[caption]
        assert row["query"] == world.captions[caption]
        assert [colour(picture) for picture in row["pos_target"]] == [caption // 2]
        listed = {colour(picture) for picture in row["neg_target"]}
        assert len(listed) == rows.num_negatives
        assert listed <= set(negatives(world, "t2i", caption))


@pytest.mark.parametrize("packed", [(), ("--pack",)])
def test_nemo_automodel(packed, reader, export, world):
    data = reader(NEMO)
    folder = export("nemo", "t2i", *PICTURES, *packed)
    rows = data.make_retrieval_dataset(str(folder / "train.json"), n_passages=4)
    assert len(rows) == len(world.captions)
    for caption, row in enumerate(rows):
        assert row["question"] == world.captions[caption]
        assert row["doc_text"] == [""] * 4
        documents = [caption // 2, *negatives(world, "t2i", caption)[:3]]
        assert [colour(picture) for picture in row["doc_image"]] == documents
        assert row["doc_id"] == [world.ids[image] for image in documents]


@pytest.mark.parametrize("direction", DEPTHS)
def test_ms_swift(direction, reader, export, world):
    from PIL import Image

    template = reader("swift.template.template_inputs").TemplateInputs
    folder = export("ms-swift", direction, *PICTURES)
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert len(lines) == len(world.captions)
    for caption, line in enumerate(lines):
        inputs = template.from_dict(line)
        anchor = caption if direction == "t2i" else caption // 2
        assert len(inputs.positive) == 1
        assert len(inputs.negative) == DEPTHS[direction]
        own, other = (caption, caption // 2) if direction == "t2i" else (caption // 2, caption)
        listed = [(inputs.chosen, own, direction == "i2t"), (inputs.positive[0], other, direction == "t2i")]
        listed += [
            (negative, row, direction == "t2i")
            for negative, row in zip(inputs.negative, negatives(world, direction, anchor), strict=True)
        ]
        for one, row, is_picture in listed:
            content = one.messages[0]["content"]
            assert content == ("<image>" if is_picture else world.captions[row])
            assert [colour(Image.open(path)) for path in one.images] == ([row] if is_picture else [])


@pytest.mark.parametrize("direction", DEPTHS)
@pytest.mark.parametrize("packed", [(), ("--pack",)])
def test_tevatron(direction, packed, datasets, export, world):
    """Its reader takes a row, draws ids from both lists, and looks them up by the corpus' `docid`."""
    folder = export("tevatron", direction, *PICTURES, *packed)
    train, corpus = (datasets.load_dataset(str(folder / name), split="train") for name in ("train", "corpus"))
    row_of = {docid: row for row, docid in enumerate(corpus["docid"])}
    assert len(row_of) == len(corpus) == (15 if direction == "t2i" else 30)
    for anchor, group in enumerate(train):
        picture, text = group.get("query_image"), group["query_text"]
        assert colour(picture) == anchor if direction == "i2t" else text == world.captions[anchor]
        own, listed = ([row_of[docid] for docid in group[f"{kind}_document_ids"]] for kind in ("positive", "negative"))
        assert own == ([anchor // 2] if direction == "t2i" else [2 * anchor, 2 * anchor + 1])
        assert listed == negatives(world, direction, anchor)
        document = corpus[random.Random(anchor).choice(own + listed)]
        if direction == "t2i":
            assert colour(document["image"]) == row_of[document["docid"]]
            assert "text" not in document
        else:
            assert document["text"] == world.captions[row_of[document["docid"]]]
            assert document.get("image") is None


@pytest.mark.parametrize("direction", DEPTHS)
def test_pylate(direction, reader, export, loaded, world):
    reader("pylate.utils.processing")
    rows = loaded(export("pylate", direction, *TEXTS, *VECTORS)).train
    assert len(rows) == len(world.captions)
    for caption, row in enumerate(rows):
        anchor, own = (caption, caption // 2) if direction == "t2i" else (caption // 2, caption)
        texts = (world.captions, world.described) if direction == "t2i" else (world.described, world.captions)
        assert row["query"] == texts[0][anchor]
        assert row["documents"] == [texts[1][one] for one in (own, *negatives(world, direction, anchor))]
        assert row["scores"][1:] == world.table[direction].scores[anchor].tolist()


@pytest.mark.parametrize("distilled", [False, True])
def test_flagembedding(distilled, reader, export, world, tmp_path):
    """It draws one of `pos`, and as many of `neg` as it is told."""
    folder = export("flagembedding", "t2i", *TEXTS, *(("--scores",) if distilled else ()))
    given = {"train_data": [str(folder)], "cache_path": str(tmp_path / "cache"), "max_example_num_per_dataset": 1000}
    given |= {"knowledge_distillation": distilled, "shuffle_ratio": 0.0, "train_group_size": 1 + DEPTHS["t2i"]}
    given |= {"query_instruction_for_retrieval": None, "passage_instruction_for_retrieval": None}
    dataset = reader("FlagEmbedding.abc.finetune.embedder.AbsDataset").AbsEmbedderTrainDataset
    rows = dataset(SimpleNamespace(**given), None)
    assert len(rows) == len(world.captions)
    for caption in range(len(rows)):
        query, passages, scores = rows[caption]
        listed = negatives(world, "t2i", caption)
        assert (query, passages[0]) == (world.captions[caption], world.described[caption // 2])
        assert sorted(passages[1:]) == sorted(world.described[image] for image in listed)
        if distilled:
            known = dict(zip(passages[1:], scores[1:], strict=True))
            found = [known[world.described[image]] for image in listed]
            assert found == world.table.t2i.scores[caption].tolist()


@pytest.mark.parametrize("name", ["ids", "n-tuple", "tevatron"])
def test_an_export_made_again_is_not_read_from_a_cache(name, datasets, export):
    found = []
    for depth in (1, 3):
        folder = export(name, "t2i", *PICTURES, "--num-negatives", depth)
        given = (f"{folder}/train",) if name == "tevatron" else (str(folder), "train" if name == "ids" else "default")
        row = datasets.load_dataset(*given, split="train")[0]
        listed = row.get("negative_ids", row.get("negative_document_ids", [one for one in row if "negative_" in one]))
        found.append(len(listed))
        shutil.rmtree(folder)
    assert found == [1, 3]


def test_what_is_published(datasets, world, tmp_path, monkeypatch):
    monkeypatch.chdir(world.folder)
    run("screen", "table", tmp_path / "view", "--mutual-rank", 2)
    run("publish", "table", tmp_path / "out", "--view", tmp_path / "view", "--image-ids", "ids.txt")
    names = ("i2t", "t2i_flags", "images", "positives")
    lists, flags, images, positives = (
        datasets.load_dataset(str(tmp_path / "out"), name, split="train") for name in names
    )
    assert lists["negative_ids"][:] == world.table.i2t.negative_ids.tolist()
    assert np.shape(flags["flags"][:]) == world.table.t2i.negative_ids.shape
    assert images["image_id"][:] == world.ids
    assert positives["image_id"][:] == [caption // 2 for caption in range(len(world.captions))]
