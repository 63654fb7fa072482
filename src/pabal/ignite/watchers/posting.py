"""Watchers in a workspace: where each remembers, and how its events become the team's mail.

A message's id is made from the watcher and the event's key: whoever is killed between sending and remembering sends it
again, and the store keeps one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from hashlib import sha256
from pathlib import Path

from pabal.errors import InvalidInput, QueueUnknown
from pabal.ignite import mail
from pabal.ignite.watchers.contract import Event
from pabal.ignite.watchers.settings import make_watcher, read_settings
from pabal.ignite.watchers.watching import Watching
from pabal.ignite.workspace import STATE, Workspace
from pabal.runtime.lock import PlaceLock
from pabal.store import Draft


def memory_path(workspace: Workspace, name: str) -> Path:
    """Say where a watcher remembers."""
    return workspace.root / STATE / "watchers" / f"{name}.json"


def lock_path(workspace: Workspace, name: str) -> Path:
    return memory_path(workspace, name).with_suffix(".lock")


def lock_of(workspace: Workspace, name: str) -> AbstractContextManager[PlaceLock]:
    """Let one process look for a watcher at a time; raise ManagerRunning if another does."""
    refusal = f"watcher {name} runs already"
    return closing(PlaceLock(lock_path(workspace, name), workspace.clock.now(), refusal))


def watching_of(workspace: Workspace, name: str, *, folder: Path, variables: Mapping[str, str]) -> Watching:
    """Return a watcher of the team, ready to look."""
    to = read_settings(workspace.team, name).to
    watcher = make_watcher(workspace.team, name, folder=folder, variables=variables)

    def send(events: Sequence[Event]) -> None:
        workspace.store.publish([draft for event in events for draft in _drafts(workspace, name, to, event)])

    return Watching(watcher, path=memory_path(workspace, name), send=send, clock=workspace.clock)


def _drafts(workspace: Workspace, name: str, to: str, event: Event) -> list[Draft]:
    id = f"{name}.{sha256(event.key.encode()).hexdigest()[:32]}"
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
        # It would be refused for ever: the leader is told instead, and what comes after it is not held up.
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
