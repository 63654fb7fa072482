"""Generals come and go: a package is a folder with a `manifest.yaml`, or a manifest alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from pabal.durable import replace_whole, translated
from pabal.errors import InvalidConfig, NameTaken, QueueUnknown
from pabal.kingdom.home import Home
from pabal.kingdom.layout import TASKS
from pabal.kingdom.manifests import FOLDER, Manifest, check_schedule, load, read_manifest
from pabal.kingdom.routing import check_claims
from pabal.store import State

MANIFEST = "manifest.yaml"


def install(home: Home, source: Path, *, force: bool = False) -> Manifest:
    """Install a general; raise NameTaken if its name or one of its types is another's."""
    path = source / MANIFEST if source.is_dir() else source
    manifest = read_manifest(path)
    for schedule in manifest.schedules:
        check_schedule(schedule)
    others = load(home.root / FOLDER).manifests
    if not force and any(other.name == manifest.name for other in others):
        raise NameTaken(f"there is a {manifest.name} already: --force puts this one in its place")
    check_claims(manifest, others)
    with translated(f"installing {manifest.name}"):
        if source.is_dir():
            _copy(source, home.root / "generals" / manifest.name)
        # Last: from here on the King gives it events.
        replace_whole(home.root / FOLDER / f"{manifest.name}.yaml", path.read_bytes(), mode=0o644)
    return manifest


def _copy(source: Path, target: Path) -> None:
    draft = target.with_name(f".{target.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)


def remove(home: Home, name: str) -> None:
    """Remove a general that has nothing left to do; raise QueueUnknown if there is none of this name."""
    paths = [path for path in (home.root / FOLDER).glob("*.yaml") if _name_in(path) == name]
    if not paths:
        raise QueueUnknown(f"no general {name!r:.80}; `pabal kingdom status` lists those there are")
    if left := _left(home, name):
        raise InvalidConfig(f"{name} has {len(left)} tasks to do, {left[0]} first: let it finish, or complete them")
    with translated(f"removing {name}"):
        for path in paths:
            path.unlink()
        shutil.rmtree(home.root / "generals" / name, ignore_errors=True)


def _name_in(path: Path) -> str:
    try:
        return read_manifest(path).name
    except InvalidConfig:
        return path.stem


def _left(home: Home, name: str) -> list[str]:
    states = (State.READY, State.DELAYED, State.INFLIGHT)
    entries = (entry for state in states for entry in home.queue(TASKS).entries(state))
    return [entry.id for entry in entries if entry.message is not None and entry.message.target == name]
