"""Several runs at once: each ends well, and what they make is made once."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.kills import differences
from tests.chaos.reference import CHAINS, WRITERS, Reference, artefacts, content, luigi, write_experiments
from tests.chaos.rules import failed, hold, nothing_left, refused_well


def chains_together(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Two to four Luigis, the same one among them twice, on one artefact root."""
    write_experiments(folder)
    names = [rng.choice(list(CHAINS)) for _ in range(rng.randint(1, 3))]
    names.append(names[0])
    running = [forks.start(luigi(*CHAINS[name]), folder) for name in names]
    for name, one in zip(names, running, strict=True):
        hold(failed(one.wait(seconds=240)), f"{names}: {name}")
    chains, made = [reference.chain(name) for name in names], artefacts(folder)
    missing = sorted({file for chain in chains for file in chain} - set(made))
    other = [file for file, sha256 in made.items() if sha256 not in {chain.get(file) for chain in chains}]
    hold(f"{missing} are missing" if missing else None, str(names))
    hold(f"{other}: not the bytes of an undisturbed run" if other else None, str(names))


def commands_together(reference: Reference, folder: Path, rng: random.Random) -> None:
    """The same command twice at once: what is there at the end is whole, and one of them at least ends well."""
    writer = rng.choice(WRITERS)
    place = reference.copy(folder / "place")
    before = {path.name for path in place.iterdir()}
    ends = [one.wait() for one in [forks.start(writer.command, place) for _ in range(2)]]
    if all(ended.code != 0 for ended in ends):
        hold(f"neither ends well\n{ends[0].said}\n{ends[1].said}", writer.name)
    for ended in ends:
        hold(refused_well(ended), writer.name)
    hold(nothing_left(place, {*before, writer.output}), writer.name)
    hold(differences(reference.written(writer), content(place / writer.output)), writer.name)


KINDS = [
    Kind("chains-at-once", 12, "two to four Luigis on one artefact root", chains_together),
    Kind("commands-at-once", 40, "a command that writes, twice at once", commands_together),
]
