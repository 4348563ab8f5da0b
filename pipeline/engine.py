"""Where and how stages run: device, threads, who mines, how often to save. None of it is in a key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import get_args

import torch

from aoq.pipeline.inputs import Verify
from aoq.pipeline.launcher import Launched

THREADS_PER_CORE = 64
"""More than anybody gains by; with some ten thousand, OpenMP ends the process."""


@dataclass(frozen=True)
class Engine:
    device: str = "auto"
    threads: int = 0
    """0: as many as this process may use; of a unit on Ray, one."""
    checkpoint_steps: int = 500
    workers: int = 1
    """Threads that draw and read batches ahead of a training; 0: its own does it."""
    tensorboard: bool = False
    verify: Verify = "sampled"
    """How arrays of the data folder beyond 1 GiB are compared with what was read first: by blocks, or wholly."""
    mining_memory_mb: int = 1500
    """MB that mining may use beyond the embeddings, about; on Ray, each unit."""
    backend: str = "inprocess"
    """Who mines, extracts and encodes: this process, or Ray."""
    processes: int = 1
    """That train a model together on this machine; each with a GPU of its own, or with `threads` threads."""
    launched: Launched | None = None
    """Where torchrun has started the processes: all of these are then `processes`."""
    ray_address: str = ""
    """The cluster's address: HOST:PORT, "auto" for the one this machine is a node of, "" to start one here."""

    def __post_init__(self) -> None:
        if self.backend not in ("inprocess", "ray"):
            raise ValueError(f"[engine] backend is {self.backend!r}; known are inprocess and ray.")
        if self.verify not in get_args(Verify):
            raise ValueError(f"[engine] verify is {self.verify!r}; known are {' and '.join(get_args(Verify))}.")
        most = THREADS_PER_CORE * len(os.sched_getaffinity(0))
        if not 0 <= self.threads <= most:
            raise ValueError(f"[engine] threads is {self.threads}; give 0 (as many as there are cores) to {most:,}.")
        if not 0 <= self.workers <= most:
            raise ValueError(f"[engine] workers is {self.workers}; give 0 (none reads ahead) to {most:,}.")
        if self.checkpoint_steps < 1:
            raise ValueError(f"[engine] checkpoint_steps is {self.checkpoint_steps}; give at least 1.")
        if self.processes < 1:
            raise ValueError(f"[engine] processes is {self.processes}; give at least 1.")
        if self.mining_memory_mb < 100:
            raise ValueError(f"[engine] mining_memory_mb is {self.mining_memory_mb}; mining needs at least 100.")

    def torch_device(self, place: int | None = None) -> torch.device:
        """The device, with the process's threads set on the way; with a place, of one of those on this machine."""
        sharing = 1 if place is None else self.launched.places if self.launched else self.processes
        torch.set_num_threads(self.threads or max(1, len(os.sched_getaffinity(0)) // sharing))
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        wanted = automatic if self.device == "auto" else self.device
        if wanted.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError("[engine] device is cuda, but torch sees no GPU; use device = cpu or auto.")
        try:
            device = torch.device(wanted)
        except RuntimeError:
            raise ValueError(f"[engine] device is {wanted!r}; use auto, cpu, cuda, or cuda:0 and so on.") from None
        if place is None or device.type != "cuda":
            return device
        if sharing > (there := torch.cuda.device_count()):
            raise ValueError(
                f"{sharing} processes of this machine are to train, and torch sees {there} GPUs; start {there}."
            )
        return torch.device("cuda", place)
