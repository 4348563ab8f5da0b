"""Killed at any instant, on a disk that fills up, or several at once: what is published is whole, and in the end the
same bytes are there as without any of it.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.reference import (
    CHAINS,
    WRITERS,
    Made,
    Reference,
    artefacts,
    content,
    left_behind,
    luigi,
    write_experiments,
)
from tests.chaos.rules import failed, hold, nothing_left, refused_well

KILLS_OF_A_CHAIN = 4
"""Each case kills one chain this often, and counts once."""


def instant(made: Made, share: float, rng: random.Random) -> dict[str, float]:
    """Draw when to kill: at a moment of the run, or before one of the operations by which files come and go."""
    if rng.random() < 0.5:
        return {"kill_after": rng.uniform(0, share * made.seconds)}
    return {"kill_before": rng.randint(1, max(1, round(share * made.operations)))}


def kill_a_chain(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Kill Luigi several times on its way, then let it end."""
    name = rng.choice(list(CHAINS))
    task, experiment = CHAINS[name]
    write_experiments(folder)
    undisturbed, command = reference.made(name), luigi(task, experiment)
    for _ in range(KILLS_OF_A_CHAIN):
        forks.run(command, folder, **instant(undisturbed, 0.6, rng))
        hold(published_otherwise(undisturbed.files, folder), f"{name}: after a kill")
    hold(failed(forks.run(command, folder)), f"{name}: after the kills")
    hold(differences(undisturbed.files, artefacts(folder)) or left_behind(folder), name)


