"""The campaign: kills, damages, full disks, several at once, hostile inputs and requests. `make chaos`.

    python -m tests.chaos.campaign                       all kinds, for half an hour at most
    python -m tests.chaos.campaign kills --case 17       one case again
    python -m tests.chaos.campaign --share 0.05          the first twentieth of each kind's cases

A case is a function of its kind, the seed and its number. It holds, or raises what broke.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from tests.chaos import forks
from tests.chaos.reference import Reference, make
from tests.chaos.rules import BrokenError


@dataclass(frozen=True)
class Kind:
    """Cases of one kind: `run(reference, folder, numbers)` raises what broke; `folder` is the case's own."""

    name: str
    cases: int
    what: str
    run: Callable[[Reference, Path, random.Random], None]


def kinds() -> dict[str, Kind]:
    from tests.chaos import arguments, cluster, damages, inputs, interruptions, requests

    modules = (interruptions, damages, inputs, arguments, requests, cluster)
    return {kind.name: kind for module in modules for kind in module.KINDS}


def main() -> int:
    known = kinds()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(known)}; all if none is named")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="this one alone, its folder kept")
    parser.add_argument("--share", type=float, default=1.0, help="of each kind's cases, at least one")
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no case after this many")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--reference", type=Path, help="where the undisturbed results are, or will be kept")
    asked = parser.parse_args()
    if unknown := set(asked.kinds) - set(known):
        parser.error(f"no kind {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    forks.preload()
    with tempfile.TemporaryDirectory(prefix="aoq-chaos-") as scratch:
        reference = make(asked.reference or Path(scratch) / "reference")
        chosen = [known[name] for name in asked.kinds or known]
        if asked.case is not None:
            return _again(chosen[0], asked.seed, asked.case, reference)
        cases = [(kind, number) for kind in chosen for number in range(max(1, round(kind.cases * asked.share)))]
        random.Random(asked.seed).shuffle(cases)  # each kind has its share of the time
        outcomes = _all(cases, asked.seed, reference, Path(scratch), asked.jobs, time.monotonic() + 60 * asked.minutes)
    return _report(chosen, outcomes, len(cases), asked.seed)


def _all(
    cases: list[tuple[Kind, int]], seed: int, reference: Reference, scratch: Path, jobs: int, until: float
) -> list[tuple[str, int, str | None]]:
    """Run the cases in several processes, each of which takes every n-th."""
    workers, outcomes = [], []
    for job in range(jobs):
        log = scratch / f"outcomes-{job}"
        process = os.fork()
        if process == 0:
            code = 1
            try:
                with log.open("w") as file:
                    for kind, number in cases[job::jobs]:
                        if time.monotonic() > until:
                            break
                        with tempfile.TemporaryDirectory(prefix=f"{kind.name}-{number}-", dir=scratch) as folder:
                            broke = _case(kind, seed, number, reference, Path(folder))
                        file.write(json.dumps([kind.name, number, broke]) + "\n")
                        file.flush()
                code = 0
            finally:
                os._exit(code)
        workers.append((process, log))
    for job, (process, log) in enumerate(workers):
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        ended = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
        if code != 0:
            kind, number = cases[job::jobs][len(ended)]
            ended.append((kind.name, number, f"it took its process with it, which ended with {code}"))
        outcomes += ended
    return outcomes


def _case(kind: Kind, seed: int, number: int, reference: Reference, folder: Path) -> str | None:
    try:
        kind.run(reference, folder, random.Random(f"{kind.name} {seed} {number}"))
    except BrokenError as error:
        return str(error)
    except Exception:
        return "the case itself failed: " + traceback.format_exc()
    return None


def _again(kind: Kind, seed: int, number: int, reference: Reference) -> int:
    folder = Path(tempfile.mkdtemp(prefix=f"aoq-{kind.name}-{number}-"))
    broke = _case(kind, seed, number, reference, folder)
    click.echo(f"{kind.name} {number}: {broke or 'held'}\n{folder}")
    return 1 if broke else 0


def _report(chosen: list[Kind], outcomes: list[tuple[str, int, str | None]], planned: int, seed: int) -> int:
    broken = sorted(one for one in outcomes if one[2] is not None)
    for name, number, broke in broken:
        click.echo(f"\n{name}: {broke}\n  python -m tests.chaos.campaign {name} --seed {seed} --case {number}")
    click.echo(f"\n{'':16}{'tried':>7}{'held':>7}")
    for kind in chosen:
        mine = [broke for name, _, broke in outcomes if name == kind.name]
        click.echo(f"{kind.name:16}{len(mine):7,}{mine.count(None):7,}  {kind.what}")
    if len(outcomes) < planned:
        click.echo(f"{planned - len(outcomes):,} of {planned:,} cases were not begun in time")
    return 1 if broken or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
