"""Where the applications are that ask people: named by options or the environment, or found in a folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pabal.cli.kingdom_session import variables_of

if TYPE_CHECKING:
    from pabal.apps.needs import Place

_STEPS = 2  # folders in which a kingdom is looked for, upwards


def places_here(teams: Sequence[str], kingdoms: Sequence[str], warn: Callable[[str], None]) -> list[Place]:
    """Return the teams and kingdoms that are named, or else the one that a command of this folder would use."""
    from pabal.apps.ignite.people import TeamPlace
    from pabal.apps.ignite.workspace import find_root
    from pabal.apps.kingdom.needs import KingdomPlace

    team, kingdom = _of_environment()
    found: list[Place] = [TeamPlace(Path(each), options=_option("--root", each), warn=warn) for each in teams]
    if not teams:
        found += [TeamPlace(each, warn=warn) for each in _made(team or find_root(Path.cwd()))]
    found += [KingdomPlace(Path(each), variables_of, options=_option("--home", each)) for each in kingdoms]
    if not kingdoms:
        found += [KingdomPlace(each, variables_of) for each in _kingdoms([kingdom or Path(".")])]
    return found


def places_beside(teams: Sequence[str], kingdoms: Sequence[str], folder: Path) -> list[Place]:
    """Return the teams and kingdoms that are named, or else those that belong to a folder.

    That is the team in the folder or above it, and the kingdom that is the folder or the one above it.
    """
    from pabal.apps.ignite.people import TeamPlace
    from pabal.apps.ignite.workspace import find_root
    from pabal.apps.kingdom.needs import KingdomPlace

    team, kingdom = _of_environment()
    roots = [Path(each) for each in teams] or _made(team or find_root(folder))
    homes = [Path(each) for each in kingdoms] or _kingdoms([kingdom] if kingdom else _near(folder))
    found: list[Place] = [TeamPlace(each, options=_option("--root", each)) for each in roots]
    return found + [KingdomPlace(each, variables_of, options=_option("--home", each)) for each in homes]


def _of_environment() -> tuple[Path | None, Path | None]:
    named = (os.environ.get("IGNITE_ROOT"), os.environ.get("KINGDOM_BASE_DIR"))
    team, kingdom = (Path(each) if each else None for each in named)
    return team, kingdom


def _made(root: Path | None) -> list[Path]:
    from pabal.apps.ignite.workspace import is_made

    return [root] if root is not None and is_made(root) else []


def _kingdoms(folders: Sequence[Path]) -> list[Path]:
    from pabal.apps.kingdom.home import Home

    return [each for each in folders if Home.is_at(each)][:1]


def _near(folder: Path) -> list[Path]:
    """Return the folders near this one that may be a kingdom; other programs have a config/system.yaml too."""
    return [each for each in [folder, *folder.parents][:_STEPS] if (each / "config" / "generals").is_dir()]


def _option(name: str, place: str | Path) -> str:
    return f" {name} {shlex.quote(str(place))}"
