"""Offline hard negatives for colpali-engine's trainer: a data set that rotates through a table, and its batches.

data = TableDataset(table, captions, Corpus(pages), num_negatives=3)      # queries are captions, documents images
trainer = TableTrainer(
    model=model,
    args=TrainingArguments(...),
    train_dataset=data,
    data_collator=VisualRetrieverCollator(processor),
    loss_func=ColbertPairwiseNegativeCELoss(),
    is_vision_model=True,
)
"""

from aoq.pipeline.extras import import_extra

import_extra("colpali_engine", "colpali-engine", __name__)

from aoq.integrations.colpali.data import TableDataset as TableDataset
from aoq.integrations.colpali.data import TableSampler as TableSampler
from aoq.integrations.colpali.data import TableTrainer as TableTrainer
