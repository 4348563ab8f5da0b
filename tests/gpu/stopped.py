"""Make a second round on a device, and end the process at its first checkpoint: stopped.py EXPERIMENT DEVICE FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from aoq.pipeline.engine import Engine
from aoq.pipeline.stages.plan import MAKERS, plan
from aoq.pipeline.training.loop import Loop

SAVE = Loop.checkpoint


def stopping(trainer: Loop) -> None:
    SAVE(trainer)
    os._exit(9)


def main() -> None:
    experiment, device, folder = sys.argv[1:]
    chain, engine = plan(experiment, data_root=Path(), artifact_root=Path(folder)), Engine(device=device)
    for stage in ("world", "dataset", "first_round", "embeddings", "hard_negatives", "second_round"):
        if stage == "second_round":
            Loop.checkpoint = stopping
        with chain[stage].building() as build:
            if build is not None:
                MAKERS[stage](chain, build, engine)


if __name__ == "__main__":
    main()
