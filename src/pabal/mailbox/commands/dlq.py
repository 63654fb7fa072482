"""The commands over dead letters: list and count them, give them another chance, put them away or away for good.

All of them choose by queue, by reason (a failure's code, or text in its reason) and by age. What moves a message makes
it durable in its new place first; a crash in between leaves it in both, and asking again takes it out of the old one.
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
from pabal.errors import InvalidRequest, MessageUnknown, Refused
from pabal.judge import failure_document, refused
from pabal.mailbox.commands.command import Command, Payload, key_of, parse_key
from pabal.mailbox.commands.context import QUARANTINE, Context
from pabal.mailbox.protocol import Code, Request
from pabal.message import Message, check_seconds, replace
from pabal.policy import LARGEST_MAX_BYTES, DeadLetterPolicy, Policy
from pabal.queue import Queue
from pabal.store import Done, Draft, Entry, Failure, Outcome, Settlement, State, Terms

_SLICE = 100
_MOST = 10_000


class _Chosen(Payload, frozen=True):
    queue: str = ""
    reason: str = ""
    older_than_sec: float = 0.0
    limit: int = _MOST


class _Listed(_Chosen, frozen=True):
    limit: int = 100


class _OneOrChosen(_Chosen, frozen=True):
    message_key: str = ""


def list_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Listed)
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
        for entry, failure in _chosen(context, queue, asked)
    ]
    return {"queue": queue.name, "count": len(found), "messages": found, "total": queue.counts().get(State.DEAD, 0)}


def count_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Chosen)
    names = [asked.queue] if asked.queue else context.store.queues()
    found: dict[str, dict[str, int]] = {}
    for name in names:
        queue = context.queue(name) if asked.queue else context.any_queue(name)
        reasons = Counter(failure.code for _, failure in _chosen(context, queue, asked))
        if reasons:
            found[name] = dict(reasons.most_common())
    return {"count": sum(sum(reasons.values()) for reasons in found.values()), "queues": found}


def reprocess_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_OneOrChosen)
    if bool(asked.message_key) == bool(asked.queue):
        raise InvalidRequest("payload: messageKey, or queue with reason and olderThanSec, is expected")
    if asked.message_key:
        name, id = parse_key(asked.message_key)
        queue = context.queue(name)
        if not queue.revive([id]):
            raise _not_dead(queue, id)
        return {"messageKey": asked.message_key, "reprocessed": True}
    queue = _queue(context, asked)
    ids = [entry.id for entry, _ in _chosen(context, queue, asked)]
    revived = sum(len(queue.revive(some)) for some in _slices(ids))
    return {"queue": queue.name, "reprocessed": revived}


def purge_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Chosen)
    queue = _queue(context, asked)
    removed = _purge(context, queue, [entry.id for entry, _ in _chosen(context, queue, asked)])
    return {"queue": queue.name, "purged": removed}


def archive_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Chosen)
    queue = _queue(context, asked)
    found = list(_chosen(context, queue, asked))
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
    """Name a file that is not there yet: what an earlier, interrupted try wrote may be all that is left of it."""
    folder, stamp = Path(context.archive) / queue, round(context.clock.now() * 1000)
    while (path := folder / f"{stamp}.jsonl").exists():
        stamp += 1
    return path


def quarantine_dlq(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_OneOrChosen)
    name = parse_key(asked.message_key)[0] if asked.message_key else asked.queue
    queue = context.queue(name)
    if asked.message_key:
        found = [_one(queue, parse_key(asked.message_key)[1])]
    else:
        found = list(_chosen(context, queue, asked))
    apart = context.queue(f"{queue.name}{QUARANTINE}")
    if found and not apart.policy.paused:
        apart.pause()
    for some in _slices(found):
        context.store.publish([_set_apart(apart.name, queue, entry, failure) for entry, failure in some])
        _purge(context, queue, [entry.id for entry, _ in some])
    return {"queue": queue.name, "quarantine": apart.name, "quarantined": len(found)}


def release_dlq(context: Context, request: Request) -> dict[str, Any]:
    """Bring what is in quarantine back to its queue, each in one step."""
    asked = request.read(_Chosen)
    queue = _queue(context, asked)
    apart = context.queue(f"{queue.name}{QUARANTINE}")
    released = 0
    while leases := context.store.lease(apart.name, _SLICE, 60.0):
        settlements = [
            Settlement(lease.receipt, Done(then=(_set_free(queue, lease.message, context.clock.now()),)))
            for lease in leases
        ]
        released += sum(outcome is not Outcome.LOST for outcome in context.store.settle(settlements))
    return {"queue": queue.name, "released": released}


def _set_apart(apart: str, queue: Queue, entry: Entry, failure: Failure) -> Draft:
    """Return the failure document under an id of this one death: dying again later is another."""
    policy = Policy(dead_letters=DeadLetterPolicy(queue=apart))
    message = entry.message or Message(id=entry.id, body=None)
    draft = refused(policy, queue.name, message, failure)
    mark = sha256(f"{entry.id} {failure.at}".encode()).hexdigest()[:16]
    return replace(draft, message=replace(draft.message, id=f"{entry.id[:100]}-{mark}"))


def _set_free(queue: Queue, message: Message, now: float) -> Draft:
    """Return the original message under an id of its own: the old one may still be remembered as dead or done."""
    told = message.body if isinstance(message.body, dict) else {}
    original = message_from(told.get("originalMessage"), id=message.id, at=now)
    original = replace(original, id=message.id, dedup_key="", expires_at=None)
    return Draft(queue.name, original, terms=Terms(max_bytes=LARGEST_MAX_BYTES))


def _queue(context: Context, asked: _Chosen) -> Queue:
    if not asked.queue:
        raise InvalidRequest("payload.queue: missing")
    return context.queue(asked.queue)


def _chosen(context: Context, queue: Queue, asked: _Chosen) -> Iterator[tuple[Entry, Failure]]:
    if not 1 <= asked.limit <= _MOST:
        raise InvalidRequest(f"payload.limit: 1 to {_MOST} is expected; found {asked.limit}")
    before = context.clock.now() - check_seconds("olderThanSec", asked.older_than_sec)
    fits = (
        (entry, failure)
        for entry in queue.entries(State.DEAD)
        if (failure := entry.failure or Failure("UNKNOWN")).at <= before and _is_reason(failure, asked.reason)
    )
    return islice(fits, asked.limit)


def _is_reason(failure: Failure, reason: str) -> bool:
    return failure.code.lower() == reason.lower() or reason.lower() in failure.reason.lower()


def _one(queue: Queue, id: str) -> tuple[Entry, Failure]:
    entry = queue.find(id)
    if entry is None or entry.state is not State.DEAD:
        raise _not_dead(queue, id)
    return entry, entry.failure or Failure("UNKNOWN")


def _not_dead(queue: Queue, id: str) -> Refused:
    entry = queue.find(id)
    found = f"it is {entry.state}" if entry else "no such message"
    return Refused(Code.DLQ_NOT_FOUND, f"no dead message {id} in {queue.name}: {found}", kind=MessageUnknown.__name__)


def _purge(context: Context, queue: Queue, ids: Sequence[str]) -> int:
    return sum(context.store.purge(queue.name, State.DEAD, ids=some) for some in _slices(ids))


def _slices(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _SLICE):
        yield items[start : start + _SLICE]


def _document(queue: Queue, entry: Entry, failure: Failure) -> dict[str, Any]:
    if entry.message is None:
        return {"messageId": entry.id, "queue": queue.name, "failure": msgspec.to_builtins(failure)}
    return failure_document(queue.name, entry.message, failure)


DLQ: dict[str, Command] = {
    "list_dlq": Command(list_dlq),
    "count_dlq": Command(count_dlq),
    "reprocess_dlq": Command(reprocess_dlq),
    "purge_dlq": Command(purge_dlq),
    "archive_dlq": Command(archive_dlq),
    "quarantine_dlq": Command(quarantine_dlq),
    "release_dlq": Command(release_dlq),
}
