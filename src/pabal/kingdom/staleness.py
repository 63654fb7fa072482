"""Which files of the configuration have a mistake, and which changed after the process began that should follow them.

`king.yaml` and the manifests are followed as they change; all else is read when a role begins.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from pabal.errors import InvalidConfig
from pabal.kingdom.config import read_config
from pabal.kingdom.home import SYSTEM, Home
from pabal.runtime.heartbeat import read_pulse

_WITH_SETTINGS = ("sentinel", "envoy", "chamberlain")


def config_problems(home: Home) -> list[str]:
    """Name them, with what to do."""
    found = [f"{home.king_problem}: whoever runs goes on with what it said before"] if home.king_problem else []
    for role in home.config.roles:
        if role in _WITH_SETTINGS:
            found += _of_role(home, role)
    running = [role for role in home.config.roles if _began_before(home, role, home.root / SYSTEM)]
    if running:
        found.append(f"{SYSTEM} changed after {', '.join(running)} began: `pabal kingdom down`, then `up`")
    return found


def _of_role(home: Home, role: str) -> list[str]:
    settings = import_module(f"pabal.kingdom.{role}.settings")
    path = home.root / settings.FILE
    try:
        read_config(path, settings.Settings)
    except InvalidConfig as exc:
        return [f"{exc}: {role} cannot begin with it"]
    pid = _began_before(home, role, path)
    return [f"{settings.FILE} changed after {role} began: `kill {pid}`, and it begins again with that"] if pid else []


def _began_before(home: Home, role: str, path: Path) -> int:
    """Return the process of a role if the file changed after it began, else 0."""
    pulse = read_pulse(home.root / "state" / role / "heartbeat", home.clock)
    if pulse.beat is None or pulse.state == "gone":
        return 0
    try:
        changed = path.stat().st_ctime  # a file that is moved in keeps its other time
    except OSError:
        return 0
    began = home.clock.now() - (home.clock.boot() - pulse.beat.started)
    return pulse.beat.pid if changed > began else 0
