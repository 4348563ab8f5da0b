"""The Luigi tasks: `luigi --module tasks SecondRound --experiment demo`."""

import sys

from aoq.pipeline.console import end_in_one_line, log_to_console, stop_on_signals
from aoq.pipeline.engine import let_waiting_threads_sleep
from aoq.pipeline.settings import read_shipped_settings
from aoq.tasks.stages import Ablation as Ablation
from aoq.tasks.stages import Control as Control
from aoq.tasks.stages import Dataset as Dataset
from aoq.tasks.stages import DemoWorld as DemoWorld
from aoq.tasks.stages import Embeddings as Embeddings
from aoq.tasks.stages import Evaluation as Evaluation
from aoq.tasks.stages import FirstRound as FirstRound
from aoq.tasks.stages import HardNegatives as HardNegatives
from aoq.tasks.stages import Prepared as Prepared
from aoq.tasks.stages import Report as Report
from aoq.tasks.stages import Screen as Screen
from aoq.tasks.stages import SecondRound as SecondRound
from aoq.tasks.stages import StudentEmbeddings as StudentEmbeddings

let_waiting_threads_sleep()
read_shipped_settings()
log_to_console()
stop_on_signals()
sys.excepthook = end_in_one_line
