"""colpali-engine's trainer, collator and losses on a table, with a model that sees colours and letters."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler

import aoq
from tests.exports.conftest import DEPTHS, EACH, colour, load_reader, readers_forgotten
from tests.tutorials import blocks, page, run, save_data_set

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def colpali():
    """The names that users import, without the models of colpali-engine and what these need."""
    with readers_forgotten("aoq.integrations.colpali"):
        load_reader("colpali_engine.trainer.contrastive_trainer")
        data = load_reader("colpali_engine.data.dataset")
        processor = load_reader("colpali_engine.models.paligemma.colpali.processing_colpali").ColPaliProcessor
        sys.modules["colpali_engine.models.paligemma"].ColPaliProcessor = processor
        from aoq.integrations import colpali as ours

        yield SimpleNamespace(
            Corpus=data.Corpus,
            Collator=load_reader("colpali_engine.collators.visual_retriever_collator").VisualRetrieverCollator,
            losses=load_reader("colpali_engine.loss.late_interaction_losses"),
            **{name: getattr(ours, name) for name in ("TableDataset", "TableSampler", "TableTrainer")},
        )


@pytest.fixture(scope="module")
def pages(world):
    from PIL import Image

    return [{"doc": Image.open(path).convert("RGB")} for path in world.pictures]


@pytest.fixture
def data(colpali, world, pages):
    def make(**options):
        return colpali.TableDataset(world.table, world.captions, colpali.Corpus(pages), **options)

    return make


class Processor:
    """Texts as letters, pictures as their pixels; it remembers what it was given."""

    query_prefix, query_augmentation_token = "", "."

    def __init__(self):
        self.texts, self.colours = [], []

    def process_texts(self, texts):
        self.texts.append(texts)
        letters = [[ord(letter) for letter in text.rstrip(".")] for text in texts]
        longest = max(map(len, letters))
        return {"input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in letters])}

    def process_images(self, images):
        self.colours.append([colour(image) for image in images])
        pixels = torch.tensor(np.stack([np.asarray(image)[:2, :2, 0] for image in images]), dtype=torch.float32)
        return {"pixel_values": pixels.flatten(1), "input_ids": torch.zeros(len(images), 1, dtype=torch.int64)}


class Model(nn.Module):
    """(B, tokens, 8): a vector a letter, or a pixel."""

    def __init__(self):
        super().__init__()
        self.letters, self.pixels = nn.Embedding(128, 8), nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, input_ids, pixel_values=None):
        found = self.letters(input_ids) if pixel_values is None else self.pixels(pixel_values[..., None] / 255)
        return nn.functional.normalize(found, dim=-1)


def trained(colpali, data, loss, tmp_path, **options):
    from transformers import TrainingArguments

    torch.manual_seed(0)
    processor, model, losses = Processor(), Model(), []
    before = [parameter.detach().clone() for parameter in model.parameters()]
    given = {"output_dir": str(tmp_path), "report_to": "none", "save_strategy": "no", "use_cpu": True}
    given |= {"num_train_epochs": 2, "per_device_train_batch_size": 6, "dataloader_drop_last": True}
    colpali.TableTrainer(
        model=model,
        args=TrainingArguments(**given),
        train_dataset=data,
        data_collator=colpali.Collator(processor),
        loss_func=lambda **given: losses.append(loss(**given)) or losses[-1],
        is_vision_model=True,
        **options,
    ).train()
    assert all(np.isfinite([one.item() for one in losses]))
    after = list(model.parameters())
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return processor, losses


def test_the_tutorial_trains(colpali, clip, tmp_path, monkeypatch):
    """The tutorial trains as it stands, with a model small enough for a test."""
    (tmp_path / "luigi.cfg").write_text("[engine]\nthreads = 1\n")
    save_data_set(tmp_path / "flickr", 60)
    tutorial = page("colpali").replace("openai/clip-vit-base-patch32", str(clip))
    run(blocks(tutorial, "sh")[0], tmp_path)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(tutorial, "python")
    names = {"Corpus": colpali.Corpus, "VisualRetrieverCollator": colpali.Collator}
    names |= {"model": Model(), "processor": Processor(), **vars(colpali.losses)}
    theirs = ("from colpali_engine", "model =", "processor =")
    code = "\n".join(line for line in code.splitlines() if not line.startswith(theirs))
    code = code.replace('output_dir="trained"', 'output_dir="trained", use_cpu=True, report_to="none"')
    exec(compile(code, "tutorial", "exec"), names)
    assert names["trainer"].state.global_step == len(names["data"]) // 16
    assert len(names["processor"].texts) == names["trainer"].state.global_step


@pytest.mark.parametrize("batches", ["random", "mined"])
def test_the_trainer_sees_pairs_with_their_negatives_in_turn(colpali, data, world, tmp_path, batches):
    made = data(num_negatives=2, seed=5)
    loss = colpali.losses.ColbertPairwiseNegativeCELoss()
    processor, losses = trained(colpali, made, loss, tmp_path, batches=batches, community=3)
    assert len(losses) == len(processor.texts) == 10
    captions = {text: row for row, text in enumerate(world.captions)}
    seen = [[captions[text.rstrip(".")] for text in batch] for batch in processor.texts]
    for epoch in (0, 1):
        assert sorted(row for batch in seen[5 * epoch : 5 * epoch + 5] for row in batch) == list(range(30))
    assert seen[:5] != seen[5:]
    rotation = aoq.Rotation(world.table, "t2i", k=2, seed=5)
    for step, batch in enumerate(seen):
        documents, negatives = processor.colours[2 * step], processor.colours[2 * step + 1]
        assert documents == [row // EACH for row in batch]
        assert len(set(documents)) == len(documents)
        assert negatives == rotation.negatives(batch, step // 5).flatten().tolist()


def test_triples_bring_companions(colpali, data, world, tmp_path):
    """The losses used here take no further negatives."""
    made = data(num_negatives=0, seed=1)
    processor, losses = trained(colpali, made, colpali.losses.ColbertLoss(), tmp_path, batches="triples")
    ours = aoq.BatchSampler(world.table, batch_size=6, companions="anchors", seed=1, drop_last=True)
    expected = [ours.batch(epoch, step) for epoch in (0, 1) for step in range(len(ours))]
    assert len(losses) == len(expected) == len(processor.colours)
    for texts, documents, pairs in zip(processor.texts, processor.colours, expected, strict=True):
        assert [text.rstrip(".") for text in texts] == [world.captions[row] for row in pairs[:, 1]]
        assert documents == pairs[:, 0].tolist()


def test_rows_are_found_by_id(colpali, world, pages):
    """Queries and documents in another order than the table."""
    captions = [f"c{row}" for row in range(30)]
    table = replace(world.table, ids={"images": world.ids, "captions": captions})
    order, other = (np.random.default_rng(0).permutation(count) for count in (30, 15))
    corpus = colpali.Corpus([pages[row] for row in other], {world.ids[row]: place for place, row in enumerate(other)})
    queries, ids = ([values[row] for row in order] for values in (world.captions, captions))
    made = colpali.TableDataset(table, queries, corpus, query_ids=ids)
    for row, (image, caption) in enumerate(made.true_pairs.tolist()):
        found = made[row]
        assert (found["query"], [colour(one) for one in found["pos_target"]]) == (world.captions[caption], [image])
        assert [colour(one) for one in found["neg_target"]] == made.data[row]["negative_ids"].tolist()


@pytest.mark.parametrize("batches", ["random", "mined"])
def test_several_processes_have_batches_of_their_own_without_matches(colpali, data, batches):
    """accelerate shares the batches out; a step of all processes holds every image at most once."""
    from accelerate.data_loader import BatchSamplerShard

    sampler = colpali.TableSampler(data(), 3, batches=batches, processes=2, community=3)
    sampler.set_epoch(1)
    batched = BatchSampler(sampler, 3, drop_last=True)
    shares = [list(BatchSamplerShard(batched, num_processes=2, process_index=rank)) for rank in (0, 1)]
    rows = [row for step in zip(*shares, strict=True) for batch in step for row in batch]
    assert sorted(rows) == list(range(30))
    images = data().true_pairs[rows, 0].reshape(-1, 6)
    assert all(len(set(step)) == 6 for step in images.tolist())


def test_what_a_screen_suspects_does_not_meet(colpali, world, pages):
    screened = world.table.screen(mutual_rank=2)
    made = colpali.TableDataset(screened, world.captions, colpali.Corpus(pages), num_negatives=1)
    listed, flags = world.table.t2i.negative_ids, screened.flags("t2i")
    had = set()
    for epoch in range(DEPTHS["t2i"]):
        made.set_epoch(epoch)
        had |= {(row["anchor_id"], *row["negative_ids"].tolist()) for row in made.data}
    assert had == {(anchor, listed[anchor, place]) for anchor, place in zip(*np.nonzero(flags == 0), strict=True)}
    batches = list(BatchSampler(colpali.TableSampler(made, 3), 3, drop_last=True))
    suspected = {(listed[anchor, place], anchor) for anchor, place in zip(*np.nonzero(flags), strict=True)}
    for batch in made.true_pairs[np.array(batches)]:
        assert not suspected & {(image, caption) for image in batch[:, 0] for caption in batch[:, 1]}


def test_other_data_and_options_are_refused(colpali, data, world, pages, tmp_path):
    with pytest.raises(ValueError, match="14 images are given for 15 rows"):
        colpali.TableDataset(world.table, world.captions, colpali.Corpus(pages[:-1]))
    with pytest.raises(ValueError, match="it is 'random', 'mined' or 'triples'"):
        colpali.TableSampler(data(), 3, batches="hard")
    with pytest.raises(ValueError, match="a batch of 4 does not hold whole triples; give a multiple of 3"):
        colpali.TableSampler(data(), 4, batches="triples")
    with pytest.raises(ValueError, match="train_dataset is a list; TableTrainer trains on one TableDataset"):
        colpali.TableTrainer(train_dataset=[data()])
