"""What died or could not be read, with its reason, read from the folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from pabal.ignite.workspace import Workspace
from pabal.store import Failure, State
from pabal.stores.files.reading import UNREADABLE, failure_of_text, read_failure, read_whole


class Grave(NamedTuple):
    queue: str
    id: str
    type: str
    state: str
    attempt: int
    at: float
    code: str
    reason: str
    path: str


def graves_of(workspace: Workspace, agent: str) -> Iterator[Grave]:
    """Go through what an agent's queue has buried or set aside, the oldest first."""
    if workspace.papered is not None:
        yield from _in_store(workspace, agent)
    for state in (State.DEAD, State.CORRUPT):
        folder = f"{workspace.root}/{workspace.layout.directory(agent, state)}"
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            continue
        for name in names:
            if workspace.layout.admits(name) or (state is State.CORRUPT and not name.endswith(".why")):
                yield _grave(workspace, agent, state, f"{folder}/{name}")


def _in_store(workspace: Workspace, agent: str) -> Iterator[Grave]:
    for state in (State.DEAD, State.CORRUPT):
        for entry in workspace.queue(agent).entries(state):
            failure = entry.failure or Failure("UNKNOWN", "no reason was left")
            type = entry.message.type if entry.message is not None else ""
            why = (failure.at, failure.code, failure.reason)
            yield Grave(agent, entry.id, type, state.value, entry.attempt, *why, path="")


def _grave(workspace: Workspace, agent: str, state: State, path: str) -> Grave:
    name = os.path.basename(path)
    slot = workspace.names.parse(name)
    failure = read_failure(f"{path}.why") if state is State.DEAD else _reason(f"{path}.why")
    failure = failure or Failure("UNKNOWN", "no reason was left")
    id, type = name, ""
    try:
        data, at = read_whole(path)
        message = workspace.layout.codec.decode(data, id=slot.id if slot else "", at=at)
        id, type = message.id, message.type
    except (OSError, *UNREADABLE):
        pass  # it is shown by its name
    attempt = slot.attempt if slot else 0
    return Grave(agent, id, type, state.value, attempt, failure.at, failure.code, failure.reason, path)


def _reason(path: str) -> Failure | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return failure_of_text(file.read(), os.fstat(file.fileno()).st_mtime)
    except OSError:
        return None
