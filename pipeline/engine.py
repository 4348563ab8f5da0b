"""Where and how stages run: device, threads, precision, processes. None of this is part of a key, or loads torch."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    import torch

Verify = Literal["sampled", "full"]
THREADS_PER_CORE = 64
"""More threads do not help, and with about ten thousand OpenMP ends the process."""
DEVICE_OPTIONS = "[engine] device in luigi.cfg, luigi's --engine-device, or --device of commands that have it"
CHOOSE_CPU = f'choose device cpu ({DEVICE_OPTIONS}), or set CUDA_VISIBLE_DEVICES=""'
_THREAD = "aoq-part"
PARTS = 4  # per thread, so that one slow part delays little
PR_SET_PDEATHSIG = 1


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
    """Where units of mining, extraction and encoding run, and training processes start: in this process, or on Ray."""
    processes: int = 1
    """Processes that train a model together, on this machine or on Ray, each with its own GPU or `threads` threads."""
    ray_address: str = ""
    """Address of the cluster: HOST:PORT, "auto" for the one this machine belongs to, "" to start one here."""
    tasks: int = 1
    """Tasks at a time, which share the cores: Luigi's --workers."""

    def __post_init__(self) -> None:
        for name, known in (("backend", ("inprocess", "ray")), ("verify", get_args(Verify))):
            if getattr(self, name) not in known:
                raise ValueError(f"[engine] {name} is {getattr(self, name)!r}; known are {' and '.join(known)}.")
        most = THREADS_PER_CORE * core_count()
        for name, least, advice in (
            ("threads", 0, f"give 0 (as many as cores) to {most:,}"),
            ("workers", 0, f"give 0 (nothing is read ahead) to {most:,}"),
            ("checkpoint_steps", 1, "give at least 1"),
            ("processes", 1, "give at least 1"),
            ("mining_memory_mb", 100, "mining needs at least 100"),
        ):
            value = getattr(self, name)
            if value < least or (name in ("threads", "workers") and value > most):
                raise ValueError(f"[engine] {name} is {value}; {advice}.")

    def torch_device(self, place: int | None = None, sharing: int = 1) -> torch.device:
        """Return the device and set the process's threads; `place` is its number among `sharing` processes."""
        import torch  # takes seconds, which commands without computation can save

        torch.set_num_threads(self.threads or max(1, core_count() // (sharing * self.tasks)))
        device = find_device(self.device)
        if place is None or device.type != "cuda":
            return device
        if sharing > (there := torch.cuda.device_count()):
            raise ValueError(
                f"{sharing} processes are to train on this machine, but torch sees {there} GPUs; start {there}."
            )
        return torch.device("cuda", place)


def find_device(name: str) -> torch.device:
    """Find the device of this name; `auto` is the current GPU if torch sees one, else the CPU."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device is {name!r}; use auto, cpu, cuda, or cuda:0 and so on ({DEVICE_OPTIONS}).") from None
    if device.type != "cuda":
        return device
    if (device.index or 0) >= count:
        raise ValueError(f"device is {name}, but torch sees {count} GPUs; use another, cpu or auto ({DEVICE_OPTIONS}).")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


@contextmanager
def products_in(precision: Literal["float32", "tf32", "bfloat16"]) -> Iterator[None]:
    """Compute float32 products in float32, or in TF32 if that is the precision, and make tensors float32 by default.

    The caller's autocast, default dtype and precision of products have no effect inside and are restored afterwards.
    """
    with ExitStack() as put_back:
        for read, write, wanted in _settings(is_tf32=precision == "tf32"):
            put_back.callback(write, read())
            write(wanted)
        yield


def _settings(*, is_tf32: bool) -> Iterator[tuple[Callable[[], Any], Callable[[Any], object], Any]]:
    """Yield a getter, a setter and the wanted value of every setting that rounds products."""
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    yield torch.get_default_dtype, torch.set_default_dtype, torch.float32
    for device in ("cpu", "cuda"):
        # Not `torch.autocast`: an autocast nested in it would cache rounded weights across steps.
        yield partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device), False
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        yield partial(getattr, matmul, name), partial(setattr, matmul, name), False
    # torch has two interfaces for the precision of products, and raises if one is read while the other contradicts it.
    # So the newer one is cleared first, general switches before specific ones; then the older one is read and written.
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    write = getattr(torch._C, "_set_fp32_precision_setter", None)
    places = [(library, "all") for library in ("generic", "cuda", "mkldnn")]
    places += [(library, what) for library in ("cuda", "mkldnn") for what in ("matmul", "conv", "rnn")]
    switches = [(partial(read, *place), partial(write, *place)) for place in places if read and write]  # torch >= 2.9
    yield from ((*switch, "none") for switch in switches)
    yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high" if is_tf32 else "highest"
    yield partial(_is_allowed, cudnn), partial(setattr, cudnn, "allow_tf32"), is_tf32
    yield from ((*switch, "tf32" if is_tf32 else "ieee") for switch in switches[:1])


def _is_allowed(cudnn: Any) -> bool:
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:  # allowed, which contradicts the cleared switches
        return True


def core_count() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def let_waiting_threads_sleep() -> None:
    """Let OpenMP's waiting threads sleep after a moment, unless the user has chosen otherwise.

    By default they spin for milliseconds, and beside other work a training takes several times as long. If they never
    spin, steps of small operations take 50 % longer. OpenMP reads the variables when torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # read by GNU's OpenMP, which torch uses on Linux


def in_parallel(function: Callable[..., Any], count: int, *arguments: Any, parts: int = PARTS) -> None:
    """Call function(start, stop, *arguments) on ranges that cover `count` rows; it must release the GIL.

    There are as many threads as torch has if it is loaded, else as many as this process may use. Within a call there
    are no further threads.
    """
    if threading.current_thread().name.startswith(_THREAD):
        function(0, count, *arguments)
        return
    loaded: Any = sys.modules.get("torch")
    threads = int(loaded.get_num_threads()) if loaded else core_count()
    edges = np.linspace(0, count, min(count, parts * threads) + 1, dtype=np.int64).tolist()
    running = [_threads(threads, os.getpid()).submit(function, *rows, *arguments) for rows in pairwise(edges)]
    try:
        for part in running:
            part.result()  # raises its error, if any
    finally:
        for part in running:
            part.cancel()
        wait(running)


@lru_cache(maxsize=1)
def _threads(count: int, process: int) -> ThreadPoolExecutor:
    """Start threads that stay for the next call; those of a parent are not in a forked process."""
    return ThreadPoolExecutor(count, _THREAD)


def return_freed_memory() -> None:
    """Return freed memory to the system: glibc keeps what threads have freed, gigabytes after some sweeps."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def torchrun_rank() -> int | None:
    """Return this process's rank if torchrun started it."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def describe_exit(code: int) -> str:
    """Describe how a process with this exit code ended.

    >>> describe_exit(-9), describe_exit(1)
    ('was killed by SIGKILL, probably out of memory', 'ended with exit code 1')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    return f"was killed by {name}" + (", probably out of memory" if -code == signal.SIGKILL else "")


def die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for this signal when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # the parent ended before the request
        os.kill(os.getpid(), how)
