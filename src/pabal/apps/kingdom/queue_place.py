"""Where the queues of a kingdom are, and how they move: `state/queues.json` has the place that was used last.

If `queues:` in `config/system.yaml` changes, what waits in the old place would be left behind. So no role starts until
`move-queues` has moved it, or the setting is changed back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import msgspec

from pabal import durable, jsontext
from pabal.apps.kingdom.config import ROLES
from pabal.apps.kingdom.home import Home, policy_of
from pabal.apps.kingdom.king.archive import COMPLETED_QUEUE, DISPATCHED
from pabal.apps.kingdom.layout import (
    COMPLETED,
    COMPLETED_TASKS,
    EVENTS,
    MESSAGES,
    QUEUES,
    RESULTS,
    RESULTS_ARCHIVE,
    TASKS,
)
from pabal.apps.kingdom.manifests import FOLDER, load
from pabal.apps.kingdom.outside_tasks import outside_names
from pabal.apps.kingdom.supervision import LOCK
from pabal.errors import AlreadyRunning, InvalidConfig, InvalidInput, PabalError, StoreFailed
from pabal.message import Message
from pabal.names import shown_url
from pabal.queues.move import Moved, move
from pabal.queues.queue import Queue
from pabal.runtime.role_lock import holder
from pabal.runtime.state_file import DAMAGED, read_state, write_state
from pabal.store import Draft, Entry, State, Store

RECORD = "state/queues.json"
SENT = "queue/messages/sent"
_PAUSE = 0.2  # seconds
_WAITING = (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD, State.CORRUPT)


class Place(msgspec.Struct, frozen=True):
    """A store URL as in `config/system.yaml`; empty for the files of the home."""

    queues: str = ""


def require_place(home: Home) -> None:
    """Record the place of the queues; raise InvalidConfig if documents wait in the place before."""
    if problem := place_problem(home):
        raise InvalidConfig(problem)
    if _recorded(home) != home.config.queues:
        write_state(home.root / RECORD, Place(home.config.queues))


def place_problem(home: Home) -> str:
    """Return what is wrong with the place of the queues; empty if nothing is."""
    before = _recorded(home)
    if before is None or before == home.config.queues:
        return ""
    try:
        with closing(home.store_at(before)) as store:
            left = sum(store.counts(name)[state] for name in _present(store) for state in _WAITING)
            left += 0 if before else len(outside_names(home))
    except PabalError as exc:
        return f"queues changed from {_shown(before)}, which cannot be opened: {exc}; set it back, or remove {RECORD}"
    if not left:
        return ""
    return (
        f"queues changed from {_shown(before)} to {_shown(home.config.queues)}, and {left} documents are still there:"
        " `pabal kingdom move-queues` moves them, or set queues back"
    )


def move_queues(home: Home, progress: Callable[[Moved], None]) -> dict[str, int]:
    """Move all that is in the place before to the configured one; return how many documents of each queue.

    May be killed and started again. Raise AlreadyRunning while a role runs.
    """
    roles = [*ROLES, *(manifest.name for manifest in load(home.root / FOLDER).manifests)]
    for name in (LOCK, *(f"state/{role}/lock" for role in roles)):
        if (pid := holder(home.root / name)) is not None:
            raise AlreadyRunning(f"process {pid} works on {home.root}: `pabal kingdom down` first")
    before = _recorded(home)
    moved: dict[str, int] = {}
    if before is not None and before != home.config.queues:
        with closing(home.store_at(before)) as source:
            _require_movable(home, source, from_files=not before)
            policies = policy_of(home.config)
            wait = home.config.lease_seconds + 5  # for the leases of roles that were killed
            for name in [each for each in _present(source) if each != COMPLETED_QUEUE]:
                if home.on_files and not any(home.store.counts(name).values()):
                    # Its documents were moved away before: they are no duplicates of what they were then.
                    home.store.delete(name)
                Queue(name, home.store, clock=home.clock).ensure_policy(policies[name])
                old = Queue(name, source, clock=home.clock)
                if home.on_files:
                    moved[name] = _to_files(home, old, wait, progress)
                else:
                    found = move(source, home.store, name, wait=wait, progress=progress, clock=home.clock)
                    moved[name] = found.ready + found.delayed + found.dead + found.done
                    if found.left:
                        raise AlreadyRunning(
                            f"{found.left} documents of {name} are in the hands of a process: try again"
                        )
                old.purge(State.DONE)  # they were carried too; left there, they would be known if the queues come back
                old.resume()  # the move paused it
            moved[COMPLETED_QUEUE] = _move_completed(home, source, from_files=not before)
    write_state(home.root / RECORD, Place(home.config.queues))
    return moved


def _require_movable(home: Home, source: Store, *, from_files: bool) -> None:
    """Raise InvalidConfig if there is something that cannot be moved: it would be forgotten."""
    stuck = [
        f"{entry.id} of {name} is malformed"
        for name in _present(source)
        for entry in Queue(name, source, clock=home.clock).entries(State.CORRUPT)
    ]
    advice = "`pabal kingdom requeue` or `dismiss` it"
    if not stuck and from_files:
        stuck = [f"another program has {name} in hand" for name in outside_names(home)]
        advice = "let it finish, or `pabal kingdom cancel` it"
    if stuck:
        more = f", and {len(stuck) - 1} more" if len(stuck) > 1 else ""
        raise InvalidConfig(f"{stuck[0]}{more}: set queues back in config/system.yaml, {advice}, then move again")


def _to_files(home: Home, old: Queue, wait: float, progress: Callable[[Moved], None]) -> int:
    """Move the documents of one queue to the files of the home, which have plain names."""
    deadline = home.clock.boot() + wait
    while old.counts()[State.INFLIGHT] and home.clock.boot() < deadline:
        old.sweep()
        time.sleep(_PAUSE)
    if held := old.counts()[State.INFLIGHT]:
        raise AlreadyRunning(f"a process holds {held} documents of {old.name}: try again")
    count = 0
    for state in (State.READY, State.DELAYED, State.DEAD, State.DONE):
        for entry in list(old.entries(state)):
            if entry.message is None:
                continue  # a tombstone
            if state is State.DONE:
                _keep_done(home, old, entry)
            else:
                delay = max(0.0, entry.due_at - home.clock.now()) if state is State.DELAYED else 0.0
                failure = entry.failure if state is State.DEAD else None
                [published] = home.store.publish([Draft(old.name, entry.message, delay=delay, failure=failure)])
                if published.duplicate and home.store.find(old.name, published.id) is None:
                    raise StoreFailed(f"{entry.id} of {old.name} cannot be moved: {published.id} was there before")
            old.store.purge(old.name, state, ids=[entry.id], limit=1)
            count += 1
            progress(Moved(old.name, ready=count))
    return count


def _keep_done(home: Home, old: Queue, entry: Entry) -> None:
    """Write what is over: events and messages under the names of their store, results and tasks under plain names."""
    assert entry.message is not None
    if old.name in (EVENTS, MESSAGES):
        folder, word = (DISPATCHED, "dispatched") if old.name == EVENTS else (SENT, "sent")
        name = f"{entry.id}~a1~s{int(home.clock.now() * 1000):x}.moved.json"
        body = entry.message.body if isinstance(entry.message.body, dict) else {}
        document = {**body, "id": entry.id, "status": word}
        durable.replace_whole(home.root / folder / name, jsontext.pretty(document))
    elif old.name in (TASKS, RESULTS):
        folder = COMPLETED_TASKS if old.name == TASKS else RESULTS_ARCHIVE
        durable.replace_whole(home.root / folder / f"{entry.id}.json", jsontext.pretty(entry.message.body))


def _move_completed(home: Home, source: Store, *, from_files: bool) -> int:
    count = 0
    if from_files:
        for path in sorted((home.root / COMPLETED).glob("*.json")):
            try:
                body = jsontext.read(path.read_bytes())
                message = Message(id=path.stem, type=str(body.get("type", "")), body=body)
                home.queue(COMPLETED_QUEUE).publish_many([message])
            except (InvalidInput, AttributeError):
                continue  # it stays as it is
            path.unlink()
            count += 1
        return count
    completed = Queue(COMPLETED_QUEUE, source, clock=home.clock)
    for entry in list(completed.entries(State.READY)):
        if entry.message is not None:
            if home.on_files:
                durable.replace_whole(home.root / COMPLETED / f"{entry.id}.json", jsontext.pretty(entry.message.body))
            else:
                home.queue(COMPLETED_QUEUE).publish_many([entry.message])
            source.purge(COMPLETED_QUEUE, State.READY, ids=[entry.id], limit=1)
            count += 1
    return count


def _recorded(home: Home) -> str | None:
    """Return the place that was used last; None if that is not known and nothing tells it."""
    try:
        return read_state(home.root / RECORD, Place).queues
    except DAMAGED:
        # A kingdom from before the record: its files tell it.
        waits = any((home.root / "queue").glob("*/pending/*.json")) or any((home.root / "state/queues").glob("*/"))
        return "" if waits and not home.on_files else None


def _present(store: Store) -> list[str]:
    return [name for name in (*QUEUES, COMPLETED_QUEUE) if name in store.queues()]


def _shown(queues: str) -> str:
    return shown_url(queues) if queues else "files"
