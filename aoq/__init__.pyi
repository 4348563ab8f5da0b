# The public API and where each name is defined. tests/face/public.txt pins the signatures.

from aoq.models import build_model as build_model
from aoq.models.base import Captions as Captions
from aoq.models.base import Code as Code
from aoq.models.base import EmbeddingModel as EmbeddingModel
from aoq.models.base import Images as Images
from aoq.models.base import MatchingModel as MatchingModel
from aoq.pipeline.evaluation.evaluate import evaluate as evaluate
from aoq.pipeline.evaluation.evaluate import recalls as recalls
from aoq.pipeline.losses import plateau as plateau
from aoq.pipeline.losses.aoq import adap_off_quin as adap_off_quin
from aoq.pipeline.losses.aoq import adap_off_tri as adap_off_tri
from aoq.pipeline.losses.aoq import adap_pos_quin as adap_pos_quin
from aoq.pipeline.losses.aoq import adaptive_weight as adaptive_weight
from aoq.pipeline.losses.aoq import off_quin as off_quin
from aoq.pipeline.losses.aoq import off_tri as off_tri
from aoq.pipeline.losses.aoq import online_quin as online_quin
from aoq.pipeline.losses.aoq import online_triplet as online_triplet
from aoq.pipeline.losses.aoq import only_offline as only_offline
from aoq.pipeline.losses.aoq import squared_off_quin as squared_off_quin
from aoq.pipeline.losses.aoq import sum_triplet as sum_triplet
from aoq.pipeline.losses.companions import with_companions as with_companions
from aoq.pipeline.losses.distillation import batch_distillation as batch_distillation
from aoq.pipeline.losses.distillation import list_distillation as list_distillation
from aoq.pipeline.losses.info_nce import LearntTemperature as LearntTemperature
from aoq.pipeline.losses.info_nce import adap_info_nce as adap_info_nce
from aoq.pipeline.losses.info_nce import info_nce as info_nce
from aoq.pipeline.losses.info_nce import sigmoid_loss as sigmoid_loss
from aoq.pipeline.losses.pace import Pace as Pace
from aoq.pipeline.losses.similarities import LossValue as LossValue
from aoq.pipeline.losses.similarities import OfflineSimilarities as OfflineSimilarities
from aoq.pipeline.losses.similarities import Similarities as Similarities
from aoq.pipeline.losses.similarities import guided_matches as guided_matches
from aoq.pipeline.losses.similarities import offline_similarities as offline_similarities
from aoq.pipeline.losses.similarities import positive_pairs as positive_pairs
from aoq.pipeline.mining.hard_negatives import hard_negatives as hard_negatives
from aoq.pipeline.search.lists import NegativeLists as NegativeLists
from aoq.pipeline.tables.audit import audit as audit
from aoq.pipeline.tables.statistics import compare as compare
from aoq.pipeline.tables.statistics import describe as describe
from aoq.pipeline.tables.table import NegativeTable as NegativeTable
from aoq.pipeline.tables.table import read_table as read_table
from aoq.pipeline.training.batch_sampler import BatchSampler as BatchSampler
from aoq.pipeline.training.checkpoint import load_model as load_model
from aoq.pipeline.training.rotation import Rotation as Rotation

__version__: str
