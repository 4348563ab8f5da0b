"""open_clip's own loop, losses and readers with our data and losses, on a tiny model of a configuration."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from copy import deepcopy
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from aoq.integrations.open_clip import (
    DistilledLoss,
    OfflineClipLoss,
    OfflineQuintupletLoss,
    OfflineSigLipLoss,
    TableData,
    carry_rows,
)
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.images import decode
from aoq.pipeline.prepare.photographs import open_photographs
from tests.exports.conftest import run
from tests.prepare import tiny
from tests.tutorials import blocks, page, save_data_set

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parent.parent.parent
RECIPE = ROOT / "docs" / "recipes" / "open_clip_train.py"
SHIMMED = Path(__file__).parent / "with_torchvision.py"
AOQ = Path(sys.executable).parent / "aoq"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
TINY = {
    "model_cfg": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    },
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
}


@pytest.fixture(scope="module", autouse=True)
def open_clip():
    tiny.import_torchvision()
    import open_clip

    return open_clip


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "open_clip_config.json").write_text(json.dumps(TINY))
    return f"local-dir:{folder}"


@pytest.fixture
def made(open_clip, name, demo):
    """A model, and data for it."""
    torch.manual_seed(0)
    model, _, preprocess = open_clip.create_model_and_transforms(name, output_dict=True)
    given = {"preprocess": preprocess, "tokenizer": open_clip.get_tokenizer(name)}
    return Namespace(model=carry_rows(model), data=TableData.of_folder(demo.table, demo.folder, **given), **given)


def test_without_a_table_losses_are_open_clips(open_clip, demo):
    """Batches hold one image and one caption a pair, so there are no further positives."""
    generator = torch.Generator().manual_seed(1)
    images, captions = (F.normalize(torch.randn(24, 5, generator=generator), dim=1) for _ in "it")
    rows = torch.stack([torch.arange(24), 2 * torch.arange(24), torch.zeros(24, dtype=torch.int64)], dim=1)
    scale, bias = torch.tensor(7.0), torch.tensor(-3.0)
    ours = OfflineClipLoss(demo.table, negatives=None)(images, captions, scale, rows=rows, output_dict=True)
    theirs = open_clip.ClipLoss()(images, captions, scale, output_dict=True)
    assert ours.keys() == theirs.keys()
    torch.testing.assert_close(*(one["contrastive_loss"] for one in (ours, theirs)))
    ours = OfflineSigLipLoss(demo.table, negatives=None)(images, captions, scale, bias, rows, output_dict=True)
    theirs = open_clip.loss.SigLipLoss()(images, captions, scale, bias, output_dict=True)
    torch.testing.assert_close(*(one["contrastive_loss"] for one in (ours, theirs)))


def trained(made, batches, loss, **options):
    """The weights after an epoch of these batches in open_clip's loop, with plain gradient descent."""
    from open_clip_train.params import parse_args
    from open_clip_train.train import train_one_epoch

    class Loader(list):
        num_batches, num_samples = len(batches), len(batches)

    args = parse_args(["--device", "cpu", "--precision", "fp32", "--skip-scheduler"])
    vars(args).update(distill=False, wandb=False, rank=0, local_rank=0, world_size=1, **options)
    model = deepcopy(made.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Namespace(dataloader=Loader(batches), set_epoch=lambda epoch: None)
    train_one_epoch(model, {"train": data}, loss, 0, optimizer, None, None, None, args)
    return model.state_dict()


@pytest.mark.parametrize(("kind", "negatives"), [(OfflineClipLoss, "offline"), (OfflineQuintupletLoss, "quintuplet")])
def test_accumulated_batches_are_one(made, demo, kind, negatives):
    (images, texts), loss = next(iter(made.data.loader(12, negatives=negatives).dataloader)), kind(demo.table)
    groups = torch.arange(len(texts)).unflatten(0, (-1, 12))
    parts = [groups[:, half].flatten() for half in (slice(0, 6), slice(6, 12))]
    whole = trained(made, [(images, texts)], loss)
    in_parts = trained(made, [(images[part], texts[part]) for part in parts], loss, accum_freq=2)
    before = made.model.state_dict()
    assert any(not torch.equal(weights, before[name]) for name, weights in whole.items())
    for name, weights in whole.items():
        if name != "logit_scale":  # of which the loop adds up the whole gradient once a part, with any loss
            torch.testing.assert_close(in_parts[name], weights, rtol=1e-4, atol=1e-6)


def test_cached_teachers_teach_beside_open_clips_loss(made, demo, open_clip):
    images, texts = next(iter(made.data.loader(12, negatives=None).dataloader))
    rng = np.random.default_rng(0)
    teachers = [(rng.normal(size=(24, 8)), rng.normal(size=(48, 8)))]
    loss = DistilledLoss(open_clip.ClipLoss(), demo.table, teachers, weight=1.0)

    def terms():
        with torch.no_grad():
            return loss(**made.model(images, texts), output_dict=True)

    before = terms()
    made.model.load_state_dict(trained(made, [(images, texts)] * 10, loss))
    assert before.keys() == {"contrastive_loss", "distillation_loss"}
    assert terms()["distillation_loss"] < 0.9 * before["distillation_loss"]


def test_in_bfloat16_similarities_stay_float32(made, demo):
    """The loss under autocast is that of the same features without."""
    images, texts = next(iter(made.data.loader(6).dataloader))
    loss = OfflineClipLoss(demo.table)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            found = made.model(images, texts)
            inside = loss(**found)
        assert torch.equal(inside, loss(**found))


def launched(processes, options, demo, name, output):
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    given = ["--table", demo.path, "--train-data", demo.folder, "--model", name, "--weights", output, *options]
    given += ["--batch-size", 12 // processes, "--epochs", 2, "--warmup", 0, "--workers", 0, "--log-every-n-steps", 1]
    given += ["--device", "cpu", "--precision", "fp32", "--aug-cfg", "scale=(1.0,1.0)"]
    command = [sys.executable, *(start if processes > 1 else []), SHIMMED, RECIPE, *given]
    ended = subprocess.run(
        [str(one) for one in command], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    losses = [float(one) for one in re.findall(r" Loss: (\S+) ", ended.stderr)]
    return losses, torch.load(output, weights_only=True)


@pytest.mark.parametrize(
    "options", [(), ("--siglip",), ("--negatives", "quintuplet"), ("--negatives", "none", "--batches", "mined")]
)
def test_the_recipe_trains(options, demo, name, tmp_path):
    losses, _ = launched(1, options, demo, name, tmp_path / "weights.pt")
    assert len(losses) == 8
    assert sum(losses[-4:]) < sum(losses[:4])


def test_two_processes_end_where_one_does(demo, name, tmp_path):
    """AdamW would blow up the rounding of gradients near zero; a large epsilon keeps it."""
    assert len(RECIPE.read_text().splitlines()) < 100
    (_, one), (_, two) = (launched(number, ("--eps", 0.01), demo, name, tmp_path / f"{number}.pt") for number in (1, 2))
    assert one.keys() == two.keys()
    for key, weights in one.items():
        torch.testing.assert_close(two[key], weights, rtol=1e-4, atol=1e-5)


def test_the_tutorial_trains(open_clip, tmp_path):
    torch.manual_seed(0)
    tiny_pair = tmp_path / "pair"
    tiny_pair.mkdir()
    (tiny_pair / "open_clip_config.json").write_text(json.dumps(TINY))
    torch.save(open_clip.CLIP(**TINY["model_cfg"]).state_dict(), tiny_pair / "open_clip_pytorch_model.bin")
    (tmp_path / "luigi.cfg").write_text("[engine]\nthreads = 1\n")
    save_data_set(tmp_path / "flickr", 150)
    (shell,) = blocks(page("open_clip"), "sh")
    shell = shell.replace("open_clip:ViT-B-32/laion2b_s34b_b79k", f"open_clip:{tiny_pair}")
    shell = shell.replace("--model ViT-B-32 --pretrained laion2b_s34b_b79k", f"--model local-dir:{tiny_pair}")
    shell = shell.replace("open_clip_train.py", f"{SHIMMED} {RECIPE}").replace("\naoq ", f"\n{SHIMMED} {AOQ} ")
    for line in shell.splitlines()[1:]:
        command = line.replace("torchrun", "-m torch.distributed.run --standalone")
        command += " --device cpu --precision fp32 --workers 0" if "torchrun" in line else ""
        ended = subprocess.run(
            [sys.executable, *shlex.split(command)], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
        )
        assert ended.returncode == 0, f"{line}\n{ended.stderr}"
    assert len(torch.load(tmp_path / "open_clip.pt", weights_only=True)) > 10


@pytest.fixture
def shards(demo, tmp_path):
    """Mined batches as shards, and the rows in their order."""
    given = ("--batch-size", 6, "--community", 3, "--write-shards", "--data", demo.folder)
    run("batches", demo.path, tmp_path / "batches", *given)
    rows = pq.read_table(tmp_path / "batches" / "epoch-000.parquet").to_pandas()[["image_id", "caption_id"]].to_numpy()
    assert len(rows) == 48
    return Namespace(folder=tmp_path / "batches" / "epoch-000", rows=rows)


def expected(made, demo, rows):
    """Pixels and tokens of these rows."""
    split = open_split(demo.folder, "train")
    photographs = open_photographs(demo.folder, "train", split.image_count)
    pixels = [made.preprocess(decode(photographs.read(image)).image) for image in rows[:, 0].tolist()]
    return torch.stack(pixels), made.tokenizer([split.captions[caption] for caption in rows[:, 1].tolist()])


def test_open_clip_reads_shards_in_order(made, demo, shards):
    """open_clip reads evaluation shards in order; it shuffles those that it trains on."""
    from open_clip_train.data import get_wds_dataset
    from open_clip_train.params import parse_args

    args = parse_args(["--val-data", str(shards.folder / "000000.tar"), "--batch-size", "6", "--workers", "0"])
    found = list(get_wds_dataset(args, made.preprocess, False, tokenizer=made.tokenizer).dataloader)
    assert [len(texts) for _, texts in found] == [6] * 8
    for part, together in zip(expected(made, demo, shards.rows), zip(*found, strict=True), strict=True):
        assert torch.equal(torch.cat(together), part)


def test_the_documents_pipeline_reads_shards_with_their_rows(made, demo, shards, monkeypatch):
    (block,) = re.findall(r"```\n(import webdataset.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    monkeypatch.chdir(shards.folder.parent.parent)
    names = {"preprocess": made.preprocess, "tokenizer": made.tokenizer, "batch_size": 6}
    exec(block, names)
    images, texts = (torch.cat(together) for together in zip(*names["batches"], strict=True))
    pixels, tokens = expected(made, demo, shards.rows)
    length = made.model.context_length
    assert torch.equal(images, pixels)
    assert torch.equal(texts[:, :length], tokens)
    assert texts[:, length:-1].tolist() == shards.rows.tolist()
    loss = OfflineClipLoss(demo.table, negatives=None)(**made.model(images[:6], texts[:6]))
    assert np.isfinite(loss.item())
