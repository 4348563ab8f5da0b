"""Damaged files: what reads them says so, or ends at the same bytes as if they were whole."""

import os
import random
import shutil
from pathlib import Path

from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.interruptions import differences
from tests.chaos.mutations import DAMAGES, flip
from tests.chaos.reference import CHAINS, MINED, READERS, Reference, artefacts, content, luigi, write_experiments
from tests.chaos.rules import hold, nothing_left, refused_well, right_table

STAGES = ("world", "dataset", "first_round", "embeddings", "hard_negatives", "screen", "second_round", "evaluation")


def damage(file: Path, rng: random.Random) -> str:
    """Damage a file, or delete it; says what was done."""
    old, how = file.read_bytes(), rng.choice((*DAMAGES, None))
    if how is None or not old:
        file.unlink()
        return f"{file} deleted"
    changed = bytearray(old)
    while changed == old:
        how(changed, rng)
        if changed == old:  # nothing to blank, or two equal halves
            how = flip
    times = file.stat()
    file.write_bytes(changed)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a disk would do it
    return f"{file} after {how.__name__}"


def of_an_artefact(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Damage a published file, take away what was made after it, and make that again."""
    name = rng.choice(list(CHAINS))
    place = reference.copy_chain(name, folder / "place")
    wanted, stages = reference.made(name).files, [s for s in STAGES if (place / "artifacts" / s).is_dir()]
    last = "hard_negatives" if CHAINS[name][0] == "HardNegatives" else stages[-1]
    stage = rng.choice(stages[: stages.index(last)])
    chosen = rng.choice(sorted(p for p in (place / "artifacts" / stage).rglob("*") if p.is_file() and p.suffix))
    if chosen.suffix in (".lock", ".work"):
        chosen = chosen.parent / chosen.name.strip(".").removesuffix(".lock") / "MANIFEST.json"
    key = next(part for part in chosen.relative_to(place / "artifacts" / stage).parts)
    for later in stages[stages.index(stage) + 1 :]:
        shutil.rmtree(place / "artifacts" / later)
    for other in (place / "artifacts" / stage).iterdir():  # a later one of the same stage, made of this one
        if other.name != key and not other.name.startswith(".") and key in (other / "MANIFEST.json").read_text():
            shutil.rmtree(other)
    what = damage(chosen, rng)
    ended = forks.run(luigi(*CHAINS[name]), place)
    hold(refused_well(ended), what)
    if ended.code != 0:
        return
    relative = str(chosen.relative_to(place / "artifacts"))
    made = {file: sha256 for file, sha256 in artefacts(place).items() if file != relative}
    is_made = any(file.startswith(last) for file in made)
    hold(None if is_made else f"exit code 0, and nothing is made of {last}", what)
    hold(differences({file: wanted.get(file, "") for file in made}, made), what)  # what is needed no more is not remade


def of_unfinished_work(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Kill a chain, damage a file of the work it leaves, and go on."""
    name = rng.choice(list(CHAINS))
    write_experiments(folder)
    for _ in range(6):
        forks.run(luigi(*CHAINS[name], "--engine-checkpoint-steps", "1"), folder, kill_after=rng.uniform(0.5, 4))
        files = sorted(p for work in folder.glob("artifacts/*/.*.work") for p in work.rglob("*") if p.is_file())
        if files:
            break
    else:
        return  # it was at its end before it could be killed
    what = damage(rng.choice(files), rng)
    ended = forks.run(luigi(*CHAINS[name]), folder)
    hold(refused_well(ended), f"{name}: {what}")
    if ended.code == 0:
        hold(differences(reference.made(name).files, artefacts(folder)), f"{name}: {what}")


def of_a_table(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Damage a file of a table that a command reads: its answer is the same, or there is none."""
    whole, place = reference.copy(folder / "whole"), reference.copy(folder / "place")
    command = rng.choice(READERS)
    expected = forks.run(command, whole)
    before = {path.name for path in place.iterdir()}
    chosen = rng.choice(sorted(path for path in (place / "table").rglob("*") if path.is_file()))
    what = f"{' '.join(map(str, command))}: {damage(chosen, rng)}"
    ended = forks.run(command, place)
    hold(refused_well(ended), what)
    if ended.code != 0:
        hold(nothing_left(place, before), what)
        return
    hold(None if ended.output == expected.output else "exit code 0, and it says something else", what)
    if (whole / "out").exists():
        made = content(whole / "out"), content(place / "out")
        if "publish" in command:  # it copies a byte that no reader sees, and its README has the file's hash
            hold(right_table(place, command), what)
            made = tuple(
                {k: v for k, v in files.items() if k.split("/")[1] not in (chosen.name, "README.md")} for files in made
            )
        hold(differences(*made), what)


def of_mining_work(reference: Reference, folder: Path, rng: random.Random) -> None:
    """Kill `aoq mine`, damage what it leaves, or the copy of a file at an address, and go on."""
    place = reference.copy(folder / "place")
    (place / "luigi.cfg").write_text("[paths]\ncache_root = cache\n")
    before = {path.name for path in place.iterdir()}
    images = rng.choice(("images.npy", (place / "images.npy").as_uri()))
    command, undisturbed = ("aoq", "mine", images, "captions.npy", "out", *MINED), reference.made("mine")
    for _ in range(10):
        forks.run(command, place, kill_before=rng.randint(1, undisturbed.operations))
        if (place / "out").exists():
            shutil.rmtree(place / "out")
            continue
        left = [path for path in place.iterdir() if path.name not in before]
        files = sorted(p for path in left for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())
        if files:
            break
    else:
        return
    cached = [path for path in files if path.is_relative_to(place / "cache")]
    what = f"mine: {damage(rng.choice(cached or files), rng)}"
    ended = forks.run(command, place)
    hold(refused_well(ended), what)
    if ended.code == 0:
        hold(differences(undisturbed.files, content(place / "out")), what)


KINDS = [
    Kind("artefacts", 200, "a file of an artefact damaged; what follows it is made again", of_an_artefact),
    Kind("unfinished", 120, "a file of killed work damaged; the chain goes on", of_unfinished_work),
    Kind("tables", 150, "a file of a table damaged; a command reads it", of_a_table),
    Kind("mining", 40, "a file of a killed search, or of its cache, damaged; it goes on", of_mining_work),
]
