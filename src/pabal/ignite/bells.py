"""Who rings: one inotify instance over the folders of all agents, which says whose mail moved.

Where inotify is not to be had, or lost events, everybody has rung: the monitor then looks everywhere.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from pabal.ignite.layout import QUEUES
from pabal.ignite.workspace import BEATS, Workspace
from pabal.store import State
from pabal.watch import ARRIVALS, ATTRIB, CLOSE_WRITE, DELETE, MOVED_FROM, MOVED_TO, OVERFLOW, Inotify

QUEUE, PROCESSED, CORRUPT, OWN, BEAT, ALL = "queue", "processed", "corrupt", "own", "beat", "all"


class Ring(NamedTuple):
    """What happened: in which folder of which agent, to a file of which name."""

    agent: str
    where: str
    name: str


class Bells:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._watched: dict[int, tuple[str, str]] = {}
        self._inotify: Inotify | None = None
        with suppress(OSError):
            self._inotify = Inotify()
            self._watched[self._inotify.add(workspace.root / BEATS, CLOSE_WRITE | ATTRIB | MOVED_TO)] = ("", BEAT)

    @property
    def descriptor(self) -> int | None:
        """What is readable when somebody rang; None where only the slow look is left."""
        return self._inotify.fd if self._inotify is not None else None

    def watch(self, agent: str) -> None:
        """Hear of what happens in the folders of an agent, which are there by now."""
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
            self.close()  # no watches left: from here on all is looked at again and again

    def rung(self) -> list[Ring]:
        """Return what happened since the last call."""
        if self._inotify is None:
            return []
        found: list[Ring] = []
        for watch, mask, name in self._inotify.events():
            if mask & OVERFLOW:
                found.append(Ring("", ALL, ""))
            elif watch in self._watched:
                agent, where = self._watched[watch]
                found.append(Ring(name if where == BEAT else agent, where, name))
        return list(dict.fromkeys(found))

    def close(self) -> None:
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            inotify.close()
