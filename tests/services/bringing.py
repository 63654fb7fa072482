"""Bringing what tests need from a package registry into `.cache/`, once, by one process at a time."""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 240  # seconds that a package manager may take


def brought(name: str, manifest: Path, bring: Callable[[Path], object]) -> Path:
    """Return the folder that holds what the manifest names; `bring` fills it if nobody has."""
    folder = ROOT / ".cache" / f"{name}-{hashlib.sha256(manifest.read_bytes()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            bring(folder)
            (folder / "complete").touch()
    return folder


def missing(programs: tuple[str, ...], bring: Callable[[], object], what: str) -> str:
    """Say what cannot be had here, a program or what is to be brought, after trying; '' if nothing is missing."""
    for program in programs:
        if shutil.which(program) is None:
            return f"{program}: run scripts/system-packages"
    try:
        bring()
    except subprocess.SubprocessError as exc:
        return f"{what} could not bring: {exc}"
    return ""
