"""`aoq gc`: artefacts and interrupted work that nothing needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from filelock import FileLock, Timeout

from aoq.pipeline.build import UNITS, Build
from aoq.pipeline.cli.artifacts import all_stages
from aoq.pipeline.cli.options import as_json
from aoq.pipeline.cli.output import counted, echo, echo_json
from aoq.pipeline.config.named_files import names_in
from aoq.pipeline.manifest import MANIFEST, read_manifest
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.scratch import LOCK, reclaim, scratch_in, writing_in
from aoq.pipeline.settings import configured_path, runs_root


@click.command()
@click.option("--delete", is_flag=True, help="Delete what is listed; without --delete nothing is touched.")
@click.option("--unfinished", is_flag=True, help="Include interrupted work; its run would start again.")
@click.option("--data-root", default="")
@click.option("--artifact-root", default="")
@as_json
def gc(delete: bool, unfinished: bool, data_root: str, artifact_root: str, as_json: bool) -> None:
    """List or delete unused artefacts.

    Artefacts of the experiments in configs/, and those that links in runs/ lead to, are kept, with the indexes that
    their tables were searched by. Interrupted work is that of stages, and what killed commands left as .OUTPUT.work in
    the current directory or in the cache.
    """
    root = configured_path("artifact_root", artifact_root)
    needed = _needed(root, configured_path("data_root", data_root), runs_root(artifact_root))
    made = sorted(path.parent for path in root.glob(f"*/[!.]*/{MANIFEST}"))
    unneeded, begun = [path for path in made if path not in needed], []
    if unfinished:
        scratch = scratch_in(Path.cwd(), configured_path("cache_root"), *runs_root(artifact_root).glob("*"))
        begun = [*sorted(root.glob("*/.*.work")), *scratch]
    found = []
    for path in (*unneeded, *begun):
        found.append(_freed(path, delete=delete, is_finished=path in unneeded))
        if not as_json:
            _show(found[-1])
    if as_json:
        echo_json({"artefacts": len(made), "unneeded": found})
        return
    freed = sum(one["bytes"] for one in found if one["state"] != "in use") / 1e6
    said = "freed" if delete else "could be freed: aoq gc --delete"
    count = f"{len(unneeded)} of {counted(len(made), 'artefact')}" + (f", {len(begun)} unfinished" if begun else "")
    echo(f"{count}, {freed:.1f} MB {said}" if found else "nothing to free")


def _freed(path: Path, *, delete: bool, is_finished: bool) -> dict[str, Any]:
    """Delete what is there, if asked to; say what became of it."""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    state = "there" if not delete else "deleted" if _delete(path) else "in use"
    return {"path": str(path), "finished": is_finished, "bytes": size, "state": state}


def _show(one: dict[str, Any]) -> None:
    if one["state"] == "in use":
        echo(f"{one['path']} is being worked on; left alone")
    else:
        echo(f"{'deleted ' if one['state'] == 'deleted' else ''}{one['path']}  {one['bytes'] / 1e6:.1f} MB")


def _needed(root: Path, data_root: Path, runs: Path) -> set[Path]:
    needed: set[Path] = set()
    for name in names_in():
        try:
            chain = plan(name, data_root=data_root, artifact_root=root)
        except (ValueError, OSError):
            continue  # its data is not here, so neither is anything made from it, unless a link below says so
        needed |= {artifact.path for artifact in all_stages(chain).values()}
    linked = [link.resolve() for link in runs.glob("*/*") if link.is_symlink() and (link / MANIFEST).exists()]
    while linked:
        path = linked.pop()
        needed.add(path)
        upstream = (root / stage / key for stage, key in read_manifest(path)["recipe"]["upstream"])
        linked += [other for other in upstream if (other / MANIFEST).exists()]
    return needed | _indexes(root, needed)


def _indexes(root: Path, needed: Iterable[Path]) -> set[Path]:
    """Indexes that the needed tables were searched by; all indexes while a table is being searched by one."""
    from aoq.pipeline.tables.files import read_manifest as read_table_manifest

    if any(root.glob(f"hard_negatives/.*.work/{UNITS}/index-*.unit")):
        return set(root.glob("index/*"))
    found = set()
    for made in needed:
        if made.parent.name == "hard_negatives" and (made / MANIFEST).exists():
            directions = read_table_manifest(made / "table")["directions"].values()
            found |= {root / "index" / about["index"]["key"] for about in directions if "index" in about}
    return found


def _delete(path: Path) -> bool:
    """Delete an artefact, a work directory or scratch, unless a run holds its lock."""
    if (path / LOCK).exists():
        return reclaim(path)
    key = path.name.removeprefix(".").removesuffix(".work")
    lock = FileLock(path.with_name(f".{key}.lock"))
    try:
        with writing_in(path.parent), lock.acquire(timeout=0):
            (path / MANIFEST).unlink(missing_ok=True)  # first: what has no manifest is no artefact
            Build(path).clear()
            path.rmdir()
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        return False
    return True
