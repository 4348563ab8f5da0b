"""Where and how stages run: device, threads, backend, processes. None of these settings is part of a key."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from aoq.pipeline.inputs import Verify

if TYPE_CHECKING:
    import torch

THREADS_PER_CORE = 64
"""More would not help anybody; with about ten thousand, OpenMP ends the process."""


def torchrun_rank() -> int | None:
    """Return this process's rank if torchrun started it."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


@dataclass(frozen=True)
class Engine:
    device: str = "auto"
    threads: int = 0
    """Number of threads; 0: as many as this process may use, or one per unit on Ray."""
    checkpoint_steps: int = 500
    workers: int = 1
    """Threads that draw and read batches ahead of a training; 0: none. Several also decode photographs in as many
    processes."""
    tensorboard: bool = False
    verify: Verify = "sampled"
    """How to check that data arrays over 1 GiB are unchanged: by sampled blocks, or in full."""
    mining_memory_mb: int = 1500
    """Approximate MB that mining may use beyond the embeddings; on Ray, per unit."""
    backend: str = "inprocess"
    """What mines, extracts, encodes and starts the processes of a training: this process, or Ray."""
    processes: int = 1
    """Processes that train a model together, on this machine or on Ray, each with its own GPU or `threads` threads."""
    ray_address: str = ""
    """Address of the cluster: HOST:PORT, "auto" for the one this machine belongs to, "" to start one here."""

    def __post_init__(self) -> None:
        if self.backend not in ("inprocess", "ray"):
            raise ValueError(f"[engine] backend is {self.backend!r}; known are inprocess and ray.")
        if self.verify not in get_args(Verify):
            raise ValueError(f"[engine] verify is {self.verify!r}; known are {' and '.join(get_args(Verify))}.")
        most = THREADS_PER_CORE * len(os.sched_getaffinity(0))
        if not 0 <= self.threads <= most:
            raise ValueError(f"[engine] threads is {self.threads}; give 0 (as many as cores) to {most:,}.")
        if not 0 <= self.workers <= most:
            raise ValueError(f"[engine] workers is {self.workers}; give 0 (nothing is read ahead) to {most:,}.")
        if self.checkpoint_steps < 1:
            raise ValueError(f"[engine] checkpoint_steps is {self.checkpoint_steps}; give at least 1.")
        if self.processes < 1:
            raise ValueError(f"[engine] processes is {self.processes}; give at least 1.")
        if self.mining_memory_mb < 100:
            raise ValueError(f"[engine] mining_memory_mb is {self.mining_memory_mb}; mining needs at least 100.")

    def torch_device(self, place: int | None = None, sharing: int = 1) -> torch.device:
        """Return the device and set the process's threads; `place` is its number among those sharing this machine."""
        import torch  # takes seconds, which commands without computation can save

        from aoq.pipeline.arithmetic import find_device

        torch.set_num_threads(self.threads or max(1, len(os.sched_getaffinity(0)) // sharing))
        device = find_device(self.device)
        if place is None or device.type != "cuda":
            return device
        if sharing > (there := torch.cuda.device_count()):
            raise ValueError(
                f"{sharing} processes are to train on this machine, but torch sees {there} GPUs; start {there}."
            )
        return torch.device("cuda", place)
