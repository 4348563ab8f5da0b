"""Start processes that train one model: by torchrun, by its API on this machine, or as tasks of a Ray cluster."""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import ChangedInputError
from aoq.pipeline.console import log_to_console
from aoq.pipeline.engine import Engine, describe_exit
from aoq.pipeline.on_ray import check_nodes, connected, node_name, required_resources
from aoq.pipeline.training.processes import Processes

Work = Callable[[Processes, Engine], Any]
"""The work of each process; to start several it must be picklable."""
TIMEOUT = timedelta(minutes=15)
"""Longest wait for another process: the leader's own work, such as writing a checkpoint, takes less."""
PLACING, LINGER, OTHERS_FAIL = 300.0, 60.0, 2.0
"""Seconds to wait for room on a cluster, for the end after another process was lost, and for failures of the others."""
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
RESUMED = "Run again: the training goes on from its last checkpoint."
PASSED_ON = {kind.__name__: kind for kind in (ChangedInputError, ValueError, OSError, ImportError, RuntimeError)}
"""Errors that a process passes on to the one that started it."""


def _store() -> Store:
    """Return the store that the processes share; torchrun's keeps its entries when it starts them again."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(attempt, next(rendezvous("env://", timeout=TIMEOUT))[0])


@contextmanager
def joined(engine: Engine, name: str = "training") -> Iterator[Processes]:
    """Join the other processes that torchrun's variables name; each has its own device."""
    rank, count, place, places = map(int, map(os.environ.__getitem__, VARIABLES))
    device, store = engine.torch_device(place, places), _store()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store.set(f"{name} begins", "")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=PrefixStore(name, store), rank=rank, world_size=count, timeout=TIMEOUT)
    try:
        yield Processes(rank, count, device)
    except Exception as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        time.sleep(LINGER)  # the starter ends this process as soon as it knows why the other one failed
        raise ChildProcessError(f"another process of this training ended. {RESUMED}") from error
    finally:
        dist.destroy_process_group()


def follow(engine: Engine, artifact: Artifact, part: Work) -> None:
    """Wait until torchrun's first process has made the artefact; take part if it trains."""
    store, is_trained = _store(), False
    while not artifact.exists():
        if store.check([f"{artifact.key} failed"]):
            name = f"{artifact.stage}/{artifact.key}"
            raise ChildProcessError(f"the first process of this run did not make {name}; its log says why.")
        if not is_trained and store.check([f"{artifact.key} begins"]):
            with joined(engine, artifact.key) as processes:
                part(processes, engine)
            is_trained = True
        time.sleep(1)


def announce_failure(artifact: Artifact) -> None:
    """Tell the processes that `follow` that the first one did not make the artefact."""
    _store().set(f"{artifact.key} failed", "")


def run_ranks(engine: Engine, folder: Path, part: Work) -> tuple[Any, dict[str, list[str]]]:
    """Do the part in each of `engine.processes` processes, here or on a cluster; return the leader's result, and nodes.

    The leader's own error is raised as it is; if another process fails or is lost, that is a ChildProcessError.
    """
    if engine.backend == "ray":
        return _on_ray(engine, folder, part)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the failure is reported below
    with TemporaryDirectory() as logs:
        config = LaunchConfig(1, 1, engine.processes, DefaultLogsSpecs(logs), "training", max_restarts=0)
        config.rdzv_backend, config.rdzv_endpoint, config.local_addr = "c10d", "localhost:0", "localhost"
        try:
            return elastic_launch(config, _rank)(engine, part)[0], {}
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            failures: dict[int, Any] = {}
            for file in Path(logs).rglob("error.json"):  # of a process, in the folder of its number
                kind, _, text = json.loads(file.read_text())["message"]["message"].partition(": ")
                failures[int(file.parent.name)] = PASSED_ON.get(kind, RuntimeError)(text)
            raise _reason(failures or {rank: f"{describe_exit(failure.exitcode)}."}) from None


def _rank(engine: Engine, part: Work, environ: Mapping[str, str] = {}, log: Any = None) -> Any:
    """Run a process that was started here or by Ray; a bug's error has its traceback as its text."""
    os.environ.update(environ)
    log_to_console()
    if log is not None and os.environ["RANK"] == "0":
        logging.getLogger("aoq").addHandler(QueueHandler(log))
    try:
        with joined(engine) as processes:
            return part(processes, engine)
    except Exception as error:
        kind = next((kind for kind in PASSED_ON.values() if isinstance(error, kind)), RuntimeError)
        raise kind(traceback.format_exc() if kind is RuntimeError else str(error)) from None


def _on_ray(engine: Engine, folder: Path, part: Work) -> tuple[Any, dict[str, list[str]]]:
    from ray.util import placement_group, placement_group_table, remove_placement_group
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    with connected(engine.ray_address) as ray:
        engine, count = replace(engine, threads=engine.threads or 1), engine.processes
        takes = required_resources(ray, engine.device, engine.threads, count=count)
        check_nodes(ray, takes, folder)
        host = ray.util.get_node_ip_address()
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        meeting = {"MASTER_ADDR": host, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        log = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        listener, group = QueueListener(log, *logging.getLogger().handlers), placement_group([takes] * count)
        listener.start()
        try:
            if not group.wait(PLACING):
                raise TimeoutError(f"other work took the room of {count} processes for {PLACING:.0f} s; run again.")
            names = {node["NodeID"]: node_name(node) for node in ray.nodes()}
            on = placement_group_table(group)["bundles_to_node_id"]
            nodes = [names[on[rank]] for rank in range(count)]
            limits = {"num_cpus": engine.threads, "num_gpus": takes.get("GPU", 0), "max_retries": 0, "max_calls": 1}
            task, works = ray.remote(**limits)(_rank), []
            for rank in range(count):  # each process sees only its own GPU
                environ = meeting | dict(zip(VARIABLES, map(str, (rank, count, 0, 1)), strict=True))
                place = PlacementGroupSchedulingStrategy(group, rank)
                works.append(task.options(scheduling_strategy=place).remote(engine, part, environ, log))
            return _leaders_result(ray, works, nodes), {"nodes": nodes}
        finally:
            listener.stop()
            remove_placement_group(group)
            log.shutdown()


def _leaders_result(ray: Any, works: Sequence[Any], nodes: Sequence[str]) -> Any:
    """Return the result of the leader's task, once all are done, or raise the reason of the first failures."""
    left, failures = list(works), dict[int, Exception | str]()
    while left and not failures:
        ray.wait(left)
        ended, left = ray.wait(left, num_returns=len(left), timeout=OTHERS_FAIL)
        for work in ended:
            try:
                ray.get(work)
            except ray.exceptions.RayTaskError as error:
                failures[works.index(work)] = error.cause
            except ray.exceptions.RayError:
                failures[works.index(work)] = "was killed, or lost with its node."
    if failures:
        raise _reason(failures, nodes)
    return ray.get(works[0])


def _reason(failures: Mapping[int, Exception | str], nodes: Sequence[str] = ()) -> Exception:
    rank, why = min(failures.items())
    if rank == 0 and isinstance(why, Exception):
        return why
    on = f", on {nodes[rank]}," if nodes else ""
    how = why if isinstance(why, str) else f"failed: {why}"
    return ChildProcessError(f"process {rank} of this training{on} {how} {RESUMED}")
