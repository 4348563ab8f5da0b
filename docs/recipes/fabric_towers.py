"""Two towers under Lightning Fabric, on a table's offline negatives and the negatives of all processes.

fabric run --devices 2 fabric_towers.py
"""

import torch
from lightning_fabric import Fabric
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import normalize

import aoq

fabric = Fabric()  # configured by `fabric run`
rank, ranks = fabric.global_rank, fabric.world_size
torch.manual_seed(0)

features, words = torch.randn(200, 16), torch.randn(1000, 24)  # your data: 200 images, 1,000 captions
image_of = torch.arange(1000) // 5
table = aoq.hard_negatives(torch.randn(200, 8), torch.randn(1000, 8), image_of, h=(40, 20))  # your teacher's vectors


class Towers(torch.nn.Module):  # your towers, both in one forward, as DDP requires
    def __init__(self):
        super().__init__()
        self.image, self.text = torch.nn.Linear(16, 32), torch.nn.Linear(24, 32)

    def forward(self, images, captions):
        return normalize(self.image(images), dim=1), normalize(self.text(captions), dim=1)


def of_all(part):
    """The rows of all processes, group by group, with gradient."""
    if ranks == 1:
        return part
    parts = all_gather(part) if part.is_floating_point() else fabric.all_gather(part)
    return torch.cat([one.unflatten(0, (3, -1)) for one in parts], dim=1).flatten(0, 1)


towers = Towers()
towers, optimizer = fabric.setup(towers, torch.optim.SGD(towers.parameters(), lr=0.01))
sampler = aoq.BatchSampler(table, batch_size=48 // ranks, rank=rank, world_size=ranks, drop_last=True)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for rows in sampler:  # this process's share of anchors, offline negatives and companions
        image_rows = torch.from_numpy(rows[:, 0]).to(fabric.device)
        given = features[rows[:, 0]], words[rows[:, 1]]
        images, captions = map(of_all, towers(*(one.to(fabric.device) for one in given)))
        image_rows, size = of_all(image_rows), len(images) // 3
        pairs = aoq.Similarities(
            images[:size] @ captions[:size].T,
            aoq.positive_pairs(image_rows[:size], mask_positives=True),
            aoq.offline_similarities(images, captions, image_rows),
        )
        loss = aoq.adap_off_quin(pairs, margin_online=0.2, margin_offline=0.0, alpha=0.3, beta=1.5).total / size
        optimizer.zero_grad()
        fabric.backward(loss)  # each process has the whole loss: the mean of their gradients is its own
        optimizer.step()
fabric.print(loss.item())
if ranks > 1:
    fabric.barrier()
    torch.distributed.destroy_process_group()  # a thread of gloo that outlives Python aborts the process
