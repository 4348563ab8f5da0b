"""Killed at any instant: what is published is whole, and the same command again ends at the same bytes."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.reference import (
    CHAINS,
    WRITERS,
    Reference,
    artefacts,
    content,
    leftovers,
    luigi,
    write_experiments,
)
from tests.chaos.rules import failed, hold, nothing_left, refused_well

KILLS_OF_A_CHAIN = 4
"""Each case kills one chain this often, and counts once."""


def instant(length: tuple[float, int], share: float, rng: random.Random) -> dict[str, float]:
    """Draw when to kill: at a moment of the run, or before one of the operations by which files come and go."""
    seconds, operations = length
    if rng.random() < 0.5:
        return {"kill_after": rng.uniform(0, share * seconds)}
    return {"kill_before": rng.randint(1, max(1, round(share * operations)))}


def kill_a_chain(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Kill Luigi several times on its way, then let it end."""
    name = rng.choice(list(CHAINS))
    task, experiment = CHAINS[name]
    write_experiments(folder)
    wanted, command = reference.chain(name), luigi(task, experiment)
    for _ in range(KILLS_OF_A_CHAIN):
        forks.run(command, folder, **instant(reference.length(name), 0.6, rng))
        hold(published_otherwise(wanted, folder), f"{name}: after a kill")
    hold(failed(forks.run(command, folder)), f"{name}: after the kills")
    hold(differences(wanted, artefacts(folder)) or left_behind(folder), name)


def kill_a_command(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Kill a command that writes; then run it again, as users do: it makes the output, or says that it is there."""
    writer = rng.choice(WRITERS)
    place = reference.copy(folder / "place")
    before = {path.name for path in place.iterdir()}
    forks.run(writer.command, place, **instant(reference.length(writer.name), 1.1, rng))
    wanted, was_made = reference.written(writer), (place / writer.output).exists()
    if was_made:
        hold(differences(wanted, content(place / writer.output)), f"{writer.name}: after a kill")
    hold(nothing_left(place, {*before, writer.output, f".{writer.output}.work"}), f"{writer.name}: after a kill")
    ended = forks.run(writer.command, place)
    hold(refused_well(ended), writer.name)
    if (ended.code == 0) == was_made:
        hold(f"it ends with {ended.code}\n{ended.said}", f"{writer.name}: {'made already' if was_made else 'not made'}")
    hold(nothing_left(place, {*before, writer.output}), writer.name)
    hold(differences(wanted, content(place / writer.output)), writer.name)


def published_otherwise(wanted: dict[str, str], folder: Path) -> str | None:
    """Name artefacts with other bytes than an undisturbed run's; some may be missing."""
    other = [file for file, sha256 in artefacts(folder).items() if wanted.get(file) != sha256]
    return f"{', '.join(other)}: published with other bytes" if other else None


def left_behind(folder: Path) -> str | None:
    left = leftovers(folder)
    return f"{left} stay behind" if left else None


def differences(wanted: dict[str, str], found: dict[str, str]) -> str | None:
    """Name files that are missing, changed or superfluous."""
    if wanted == found:
        return None
    names = [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]
    return f"{', '.join(names)}: not the bytes of an undisturbed run"


KINDS = [
    Kind(
        "chains",
        50,
        f"Luigi's chains, each killed {KILLS_OF_A_CHAIN} times with SIGKILL, then run to their end",
        kill_a_chain,
    ),
    Kind("commands", 150, "commands that write, killed with SIGKILL, then run again", kill_a_command),
]
