"""Who rings: one inotify instance over the folders of all agents, which says whose mail moved.

Where the mail lies in a database, that rings too: it says that something came, and not for whom. Where inotify is not
to be had, or lost events, everybody has rung: the monitor then looks everywhere.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from pabal.ignite.layout import QUEUES
from pabal.ignite.workspace import BEATS, Workspace
from pabal.runtime.wake import FdWatch
from pabal.store import State, Watch
from pabal.watch import ARRIVALS, ATTRIB, CLOSE_WRITE, DELETE, MOVED_FROM, MOVED_TO, OVERFLOW, Inotify

QUEUE, PROCESSED, CORRUPT, OWN, BEAT = "queue", "processed", "corrupt", "own", "beat"
STORE, ALL = "store", "all"


class Ring(NamedTuple):
    """What happened: in which folder of which agent, to a file of which name."""

    agent: str
    where: str
    name: str


class Bells:
    """Wakes `watch` when somebody rings."""

    def __init__(self, workspace: Workspace, watch: FdWatch) -> None:
        self._workspace = workspace
        self._watch = watch
        self._watched: dict[int, tuple[str, str]] = {}
        self._inotify: Inotify | None = None
        self._agents: set[str] = set()
        self._store: tuple[frozenset[str], Watch, int] | None = None
        with suppress(OSError):
            self._inotify = Inotify()
            watch.add(self._inotify.fd)
            self._watched[self._inotify.add(workspace.root / BEATS, CLOSE_WRITE | ATTRIB | MOVED_TO)] = ("", BEAT)

    def watch(self, agent: str) -> None:
        """Hear of what happens in the folders of an agent, which are there by now."""
        self._agents.add(agent)
        if self._inotify is None:
            return
        root, layout = self._workspace.root, self._workspace.layout
        places = {
            QUEUE: (f"{QUEUES}/{agent}", ARRIVALS),
            PROCESSED: (layout.directory(agent, State.INFLIGHT), ARRIVALS | MOVED_FROM | DELETE),
            CORRUPT: (layout.directory(agent, State.CORRUPT), MOVED_TO),
            OWN: (layout.private(agent), ATTRIB | MOVED_TO),
        }
        try:
            for where, (path, mask) in places.items():
                self._watched[self._inotify.add(root / path, mask)] = (agent, where)
        except OSError:
            self.deafen()  # no watches left: from here on all is looked at again and again

    def rung(self) -> list[Ring]:
        """Return what happened since the last call."""
        found = [Ring("", STORE, "")] if self._workspace.papered is not None and self._store_rang() else []
        for watch, mask, name in self._inotify.events() if self._inotify is not None else ():
            if mask & OVERFLOW:
                found.append(Ring("", ALL, ""))
            elif watch in self._watched:
                agent, where = self._watched[watch]
                found.append(Ring(name if where == BEAT else agent, where, name))
        return list(dict.fromkeys(found))

    def deafen(self) -> None:
        """Give up hearing of files."""
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            self._watch.remove(inotify.fd)
            inotify.close()

    def close(self) -> None:
        self.deafen()
        self._close_store()

    def _store_rang(self) -> bool:
        assert self._workspace.papered is not None
        if self._store is not None and self._store[0] == self._agents:
            return self._store[1].wait(0.0)
        self._close_store()
        made = self._workspace.papered.watch(sorted(self._agents))
        self._store = (frozenset(self._agents), made, made.fileno())
        self._watch.add(made.fileno())
        return True  # something may have come while nobody listened

    def _close_store(self) -> None:
        if self._store is not None:
            self._watch.remove(self._store[2])
            self._store[1].close()
            self._store = None
