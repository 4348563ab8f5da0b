"""Offline hard negatives for SentenceTransformerTrainer: data drawn from a table, losses, an evaluator.

data = TableData(table, images, captions)                                   # rows of six columns, and labels
trainer = SentenceTransformerTrainer(
    model,
    SentenceTransformerTrainingArguments(..., batch_sampler=data.batches),
    data.dataset,
    loss=OfflineQuintupletLoss(model),
)
"""

from aoq.pipeline.extras import import_extra

for _library in ("sentence_transformers", "datasets"):
    import_extra(_library, _library.replace("_", "-"), __name__)

from aoq.integrations.sentence_transformers.data import RecallEvaluator as RecallEvaluator
from aoq.integrations.sentence_transformers.data import TableData as TableData
from aoq.integrations.sentence_transformers.losses import DistilledLoss as DistilledLoss
from aoq.integrations.sentence_transformers.losses import OfflineInfoNCELoss as OfflineInfoNCELoss
from aoq.integrations.sentence_transformers.losses import OfflineQuintupletLoss as OfflineQuintupletLoss
from aoq.integrations.sentence_transformers.losses import OfflineTripletLoss as OfflineTripletLoss
