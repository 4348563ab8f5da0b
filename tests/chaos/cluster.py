"""`aoq mine` on a live Ray: killed, its unit files damaged, and gone on with, there or in one process."""

import random
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.damages import damage
from tests.chaos.interruptions import differences
from tests.chaos.reference import Reference, content
from tests.chaos.rules import hold, refused_well, right_table

IMAGES, SIZE = 3000, 8
COMMAND = ("aoq", "mine", "i.npy", "c.npy", "out", "--per-image", 1, "--normalise", "--h-captions", 9, "--h-images", 5)
ON_RAY = (*COMMAND, "--backend", "ray", "--memory-mb", 100)


def mine_on_ray(reference: Reference, folder: Path, rng: random.Random) -> None:
    numbers = np.random.default_rng(5)
    for name in ("i", "c"):
        np.save(folder / f"{name}.npy", numbers.normal(size=(IMAGES, SIZE)).astype(np.float32))
    ended = forks.run(COMMAND, folder)
    hold(None if ended.code == 0 else f"in one process it ends with {ended.code}: {ended.said}")
    wanted = _lists(folder)
    shutil.rmtree(folder / "out")
    before, what = {path.name for path in folder.iterdir()}, "nothing damaged"
    forks.run(ON_RAY, folder, kill_after=rng.uniform(4, 14))
    left = [path for path in folder.iterdir() if path.name not in before]
    files = sorted(p for path in left if path.name != "out" for p in path.rglob("*") if p.is_file())
    if files and rng.random() < 0.7:
        what = damage(rng.choice(files), rng)
    if not (folder / "out").exists():
        ended = forks.run(rng.choice((ON_RAY, COMMAND)), folder)
        hold(refused_well(ended), what)
    if ended.code == 0:
        hold(differences(wanted, _lists(folder)) or right_table(folder, ON_RAY), what)


def _lists(folder: Path) -> dict[str, str]:
    """All of the table but the certificates, whose bounds follow from the blocks in which captions were read."""
    return {file: sha256 for file, sha256 in content(folder / "out").items() if "certificates" not in file}


KINDS = (
    [Kind("cluster", 8, "a search on Ray killed and damaged; it goes on there or here", mine_on_ray)]
    if find_spec("ray")
    else []
)
