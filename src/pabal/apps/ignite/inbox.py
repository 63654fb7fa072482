"""Views of the mail: the inbox of an agent, a thread, a search. They change nothing.

Mail that waits, is in hand or is dead is read from the queues, all else from the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from pabal.apps.ignite.archive import MailItem, Query, item_of, text_of
from pabal.apps.ignite.workspace import TEST_TOKEN, Workspace
from pabal.errors import MessageUnknown
from pabal.message import PRIORITIES
from pabal.names import is_id
from pabal.store import Entry, State

IN_HAND, WAITING = "in hand", "waiting"
_NAMES = {State.READY: WAITING, State.INFLIGHT: IN_HAND}
_MOST = 1000  # messages of one agent in one state that are looked through


def inbox(workspace: Workspace, agent: str, *, limit: int = 200) -> list[MailItem]:
    """Return the mail that an agent or a person has in hand, then what waits, in the order in which it is given out."""
    found = [
        *_held(workspace, agent),
        *_entries(workspace, agent, State.READY),
        *_entries(workspace, agent, State.DELAYED),
    ]
    return found[:limit]


def urgent(workspace: Workspace, agent: str) -> list[MailItem]:
    """Return the critical messages that wait for an agent."""
    waiting = _entries(workspace, agent, State.READY)
    found = []
    for item in waiting:  # they are in the order in which they are given out
        if item.priority < PRIORITIES["critical"]:
            break
        found.append(item)
    return found


def find(workspace: Workspace, id: str, *, own: str = "") -> MailItem:
    """Return the message with this id, file name or path, wherever it is; raise MessageUnknown if it is nowhere.

    Of the copies of several agents the one of `own` counts first.
    """
    with suppress(MessageUnknown):
        held = workspace.find_held(id, own=own)
        if held.receipt.token != TEST_TOKEN:
            receipt = held.receipt
            return item_of(receipt.queue, held.message, state=IN_HAND, path=held.path, receipt=str(receipt))
    known = archived.find(id) if (archived := workspace.archive_if_any()) is not None else None
    for agent in sorted(workspace.team.recipients, key=lambda name: name != own):
        entry = workspace.store.find(agent, id) if is_id(id) else None
        if entry is not None and entry.message is not None:
            return item_of(agent, entry.message, state=_NAMES.get(entry.state, str(entry.state)))
    if known is None:
        raise MessageUnknown(f"no message {id!r:.80}; `pabal ignite inbox AGENT` and `pabal ignite search` list them")
    return known


def thread(workspace: Workspace, id: str) -> list[MailItem]:
    """Return the conversation that a message belongs to, the oldest message first."""
    try:
        name = find(workspace, id).thread
    except MessageUnknown:
        name = id  # the name of a thread need not be that of a message
    archived = workspace.archive_if_any()
    found = archived.thread(name) if archived is not None else []
    found = _joined(found, (item for item in _live(workspace) if name in (item.thread, item.origin)))
    if not found:
        raise MessageUnknown(f"no message or thread {id!r:.80}; `pabal ignite search` finds messages by their words")
    return sorted((_with_state(workspace, item) for item in found), key=lambda item: item.at)


def search(
    workspace: Workspace,
    text: str,
    *,
    sender: str = "",
    to: str = "",
    type: str = "",
    since: float = 0.0,
    limit: int = 50,
) -> list[MailItem]:
    """Return the messages that contain all words of a text, the newest first. See `Query` for what a word is."""
    query = Query(text)
    archived = workspace.archive_if_any()
    found = []
    if archived is not None:
        found = archived.search(query, sender=sender, to=to, type=type, since=since, limit=limit)
    live = (
        item
        for item in _live(workspace)
        if item.at >= since
        and (not sender or item.sender == sender)
        and (not type or item.type == type)
        and (not to or to in item.to)
        and query.matches(f"{item.subject}\n{text_of(item.body)}")
    )
    found = sorted(_joined(found, live), key=lambda item: -item.at)[:limit]
    return [_with_state(workspace, item) for item in found]


def _joined(found: Iterable[MailItem], more: Iterable[MailItem]) -> list[MailItem]:
    """Return each message once; the queues know more about it than the archive."""
    items = {item.origin: item for item in found}
    for item in more:
        if item.origin not in items or not items[item.origin].state:
            items[item.origin] = item
    return list(items.values())


def _live(workspace: Workspace) -> Iterator[MailItem]:
    for agent in workspace.team.recipients:
        yield from _held(workspace, agent)
        for state in (State.READY, State.DELAYED, State.DEAD):
            yield from _entries(workspace, agent, state)


def _held(workspace: Workspace, agent: str) -> Iterator[MailItem]:
    for held in workspace.held(agent):
        more = {"path": held.path, "receipt": str(held.receipt), "attempt": held.attempt}
        yield item_of(agent, held.message, state=IN_HAND, **more)


def _entries(workspace: Workspace, agent: str, state: State) -> Iterator[MailItem]:
    entries: Iterator[Entry] = workspace.queue(agent).entries(state)
    for entry in islice(entries, _MOST):
        if entry.message is not None:
            yield item_of(agent, entry.message, state=_NAMES.get(state, str(state)), attempt=entry.attempt)


def _with_state(workspace: Workspace, item: MailItem) -> MailItem:
    return item if item.state else item._replace(state=str(State.DONE))
