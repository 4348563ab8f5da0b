"""Two steps' losses and gradients on batches of 8 pairs, in one process or two; then data that differ by process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import numpy as np
import torch

import aoq
from aoq.integrations.open_clip import (
    DistilledLoss,
    OfflineClipLoss,
    OfflineQuintupletLoss,
    OfflineSigLipLoss,
    TableData,
)


def distilled(table: aoq.NegativeTable) -> DistilledLoss:
    rng = np.random.default_rng(1)
    return DistilledLoss(OfflineClipLoss(table), table, [(rng.normal(size=(10, 5)), rng.normal(size=(40, 5)))])


LOSSES = {
    "clip": (OfflineClipLoss, {}, "offline"),
    "adaptive": (OfflineClipLoss, {"adaptive": True}, "offline"),
    "several": (OfflineClipLoss, {"negatives": 3}, 3),
    "plain": (OfflineClipLoss, {"negatives": None}, None),
    "siglip": (OfflineSigLipLoss, {}, "offline"),
    "quintuplet": (OfflineQuintupletLoss, {}, "quintuplet"),
    "distilled": (distilled, {}, "offline"),
}


def refused(make: Callable[[], object]) -> str:
    try:
        make()
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    rng, image_of = np.random.default_rng(0), np.arange(40) // 4
    vectors = [torch.tensor(rng.normal(size=(rows, 6)), dtype=torch.float32) for rows in (10, 40)]
    table = aoq.hard_negatives(*vectors, image_of, h=(8, 4))
    given = {"preprocess": lambda row: vectors[0][row], "tokenizer": lambda texts: torch.tensor([[int(texts[0])]])}
    data, found = TableData(table, range(10), [str(row) for row in range(40)], **given), {}
    for name, (kind, options, negatives) in LOSSES.items():
        train, loss = data.loader(8 // ranks, negatives=negatives), kind(table, **options)
        weights = torch.eye(6).add(0.1).requires_grad_()
        scale, bias = torch.tensor(2.0, requires_grad=True), torch.tensor(-1.0, requires_grad=True)
        train.set_epoch(1)
        for _, (images, texts) in zip(range(2), train.dataloader, strict=False):
            outputs = {
                f"{name}_features": torch.nn.functional.normalize(side @ weights, dim=1)
                for name, side in (("image", images), ("text", vectors[1][texts[:, 0]]))
            }
            outputs |= {"logit_scale": scale.exp(), "logit_bias": bias}
            value = sum(loss(**outputs, rows=texts[:, 1:], output_dict=True).values())
            value.backward()
        for part in (weights, scale, bias):
            if ranks > 1:  # as DistributedDataParallel does
                torch.distributed.all_reduce(part.grad)
                part.grad /= ranks
        found[name] = [value.item(), *weights.grad.flatten().tolist(), scale.grad.item(), bias.grad.item()]
    if ranks > 1:
        rank = torch.distributed.get_rank()
        other = aoq.hard_negatives(*vectors, image_of, h=(8 - rank, 4))
        texts = [str(row + rank) for row in range(40)]
        found["refused"] = [
            refused(lambda: TableData(other, range(10), [""] * 40, **given).loader(4)),
            refused(lambda: TableData(table, range(10), texts, **given).loader(4)),
            refused(lambda: TableData(table, [f"{row + rank}.png" for row in range(10)], [""] * 40, **given).loader(4)),
            refused(lambda: data.loader(4, seed=rank)),
            refused(lambda: TableData(table.screen(range_max=2 + rank), range(10), [""] * 40, **given).loader(4)),
        ]
        torch.distributed.barrier()
    if int(os.environ.get("RANK", "0")) == 0:
        json.dump(found, sys.stdout)
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