def kill_a_command(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Kill a command that writes; then run it again, as users do: it makes the output, or says that it is there."""
    writer = rng.choice(WRITERS)
    place = reference.copy(folder / "place", writer)
    before = {path.name for path in place.iterdir()}
    undisturbed = reference.made(writer.name)
    forks.run(writer.command, place, **instant(undisturbed, 1.1, rng))
    was_made = (place / writer.output).exists()
    if was_made:
        hold(differences(undisturbed.files, content(place / writer.output)), f"{writer.name}: after a kill")
    hold(nothing_left(place, {*before, writer.output, f".{writer.output}.work"}), f"{writer.name}: after a kill")
    ended = forks.run(writer.command, place)
    hold(refused_well(ended), writer.name)
    if (ended.code == 0) == (was_made and writer.name != "report"):  # which writes over its page
        hold(f"it ends with {ended.code}\n{ended.said}", f"{writer.name}: {'made already' if was_made else 'not made'}")
    hold(nothing_left(place, {*before, writer.output}), writer.name)
    hold(differences(undisturbed.files, content(place / writer.output)), writer.name)


def kill_gc(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Kill `aoq gc` while it deletes a chain: then it deletes the rest, or the chain is made again, or both."""
    name = rng.choice(list(CHAINS))
    undisturbed, place = reference.made(name), reference.copy_chain(name, folder / "place")
    shutil.rmtree(place / "runs")
    collect = ("aoq", "gc", "--delete", "--unfinished")
    forks.run(collect, place, kill_before=rng.randint(1, 2 * len(undisturbed.files)))
    hold(published_otherwise(undisturbed.files, place), f"{name}: after a kill")
    if rng.random() < 0.5:
        hold(failed(forks.run(collect, place)), f"{name}: after a kill")
        left = [str(path) for path in place.glob("artifacts/*/[!.]*")]
        hold(f"{left} stay behind" if left else None, f"{name}: after a kill")
    hold(failed(forks.run(luigi(*CHAINS[name]), place)), f"{name}: made again")
    hold(published_otherwise(undisturbed.files, place), f"{name}: made again")


def published_otherwise(wanted: dict[str, str], folder: Path) -> str | None:
    """Name artefacts with other bytes than an undisturbed run's; some may be missing."""
    other = [file for file, sha256 in artefacts(folder).items() if wanted.get(file) != sha256]
    return f"{', '.join(other)}: published with other bytes" if other else None


def differences(wanted: dict[str, str], found: dict[str, str]) -> str | None:
    """Name files that are missing, changed or superfluous."""
    if wanted == found:
        return None
    names = [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]
    return f"{', '.join(names)}: not the bytes of an undisturbed run"


ROOM = 64 << 20
NOBODY = 65534


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
    undisturbed = reference.made(name)
    with small_disk(folder / "disk") as place:
        write_experiments(place)
        command, plug = luigi(*CHAINS[name]), fill(place, rng.randrange(undisturbed.room))
        ended = forks.run(command, place)
        hold(refused_well(ended) or published_otherwise(undisturbed.files, place), name)
        plug.unlink()
        again = forks.run(command, place)
        hold(failed(again), f"{name}: with room again")
        hold(differences(undisturbed.files, artefacts(place)) or left_behind(place), name)


def full_under_a_command(reference: Reference, folder: Path, rng: random.Random) -> None:
    writer = rng.choice(WRITERS)
    undisturbed = reference.made(writer.name)
    with small_disk(folder / "disk") as disk:
        place = reference.copy(disk / "place", writer)
        before = {path.name for path in place.iterdir()}
        plug = fill(disk, rng.randrange(2 * undisturbed.room))  # what is mined stands there twice
        ended = forks.run(writer.command, place)
        hold(refused_well(ended), writer.name)
        plug.unlink()
        if ended.code != 0:
            hold(nothing_left(place, {*before, f".{writer.output}.work"}), writer.name)
            hold(failed(forks.run(writer.command, place)), f"{writer.name}: with room again")
        hold(nothing_left(place, {*before, writer.output}), writer.name)
        hold(differences(undisturbed.files, content(place / writer.output)), writer.name)


def another_users_folder(reference: Reference, folder: Path, rng: random.Random) -> None:
    """A command that may only read its folder: it refuses to write there, and writes elsewhere what it should."""
    writer = rng.choice(WRITERS)
    place, own = reference.copy(folder / "place", writer), folder / "own"
    own.mkdir()
    before = {path.name for path in place.iterdir()}
    give_away(place)
    refused = forks.run(writer.command, place, privileged=False)
    hold(refused_well(refused), writer.name)
    hold("it ends with 0" if refused.code == 0 else nothing_left(place, before), writer.name)
    elsewhere = tuple(own / word if word == writer.output else word for word in writer.command)
    hold(failed(forks.run(elsewhere, place, privileged=False)), f"{writer.name}: to a folder of its own")
    hold(nothing_left(own, {writer.output}) or nothing_left(place, before), writer.name)
    hold(differences(reference.made(writer.name).files, content(own / writer.output)), writer.name)


def another_users_artefacts(reference: Reference, folder: Path, rng: random.Random) -> None:
    """A chain whose artefacts another user made: it ends where all are there, and refuses to make what is missing."""
    name = rng.choice(list(CHAINS))
    undisturbed, place = reference.made(name), reference.copy_chain(name, folder / "place")
    stages = sorted({file.split("/")[0] for file in undisturbed.files})
    taken = rng.choice([None, *stages])
    if taken:
        shutil.rmtree(place / "artifacts" / taken)
    give_away(place)
    for command in (("aoq", "status", "./tiny.toml"), ("aoq", "verify"), ("aoq", "gc"), ("aoq", "gc", "--delete")):
        hold(refused_well(forks.run(command, place, privileged=False)), f"{name} without {taken}: {command}")
    ended = forks.run(luigi(*CHAINS[name]), place, privileged=False)
    hold(refused_well(ended) or published_otherwise(undisturbed.files, place), f"{name} without {taken}")
    if taken is None:
        hold(failed(ended) or differences(undisturbed.files, artefacts(place)), name)


def give_away(place: Path) -> None:
    """Another user owns it all; everybody may read it."""
    for path in (place, *place.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.lchown(path, NOBODY, NOBODY)


def _can_mount() -> bool:
    """True if this user may mount a file system; without it the cases are left out and the table shows none."""
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return os.geteuid() == 0 and tried.returncode == 0


def chains_together(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Two to four Luigis, the same one among them twice, on one artefact root."""
    write_experiments(folder)
    names = [rng.choice(list(CHAINS)) for _ in range(rng.randint(1, 3))]
    names.append(names[0])
    running = [forks.start(luigi(*CHAINS[name]), folder) for name in names]
    for name, one in zip(names, running, strict=True):
        hold(failed(one.wait(seconds=240)), f"{names}: {name}")
    chains, made = [reference.made(name).files for name in names], artefacts(folder)
    missing = sorted({file for chain in chains for file in chain} - set(made))
    other = [file for file, sha256 in made.items() if sha256 not in {chain.get(file) for chain in chains}]
    hold(f"{missing} are missing" if missing else None, str(names))
    hold(f"{other}: not the bytes of an undisturbed run" if other else None, str(names))


def commands_together(reference: Reference, folder: Path, rng: random.Random) -> None:
    """The same command twice at once: what is there at the end is whole, and one of them at least ends well."""
    writer = rng.choice(WRITERS)
    place = reference.copy(folder / "place", writer)
    before = {path.name for path in place.iterdir()}
    ends = [one.wait() for one in [forks.start(writer.command, place) for _ in range(2)]]
    if all(ended.code != 0 for ended in ends):
        hold(f"neither ends well\n{ends[0].said}\n{ends[1].said}", writer.name)
    for ended in ends:
        hold(refused_well(ended), writer.name)
    hold(nothing_left(place, {*before, writer.output}), writer.name)
    hold(differences(reference.made(writer.name).files, content(place / writer.output)), writer.name)


CHAINS_KILLED = f"Luigi's chains, each killed {KILLS_OF_A_CHAIN} times with SIGKILL, then run to their end"
KINDS = [
    Kind("chains", 50, CHAINS_KILLED, kill_a_chain),
    Kind("commands", 150, "commands that write, killed with SIGKILL, then run again", kill_a_command),
    Kind("gc", 40, "`aoq gc --delete` killed with SIGKILL; the chain is made again", kill_gc),
    Kind("chains-at-once", 12, "two to four Luigis on one artefact root", chains_together),
    Kind("commands-at-once", 40, "a command that writes, twice at once", commands_together),
]
if os.geteuid() == 0:
    KINDS += [
        Kind("other-user", 60, "commands that write, in a folder that they may only read", another_users_folder),
        Kind("other-artefacts", 30, "Luigi's chains on another user's artefacts", another_users_artefacts),
    ]
if _can_mount():
    KINDS += [
        Kind("disk-chains", 20, "Luigi's chains on a disk that fills up", full_under_a_chain),
        Kind("disk-commands", 60, "commands that write, on a disk that fills up", full_under_a_command),
    ]
