"""Offline hard negatives for open_clip's training: data drawn from a table, losses, and rows that link the two.

data = TableData.of_folder(table, "data/mine", preprocess=preprocess, tokenizer=tokenizer)
train = {"train": data.loader(64)}
loss = OfflineClipLoss(table)
for epoch in range(epochs):
    train_one_epoch(carry_rows(model), train, loss, epoch, …)
"""

from aoq.integrations.open_clip.data import TableData as TableData
from aoq.integrations.open_clip.data import carry_rows as carry_rows
from aoq.integrations.open_clip.data import with_rows as with_rows
from aoq.integrations.open_clip.losses import DistilledLoss as DistilledLoss
from aoq.integrations.open_clip.losses import OfflineClipLoss as OfflineClipLoss
from aoq.integrations.open_clip.losses import OfflineQuintupletLoss as OfflineQuintupletLoss
from aoq.integrations.open_clip.losses import OfflineSigLipLoss as OfflineSigLipLoss
from aoq.pipeline.tables.exchange.negclip import read_negclip as read_negclip
