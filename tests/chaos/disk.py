"""A full disk, at a random offset: one sentence, nothing half-written, and with room again the same bytes."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.kills import differences, left_behind, published_otherwise
from tests.chaos.reference import CHAINS, WRITERS, Reference, artefacts, content, luigi, taken, write_experiments
from tests.chaos.rules import failed, hold, nothing_left, refused_well

ROOM = 64 << 20


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system in memory; only root may mount one."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, free: int) -> Path:
    """Leave `free` bytes of disk."""
    plug, there = place / "plug", os.statvfs(place)
    with plug.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, there.f_bavail * there.f_frsize - free)
    return plug


def full_under_a_chain(reference: Reference, folder: Path, rng: random.Random) -> None:
    name = rng.choice(list(CHAINS))
    with small_disk(folder / "disk") as place:
        write_experiments(place)
        command, plug = luigi(*CHAINS[name]), fill(place, rng.randrange(taken(reference.folder / name)))
        ended = forks.run(command, place)
        hold(refused_well(ended) or published_otherwise(reference.chain(name), place), name)
        plug.unlink()
        again = forks.run(command, place)
        hold(failed(again), f"{name}: with room again")
        hold(differences(reference.chain(name), artefacts(place)) or left_behind(place), name)


def full_under_a_command(reference: Reference, folder: Path, rng: random.Random) -> None:
    writer = rng.choice(WRITERS)
    with small_disk(folder / "disk") as disk:
        place = reference.copy(disk / "place")
        before = {path.name for path in place.iterdir()}
        plug = fill(disk, rng.randrange(2 * reference.room(writer)))  # what is mined stands there twice
        ended = forks.run(writer.command, place)
        hold(refused_well(ended), writer.name)
        plug.unlink()
        if ended.code != 0:
            hold(nothing_left(place, {*before, f".{writer.output}.work"}), writer.name)
            hold(failed(forks.run(writer.command, place)), f"{writer.name}: with room again")
        hold(nothing_left(place, {*before, writer.output}), writer.name)
        hold(differences(reference.written(writer), content(place / writer.output)), writer.name)


def _can_mount() -> bool:
    """True if this user may mount a file system; without it the cases are left out and the table shows none."""
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return os.geteuid() == 0 and tried.returncode == 0


KINDS = (
    [
        Kind("disk-chains", 20, "Luigi's chains on a disk that fills up", full_under_a_chain),
        Kind("disk-commands", 60, "commands that write, on a disk that fills up", full_under_a_command),
    ]
    if _can_mount()
    else []
)
