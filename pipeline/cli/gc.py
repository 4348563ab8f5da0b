"""`aoq gc`: artefacts and interrupted work that nothing uses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from filelock import FileLock, Timeout

from aoq.pipeline.build import MANIFEST_FILE, UNITS, Build, read_artifact_manifest
from aoq.pipeline.cli.artifacts import all_stages
from aoq.pipeline.cli.options import as_json, roots
from aoq.pipeline.cli.output import command_line, counted, decimal, echo, echo_json
from aoq.pipeline.config.load import names_in
from aoq.pipeline.files import LOCK, reclaim, scratch_in, writing_in
from aoq.pipeline.settings import configured_path, runs_root
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.tables.files import read_manifest


@click.command("gc")
@click.option("--delete", is_flag=True, help="Delete what is listed; without --delete nothing is touched.")
@click.option("--unfinished", is_flag=True, help="Include interrupted work; its run would start over.")
@click.option("--run", "dropped", multiple=True, help="A folder of runs/ whose links are ignored; --delete removes it.")
@roots
@as_json
def gc_command(
    delete: bool, unfinished: bool, dropped: tuple[str, ...], data_root: Path, artifact_root: Path, as_json: bool
) -> None:
    """List or delete unused artefacts.

    Keeps the artefacts of experiments in configs/ and those that links in runs/ lead to, with the search indexes of
    their tables. Interrupted work is that of stages, and what killed commands left as .OUTPUT.work in the current
    directory or in the cache.
    """
    root, runs = artifact_root, runs_root(artifact_root)
    # [paths] may have named the root since, or no longer name it: its links are in any of these.
    places = {runs, root / "runs", configured_path("runs_root")}
    run_folders = [path for place in places for path in place.glob("*")]
    names = {path.name for path in run_folders}
    if absent := [name for name in dropped if name not in names]:
        raise ValueError(f"there is no run {absent[0]!r} in {runs}; its runs are {sorted(names)}.")
    needed = _needed(root, data_root, [path for path in run_folders if path.name not in dropped])
    artefacts = sorted(path.parent for path in root.glob(f"*/[!.]*/{MANIFEST_FILE}"))
    locked = (lock.with_name(lock.stem[1:]) for lock in sorted(root.glob("*/.*.lock")))
    half_deleted = [path for path in locked if path.is_dir() and path not in artefacts]  # by an `aoq gc` killed
    unneeded, interrupted = [*(path for path in artefacts if path not in needed), *half_deleted], []
    if unfinished:
        scratch = scratch_in(Path.cwd(), configured_path("cache_root"), *run_folders)
        interrupted = [*sorted(root.glob("*/.*.work")), *scratch]
    for run in (run for run in run_folders if delete and run.name in dropped and run.parent in (runs, root / "runs")):
        for link in filter(Path.is_symlink, run.glob("*")):
            link.unlink()
        with suppress(OSError):  # another file is there
            run.rmdir()
    folders: list[dict[str, Any]] = []
    for path in (*unneeded, *interrupted):
        about = {"path": str(path), "finished": path in unneeded, "bytes": _folder_bytes(path)}
        folders.append({**about, "state": "there" if not delete else "deleted" if _delete(path) else "in use"})
    if as_json:
        echo_json({"artefacts": len(artefacts), "unneeded": folders})
        return
    for one in folders:
        if one["state"] == "in use":
            echo(f"{one['path']} is in use; left alone")
        else:
            echo(f"{'deleted ' if delete else ''}{one['path']}  {decimal(one['bytes'])}")
    free = [one for one in folders if one["state"] != "in use"]
    if not free:
        echo("nothing to free")
        return
    parts = sum(not one["finished"] for one in free)
    count = f"{len(free) - parts} of {counted(len(artefacts), 'artefact')}" + (f", {parts} unfinished" if parts else "")
    command = command_line(
        "aoq", "gc", "--delete", *["--unfinished"] * unfinished, *(f"--run={name}" for name in dropped)
    )
    outcome = "freed" if delete else f"could be freed: {command}"
    echo(f"{count}, {decimal(sum(one['bytes'] for one in free))} {outcome}")


def _folder_bytes(folder: Path) -> int:
    """Count the bytes below a folder; a run may remove files from it meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += os.stat(os.path.join(place, name)).st_size
    return size


def _delete(path: Path) -> bool:
    """Delete an artefact, work directory or scratch folder; return False if a run holds its lock."""
    if (path / LOCK).exists():
        return reclaim(path)
    lock = path.with_name(f".{path.name.removeprefix('.').removesuffix('.work')}.lock")
    try:
        with writing_in(path.parent), FileLock(lock).acquire(timeout=0):
            (path / MANIFEST_FILE).unlink(missing_ok=True)  # first: a folder without a manifest is no artefact
            Build(path).clear()
            path.rmdir()
            lock.unlink(missing_ok=True)
    except Timeout:
        return False
    return True


def _needed(root: Path, data_root: Path, runs: Iterable[Path]) -> set[Path]:
    needed: set[Path] = set()
    for name in names_in():
        with suppress(ValueError, OSError):  # without its data only links lead to its artefacts
            chain = plan(name, data_root=data_root, artifact_root=root)
            needed |= {artifact.path for artifact in all_stages(chain).values()}
    links = (link for run in runs for link in run.glob("*") if link.is_symlink())
    # The root, or a stage's folder in it, may be a link.
    linked = [root.joinpath(*path.parts[-2:]) for link in links for path in (Path(os.readlink(link)), link.resolve())]
    while linked:
        if ((path := linked.pop()) / MANIFEST_FILE).exists():
            needed.add(path)
            linked += [root / stage / key for stage, key in read_artifact_manifest(path)["recipe"]["upstream"]]
    return needed | _indexes(root, needed)


def _indexes(root: Path, needed: Iterable[Path]) -> set[Path]:
    """Find the indexes of the needed tables, or all indexes while a table is being searched."""
    if any(root.glob(f"hard_negatives/.*.work/{UNITS}/index-*.unit")):
        return set(root.glob("index/*"))
    tables = (
        path / "table" for path in needed if path.parent.name == "hard_negatives" and (path / MANIFEST_FILE).exists()
    )
    directions = (about for table in tables for about in read_manifest(table)["directions"].values())
    return {root / "index" / about["index"]["key"] for about in directions if "index" in about}
