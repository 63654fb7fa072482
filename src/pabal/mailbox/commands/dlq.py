"""The commands for dead letters: list, count, reprocess, purge, archive, quarantine, release.

All of them select by queue, by reason (a failure's code, or text in its reason) and by age. A command that moves a
message makes it durable in its new place first. A crash in between leaves it in both places, and repeating the command
removes it from the old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from pabal import jsontext
from pabal.durable import make_dirs, replace_whole, translated
from pabal.envelope import message_from
from pabal.errors import InvalidRequest, MessageUnknown, Refused, ValidationFailed
from pabal.mailbox.commands.context import QUARANTINE, Command, Context, Payload, key_of, parse_key
from pabal.mailbox.protocol import Code, Request
from pabal.message import Message, check_seconds, replace
from pabal.policy.policy import LARGEST_MAX_BYTES
from pabal.queues.queue import Queue
from pabal.queues.verdicts import failure_document, lasting_dead_letter
from pabal.store import Done, Draft, Entry, Failure, Outcome, Settlement, State, Terms

_BATCH = 100
_MAX_SELECTED = 10_000


class _Selection(Payload, frozen=True):
    queue: str = ""
    reason: str = ""
    older_than_sec: float = 0.0
    limit: int = _MAX_SELECTED


class _ListSelection(_Selection, frozen=True):
    limit: int = 100


class _OneOrSelected(_Selection, frozen=True):
    message_key: str = ""


def list_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_ListSelection)
    queue = _queue(context, asked)
    found = [
        {
            "messageKey": key_of(queue.name, entry.id),
            "queue": queue.name,
            "reason": failure.reason or failure.code,
            "reasonCode": failure.code,
            "dlqAt": round(failure.at * 1000),
            "attempt": entry.attempt,
            "consumerId": failure.consumer,
        }
        for entry, failure in _selected(context, queue, asked)
    ]
    return {"queue": queue.name, "count": len(found), "messages": found, "total": queue.counts().get(State.DEAD, 0)}


def count_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Selection)
    names = [asked.queue] if asked.queue else context.store.queues()
    found: dict[str, dict[str, int]] = {}
    for name in names:
        queue = context.queue(name) if asked.queue else context.any_queue(name)
        reasons = Counter(failure.code for _, failure in _fitting(context, queue, asked))
        if reasons:
            found[name] = dict(reasons.most_common())
    return {"count": sum(sum(reasons.values()) for reasons in found.values()), "queues": found}


def reprocess_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_OneOrSelected)
    if bool(asked.message_key) == bool(asked.queue):
        raise InvalidRequest("payload: messageKey, or queue with reason and olderThanSec, is expected")
    if asked.message_key:
        name, id = parse_key(asked.message_key)
        queue = context.queue(name)
        if not queue.revive([id]):
            raise _not_dead(queue, id)
        return {"messageKey": asked.message_key, "reprocessed": True}
    queue = _queue(context, asked)
    ids = [entry.id for entry, _ in _selected(context, queue, asked)]
    revived = sum(len(queue.revive(some)) for some in _batches(ids))
    return {"queue": queue.name, "reprocessed": revived}


def purge_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Selection)
    queue = _queue(context, asked)
    removed = _purge(context, queue, [entry.id for entry, _ in _selected(context, queue, asked)])
    return {"queue": queue.name, "purged": removed}


def archive_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Selection)
    queue = _queue(context, asked)
    found = list(_selected(context, queue, asked))
    if not found:
        return {"queue": queue.name, "archived": 0, "file": None}
    lines = [jsontext.encode(_document(queue, entry, failure)) for entry, failure in found]
    path = _archive_file(context, queue.name)
    with translated(f"writing {path}"):
        make_dirs(path.parent)
        replace_whole(path, b"\n".join([*lines, b""]))
    _purge(context, queue, [entry.id for entry, _ in found])
    return {"queue": queue.name, "archived": len(found), "file": str(path)}


def _archive_file(context: Context, queue: str) -> Path:
    """Return a path that does not exist: an interrupted command may have left the only copy of its messages there."""
    folder, stamp = Path(context.archive) / queue, round(context.clock.now() * 1000)
    while (path := folder / f"{stamp}.jsonl").exists():
        stamp += 1
    return path


def quarantine_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_OneOrSelected)
    name = parse_key(asked.message_key)[0] if asked.message_key else asked.queue
    queue = context.queue(name)
    if asked.message_key:
        found = [_one(queue, parse_key(asked.message_key)[1])]
    else:
        found = list(_selected(context, queue, asked))
    quarantine_queue = context.queue(f"{queue.name}{QUARANTINE}")
    if found and not quarantine_queue.paused:
        quarantine_queue.pause()
    for some in _batches(found):
        context.store.publish([_quarantined(quarantine_queue.name, queue, entry, failure) for entry, failure in some])
        _purge(context, queue, [entry.id for entry, _ in some])
    return {"queue": queue.name, "quarantine": quarantine_queue.name, "quarantined": len(found)}


def release_dlq(context: Context, request: Request) -> dict[str, Any]:
    """Move the messages in quarantine back to their queue, each in one step."""
    asked = request.read(_Selection)
    queue = _queue(context, asked)
    quarantine_queue = context.queue(f"{queue.name}{QUARANTINE}")
    released = 0
    while leases := context.store.lease(quarantine_queue.name, _BATCH, 60.0):
        settlements = [
            Settlement(lease.receipt, Done(then=(_released(queue, lease.message, context.clock.now()),)))
            for lease in leases
        ]
        released += sum(outcome is not Outcome.LOST for outcome in context.store.settle(settlements))
    return {"queue": queue.name, "released": released}


def _quarantined(quarantine_queue: str, queue: Queue, entry: Entry, failure: Failure) -> Draft:
    """Return the failure document with an id made of message and failure: a later failure gets another id."""
    message = entry.message or Message(id=entry.id, body=None)
    draft = lasting_dead_letter(quarantine_queue, queue.name, message, failure)
    mark = sha256(f"{entry.id} {failure.at}".encode()).hexdigest()[:16]
    return replace(draft, message=replace(draft.message, id=f"{entry.id[:100]}-{mark}"))


def _released(queue: Queue, message: Message, now: float) -> Draft:
    """Return the original message with its id, or with a new one if the queue has a message of that id again.

    The id is no dedup key here: the store may remember it as published, and would drop the message.
    """
    document = message.body if isinstance(message.body, dict) else {}
    original = message_from(document.get("originalMessage"), id=message.id, at=now)
    taken = queue.find(original.id) is not None
    original = replace(original, id=message.id if taken else original.id, dedup_key="", unique="", expires_at=None)
    return Draft(queue.name, original, given_id=taken, terms=Terms(max_bytes=LARGEST_MAX_BYTES))


def _queue(context: Context, asked: _Selection) -> Queue:
    if not asked.queue:
        raise InvalidRequest("payload.queue: missing")
    return context.queue(asked.queue)


def _selected(context: Context, queue: Queue, asked: _Selection) -> Iterator[tuple[Entry, Failure]]:
    if not 1 <= asked.limit <= _MAX_SELECTED:
        raise InvalidRequest(f"payload.limit: 1 to {_MAX_SELECTED} is expected; found {asked.limit}")
    return islice(_fitting(context, queue, asked), asked.limit)


def _fitting(context: Context, queue: Queue, asked: _Selection) -> Iterator[tuple[Entry, Failure]]:
    """Yield the dead messages of this reason and age, however many there are."""
    before = context.clock.now() - check_seconds("olderThanSec", asked.older_than_sec)
    reason = asked.reason.lower()
    for entry in queue.entries(State.DEAD):
        failure = entry.failure or Failure("UNKNOWN")
        if failure.at <= before and (failure.code.lower() == reason or reason in failure.reason.lower()):
            yield entry, failure


def _one(queue: Queue, id: str) -> tuple[Entry, Failure]:
    entry = queue.find(id)
    if entry is None or entry.state is not State.DEAD:
        raise _not_dead(queue, id)
    return entry, entry.failure or Failure("UNKNOWN")


def _not_dead(queue: Queue, id: str) -> Refused:
    if unfit := queue.still_unfit(id):
        return Refused(Code.VALIDATION_FAILED, f"{id} of {queue.name}: {unfit}", kind=ValidationFailed.__name__)
    entry = queue.find(id)
    found = f"it is {entry.state}" if entry else "no such message"
    return Refused(Code.DLQ_NOT_FOUND, f"no dead message {id} in {queue.name}: {found}", kind=MessageUnknown.__name__)


def _purge(context: Context, queue: Queue, ids: Sequence[str]) -> int:
    return sum(context.store.purge(queue.name, State.DEAD, ids=some) for some in _batches(ids))


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def _document(queue: Queue, entry: Entry, failure: Failure) -> dict[str, Any]:
    if entry.message is None:
        return {"messageId": entry.id, "queue": queue.name, "failure": msgspec.to_builtins(failure)}
    return failure_document(queue.name, entry.message, failure, queue.policy.dead_letters.queue)


DLQ_COMMANDS: dict[str, Command] = {
    "list_dlq": Command(list_dlq),
    "count_dlq": Command(count_dlq),
    "reprocess_dlq": Command(reprocess_dlq),
    "purge_dlq": Command(purge_dlq),
    "archive_dlq": Command(archive_dlq),
    "quarantine_dlq": Command(quarantine_dlq),
    "release_dlq": Command(release_dlq),
}
