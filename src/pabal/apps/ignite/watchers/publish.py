"""A watcher in a workspace: what it remembers, and how its events become the team's mail.

The id of a message is made from the watcher and the event's key. A watcher that is killed between publishing and
remembering publishes the event again, and the store keeps one message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pabal.apps.ignite import mail
from pabal.apps.ignite.watchers.settings import make_watcher, read_settings
from pabal.apps.ignite.workspace import STATE, Workspace
from pabal.codecs.mime.addresses import fixed_id
from pabal.errors import InvalidInput, QueueUnknown, StoreFailed
from pabal.jsontext import Json
from pabal.runtime.role_lock import RoleLock
from pabal.runtime.state_file import StateFile
from pabal.store import Draft
from pabal.watchers import Event, Look, WatchLoop

log = logging.getLogger("pabal.ignite.watchers")

REMEMBERED = 86400.0  # seconds


class WatcherState(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a watcher: which events became messages, its cursor, and since when it watches.

    Times are seconds since the epoch.
    """

    initialized_at: float
    last_check: float
    processed_events: dict[str, float] = {}
    cursor: dict[str, Json] = {}


class EventMemory:
    """Remembers an event by its key for a day after the last look.

    An older event is not taken for new, so forgetting a key never reports an event twice.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self, now: float) -> Look:
        self._file = state_file(self._path, now)
        state = self._file.value
        return Look(now, state.initialized_at, state.last_check, state.cursor)

    def unknown(self, events: Sequence[Event]) -> list[Event]:
        state = self._file.value
        oldest = max(state.initialized_at, state.last_check - REMEMBERED)
        fresh = {event.key: event for event in events if event.at >= oldest and event.key not in state.processed_events}
        return list(fresh.values())

    def remember(self, events: Sequence[Event], cursor: Mapping[str, Json]) -> None:
        state = self._file.value
        sent = {event.key: event.at for event in events}
        after = replace(state, processed_events=state.processed_events | sent, cursor=dict(cursor))
        if after != state:
            self._file.save(after)

    def finish(self, began: float) -> None:
        state = self._file.value
        kept = {key: at for key, at in state.processed_events.items() if at >= began - REMEMBERED}
        self._file.save(replace(state, last_check=began, processed_events=kept))


def state_file(path: Path, now: float) -> StateFile[WatcherState]:
    """Read the file of a watcher; one without a file begins to watch now."""
    begin = float(int(now))  # outside, times often have whole seconds

    def damaged(exc: Exception) -> None:
        raise StoreFailed(f"{path} cannot be read ({exc}): remove it to watch from now on") from exc

    return StateFile(
        path,
        WatcherState,
        default=lambda: WatcherState(initialized_at=begin, last_check=begin),
        damaged=damaged,
    )


def state_path(workspace: Workspace, name: str) -> Path:
    """Return the file of a watcher."""
    return workspace.root / STATE / "watchers" / f"{name}.json"


def lock_path(workspace: Workspace, name: str) -> Path:
    return state_path(workspace, name).with_suffix(".lock")


def watcher_lock(workspace: Workspace, name: str) -> AbstractContextManager[RoleLock]:
    """Let one process at a time run a watcher; raise AlreadyRunning if another one does."""
    refusal = f"watcher {name} runs already"
    return closing(RoleLock(lock_path(workspace, name), workspace.clock.now(), refusal))


def watch_loop(workspace: Workspace, name: str, *, folder: Path, variables: Mapping[str, str]) -> WatchLoop[Event]:
    """Return the loop of a watcher of the team."""
    settings = read_settings(workspace.team, name)

    def publish(events: Sequence[Event]) -> None:
        drafts = [draft for event in events for draft in _drafts(workspace, name, settings.to, event)]
        workspace.store.publish(drafts)

    def ended(problem: str, pause: float) -> None:
        if problem:
            fields = {"watcher": name, "problem": problem, "again_in": pause}
            log.warning("%(problem)s; looking again in %(again_in).0f s", fields)

    return WatchLoop(
        make_watcher(workspace.team, name, folder=folder, variables=variables),
        EventMemory(state_path(workspace, name)),
        emit=publish,
        interval=lambda: settings.interval,
        clock=workspace.clock,
        ended=ended,
    )


def _drafts(workspace: Workspace, name: str, to: str, event: Event) -> list[Draft]:
    id = fixed_id(f"{name}/{event.key}")
    try:
        return mail.compose(
            workspace,
            sender=name,
            to=event.to or to,
            type=event.type,
            body=event.body,
            priority=event.priority,
            thread_id=event.thread_id,
            repository=event.repository,
            issue=event.issue,
            id=id,
        )
    except (InvalidInput, QueueUnknown) as exc:
        # It would be refused for ever. The leader gets an escalation instead, and later events are not held up.
        reason = f"{exc.code}: {exc}"
        return mail.compose(
            workspace,
            sender=name,
            to=workspace.team.leader,
            type="escalation",
            body={"task_id": id, "title": f"an event of {name} that is no message", "failure_reason": reason},
            priority="high",
            id=id,
        )
