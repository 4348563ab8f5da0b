"""Two steps of the trainer on batches of 12 pairs, in one process or two: the weights that come of it."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

import aoq
from aoq.integrations.sentence_transformers import DistilledLoss, OfflineQuintupletLoss, TableData


def main() -> None:
    clip, folder, cached, output = sys.argv[1:]
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    model = SentenceTransformer(clip, device="cpu")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for name, parameter in model.named_parameters():
        if name.endswith("logit_scale"):  # no loss reads it, and DDP waits for its gradient
            parameter.requires_grad_(False)
    pictures = [f"{folder}/pictures/photo_{row}.png" for row in range(15)]
    captions = [f"a caption of image {row // 2}, {row % 2}" for row in range(30)]
    table = aoq.read_table(f"{folder}/table")
    data = TableData(table, pictures, captions, caption_rows=True)
    given = {"output_dir": output, "report_to": "none", "save_strategy": "no", "use_cpu": True, "max_steps": 2}
    given |= {"per_device_train_batch_size": 12 // ranks, "dataloader_drop_last": True, "batch_sampler": data.batches}
    given |= {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    arguments = SentenceTransformerTrainingArguments(**given, ddp_find_unused_parameters=cached != "0")
    teacher = [np.load(f"{folder}/{side}.npy", mmap_mode="r") for side in ("images", "captions")]
    loss = DistilledLoss(OfflineQuintupletLoss(model, mini_batch_size=int(cached) or None), table, [tuple(teacher)])
    SentenceTransformerTrainer(model, arguments, data.dataset, loss=loss).train()
    if rank == 0:
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        some = weights[:: len(weights) // 50].tolist()
        json.dump([weights.sum().item(), weights.square().sum().item(), some], sys.stdout)


if __name__ == "__main__":
    main()
