"""Other trainers' readers, as PyPI has them, read their exports."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.exports.conftest import DEPTHS, PICTURES, TEXTS, VECTORS, colour, groups, run, shown

NEMO = "nemo_automodel.components.datasets.llm.retrieval_dataset"

pytestmark = [pytest.mark.exports, pytest.mark.filterwarnings("ignore")]


def test_colpali_engine(reader, export, loaded, world):
    reader("colpali_engine.data.dataset")
    data = loaded(export("colpali", "t2i", *PICTURES)).data
    rows = [data[row] for row in range(len(data))]
    for row, (caption, own, listed) in zip(rows, groups(world, "t2i"), strict=True):
        assert shown(world, row["query"], *row["pos_target"]) == [caption, own]
        drawn = {*shown(world, *row["neg_target"])}
        assert len(drawn) == data.num_negatives
        assert drawn <= {*listed}


@pytest.mark.parametrize("packed", [(), ("--pack",)])
def test_nemo_automodel(packed, reader, export, world):
    folder = export("nemo", "t2i", *PICTURES, *packed)
    rows = reader(NEMO).make_retrieval_dataset(str(folder / "train.json"), n_passages=4)
    for row, (caption, own, listed) in zip(rows, groups(world, "t2i"), strict=True):
        assert shown(world, row["question"]) == [caption]
        assert row["doc_text"] == [""] * 4
        assert shown(world, *row["doc_image"]) == [own, *listed[:3]]
        assert row["doc_id"] == [world.ids[image] for image in (own, *listed[:3])]


@pytest.mark.parametrize("direction", DEPTHS)
def test_ms_swift(direction, reader, export, world):
    from PIL import Image

    template = reader("swift.template.template_inputs").TemplateInputs
    lines = (export("ms-swift", direction, *PICTURES) / "train.jsonl").read_text().splitlines()
    for line, (anchor, own, listed) in zip(lines, groups(world, direction), strict=True):
        inputs = template.from_dict(json.loads(line))
        rows = [(inputs.chosen, anchor, direction == "i2t")]
        documents = zip([*inputs.positive, *inputs.negative], [own, *listed], strict=True)
        for one, row, is_picture in [*rows, *((*each, direction == "t2i") for each in documents)]:
            assert one.messages[0]["content"] == ("<image>" if is_picture else world.captions[row])
            assert [colour(Image.open(path)) for path in one.images] == ([row] if is_picture else [])


@pytest.mark.parametrize("direction", DEPTHS)
def test_pylate(direction, reader, export, loaded, world):
    reader("pylate.utils.processing")
    rows = loaded(export("pylate", direction, *TEXTS, *VECTORS)).train
    for row, (anchor, own, listed) in zip(rows, groups(world, direction), strict=True):
        assert shown(world, row["query"], *row["documents"]) == [anchor, own, *listed]
        assert row["scores"][1:] == world.table[direction].scores[anchor].tolist()


@pytest.mark.parametrize("distilled", [False, True])
def test_flagembedding(distilled, reader, export, world, tmp_path):
    """It draws one of `pos`, and as many of `neg` as it is told."""
    folder = export("flagembedding", "t2i", *TEXTS, *(("--scores",) if distilled else ()))
    given = {"train_data": [str(folder)], "cache_path": str(tmp_path / "cache"), "max_example_num_per_dataset": 1000}
    given |= {"knowledge_distillation": distilled, "shuffle_ratio": 0.0, "train_group_size": 1 + DEPTHS["t2i"]}
    given |= {"query_instruction_for_retrieval": None, "passage_instruction_for_retrieval": None}
    kind = reader("FlagEmbedding.abc.finetune.embedder.AbsDataset").AbsEmbedderTrainDataset
    data = kind(SimpleNamespace(**given), None)
    rows = [data[row] for row in range(len(data))]
    for (query, passages, scores), (caption, own, listed) in zip(rows, groups(world, "t2i"), strict=True):
        drawn = shown(world, *passages)
        assert shown(world, query) == [caption]
        assert (drawn[0], sorted(drawn[1:])) == (own, sorted(listed))
        if distilled:
            known = dict(zip(drawn[1:], scores[1:], strict=True))
            assert [known[image] for image in listed] == world.table.t2i.scores[caption].tolist()


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
