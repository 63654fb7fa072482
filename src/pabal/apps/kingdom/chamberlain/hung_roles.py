"""Hung roles: the chamberlain stops roles that hang, and the supervisor starts them again.

A role hangs if it has not finished a pass for too long, whatever its threads do. The process to stop is the one that
holds the role's lock, and the signal goes through a descriptor of it, so that no other process is hit.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from pabal.apps.kingdom.chamberlain import settings
from pabal.apps.kingdom.chamberlain.alerts import Alert
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.manifests import FOLDER, load
from pabal.apps.kingdom.sessions import Sessions, end
from pabal.runtime.heartbeat import Pulse, read_pulse
from pabal.runtime.resources import start_ticks
from pabal.runtime.role_lock import holder

OWN = "chamberlain"


class _Ending(NamedTuple):
    """A role that got SIGTERM, with a descriptor of its process."""

    fd: int
    since: float


class RoleCheck:
    """Checks every role except the chamberlain, which the supervisor checks."""

    def __init__(self, home: Home, patience: settings.Roles) -> None:
        self._home = home
        self._patience = patience
        self._ending: dict[str, _Ending] = {}
        self._gone: dict[str, float] = {}

    def names(self) -> list[str]:
        """Return the roles that should run."""
        generals = [each.name for each in load(self._home.root / FOLDER).manifests if not each.external]
        return [role for role in (*self._home.config.roles, *generals) if role != OWN]

    @property
    def busy(self) -> bool:
        return bool(self._ending)

    def check(self) -> list[Alert]:
        """Stop roles that hang; return the alerts."""
        names = self.names()
        found = [alert for name in names if (alert := self._check(name))]
        self._finish(names)
        return found

    def _check(self, name: str) -> Alert | None:
        patience = self._patience.patience_seconds
        pulse = self._pulse(name)
        now = self._home.clock.boot()
        if pulse.state == "ok":
            self._gone.pop(name, None)
            return None
        if pulse.state == "hung":
            self._end(name, f"no pass finished for {pulse.silent:.0f} s", pulse.beat.pid if pulse.beat else 0)
            return Alert(f"role-{name}", "hung", f"{name} hangs and is started again", "urgent")
        since = self._gone.setdefault(name, now)
        if now - since < patience:
            return None  # the supervisor pauses between restarts, and a first pass takes time
        if (pid := holder(self._home.root / "state" / name / "lock")) is not None:
            self._end(name, "its first pass was never finished", pid)
            return Alert(f"role-{name}", "hung", f"{name} hangs and is started again", "urgent")
        return Alert(f"role-{name}", "gone", f"{name} has not run for {patience:.0f} s or more", "urgent")

    def _pulse(self, name: str) -> Pulse:
        place = self._home.root / "state" / name / "heartbeat"
        return read_pulse(place, self._home.clock, self._patience.patience_seconds)

    def _end(self, name: str, reason: str, pid: int) -> None:
        """Send SIGTERM once, and SIGKILL after the grace period."""
        now = self._home.clock.boot()
        if name not in self._ending:
            fd = self._open(name, pid)
            if fd is None:
                return
            self._ending[name] = _Ending(fd, now)
            self._send(fd, signal.SIGTERM)
            self._home.journal.note("system.heartbeat_missed", OWN, role=name, reason=reason)
            self._home.journal.note("recovery.session_restarted", OWN, role=name, pid=pid)
        elif now - self._ending[name].since >= self._patience.grace_seconds:
            self._send(self._ending[name].fd, signal.SIGKILL)
            self._home.journal.note("recovery.session_killed", OWN, role=name, pid=pid)

    def _open(self, name: str, pid: int) -> int | None:
        place = self._home.root / "state" / name / "lock"
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return None
        if holder(place) == pid:  # checked after opening, so the descriptor is that of the holder
            return fd
        os.close(fd)
        return None

    @staticmethod
    def _send(fd: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, number)

    def _finish(self, names: Iterable[str]) -> None:
        """Forget roles that ended or that work again."""
        for name, ending in list(self._ending.items()):
            ended = bool(select.select([ending.fd], [], [], 0)[0])
            pulse = self._pulse(name)
            if ended or pulse.state == "ok" or name not in names:
                os.close(ending.fd)
                del self._ending[name]
                self._gone.pop(name, None)


def end_orphans(home: Home) -> int:
    """Kill the soldiers of generals that are gone, and remove ended soldiers from the register."""
    sessions = Sessions(home.root)
    changed = 0
    for session in sessions.all():
        if holder(home.root / "state" / session.general / "lock") is not None:
            if start_ticks(session.pid) == session.ticks:
                continue
            home.journal.note("recovery.sessions_cleaned", OWN, soldier=session.id, task=session.task_id)
        elif end(session):
            home.journal.note("system.session_orphaned", OWN, soldier=session.id, task=session.task_id)
        sessions.remove(session.id)
        changed += 1
    return changed
