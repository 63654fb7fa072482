"""The library's commands: one for each method of the store contract, so that a client's store is the manager's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pabal.errors import InvalidRequest
from pabal.mailbox.commands.command import MOST_AT_ONCE, Command, Kind, Work
from pabal.mailbox.commands.context import Context
from pabal.mailbox.protocol import Request
from pabal.mailbox.wire import (
    MOST_WATCHED,
    PlainDraft,
    WireDraft,
    WireVerdict,
    check_token,
    draft_of,
    receipt_of,
    settlement_of,
    wire_entry,
    wire_findings,
    wire_lease,
)
from pabal.message import check_seconds
from pabal.names import check_id, check_name
from pabal.store import Checkable, Draft, Outcome, State


class _Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Publish(_Payload, frozen=True):
    drafts: list[WireDraft]


class _PublishPlain(_Payload, frozen=True):
    drafts: list[PlainDraft]


def publish(context: Context, request: Request) -> Work:
    try:
        asked: _Publish | _PublishPlain = request.read(_PublishPlain)
    except InvalidRequest:
        asked = request.read(_Publish)
    drafts = [draft_of(found, repeated=request.repeated) for found in asked.drafts]
    _check_senders(context, request, drafts)
    return Work(drafts, lambda found: {"published": [[each.id, each.duplicate] for each in found]})


def _check_senders(context: Context, request: Request, drafts: Sequence[Draft]) -> None:
    for draft in drafts:
        context.check_sender(request, draft.message.sender)


class _Lease(_Payload, frozen=True):
    queue: str
    limit: int
    seconds: float
    consumer: str = ""
    token: str = ""


def lease(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Lease)
    token = check_token(asked.token) if asked.token else context.token(request)
    consumer = check_name(asked.consumer, "consumer") if asked.consumer else ""
    seconds = check_seconds("seconds", asked.seconds)
    leases = context.store.lease(check_name(asked.queue), _limit(asked.limit), seconds, consumer=consumer, token=token)
    return {"leases": [wire_lease(each) for each in leases]}


class _Settle(_Payload, frozen=True):
    settlements: list[WireVerdict]
    durable: bool = False


def settle(context: Context, request: Request) -> Work:
    asked = request.read(_Settle)
    settlements = [settlement_of(found) for found in asked.settlements]
    _check_senders(context, request, [draft for _, verdict in settlements for draft in verdict.then])
    return Work(settlements, _outcomes, durable=asked.durable)


def _outcomes(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {"outcomes": [outcome.value for outcome in outcomes]}


class _Extend(_Payload, frozen=True):
    receipts: list[str]
    seconds: float


def extend(context: Context, request: Request) -> Work:
    asked = request.read(_Extend)
    receipts = [receipt_of(text) for text in asked.receipts]
    return Work(receipts, _outcomes, term=check_seconds("seconds", asked.seconds))


class _Slice(_Payload, frozen=True):
    queue: str
    limit: int


def expired(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Slice)
    leases = context.store.expired(check_name(asked.queue), _limit(asked.limit))
    return {"leases": [wire_lease(each) for each in leases]}


class _OfQueue(_Payload, frozen=True):
    queue: str


def next_due(context: Context, request: Request) -> dict[str, Any]:
    return {"seconds": context.store.next_due(check_name(request.read(_OfQueue).queue))}


def counts(context: Context, request: Request) -> dict[str, Any]:
    found = context.store.counts(check_name(request.read(_OfQueue).queue))
    return {"counts": {str(state): many for state, many in found.items()}}


class _Browse(_Payload, frozen=True):
    queue: str
    state: State
    after: str = ""
    limit: int = 100


def browse(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Browse)
    entries = context.store.browse(check_name(asked.queue), asked.state, after=asked.after, limit=_limit(asked.limit))
    return {"entries": [wire_entry(entry) for entry in entries]}


class _Find(_Payload, frozen=True):
    queue: str
    id: str


def find(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Find)
    entry = context.store.find(check_name(asked.queue), check_id(asked.id))
    return {"entry": None if entry is None else wire_entry(entry)}


class _Revive(_Payload, frozen=True):
    queue: str
    ids: list[str]


def revive(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Revive)
    revived = context.store.revive(check_name(asked.queue), [check_id(id) for id in asked.ids])
    return {"ids": revived}


class _Purge(_Payload, frozen=True):
    queue: str
    state: State
    age: float = 0.0
    limit: int = 1000
    ids: list[str] | None = None


def purge(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Purge)
    age = check_seconds("age", asked.age)
    ids = None if asked.ids is None else [check_id(id) for id in asked.ids]
    limit = _limit(asked.limit, most=100_000)
    removed = context.store.purge(check_name(asked.queue), asked.state, age=age, limit=limit, ids=ids)
    return {"removed": removed}


def queues(context: Context, request: Request) -> dict[str, Any]:
    request.read(_Payload)
    return {"queues": context.store.queues()}


def settings(context: Context, request: Request) -> dict[str, Any]:
    return {"settings": context.store.settings(check_name(request.read(_OfQueue).queue))}


class _Configure(_Payload, frozen=True):
    queue: str
    settings: dict[str, Any]


def configure(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Configure)
    context.store.configure(check_name(asked.queue), asked.settings)
    return {}


def facts(context: Context, request: Request) -> dict[str, Any]:
    request.read(_Payload)
    return {"facts": dict(context.store.facts())}


class _Check(_Payload, frozen=True):
    repair: bool = False


def check(context: Context, request: Request) -> dict[str, Any]:
    repair = request.read(_Check).repair
    found = context.store.check(repair=repair) if isinstance(context.store, Checkable) else []
    return {"findings": wire_findings(found)}


class _Watch(_Payload, frozen=True):
    queues: list[str]


def watch(context: Context, request: Request) -> dict[str, Any]:
    """Let the bells of these queues be rung from now on."""
    names = [check_name(queue) for queue in request.read(_Watch).queues]
    if len(names) > MOST_WATCHED:
        raise InvalidRequest(f"payload.queues: {MOST_WATCHED} at most; found {len(names)}")
    return {"bells": [context.hang_bell(name) for name in names]}


def _limit(limit: int, most: int = MOST_AT_ONCE) -> int:
    """Return how many there may be in one answer: a client that wants more asks again."""
    if limit < 0:
        raise InvalidRequest(f"payload.limit: 0 or more is expected; found {limit}")
    return min(limit, most)


LIBRARY_COMMANDS: dict[str, Command] = {
    "store.publish": Command(publish, Kind.PUBLISH),
    "store.lease": Command(lease),
    "store.settle": Command(settle, Kind.SETTLE),
    "store.extend": Command(extend, Kind.EXTEND),
    "store.expired": Command(expired),
    "store.next_due": Command(next_due),
    "store.counts": Command(counts),
    "store.browse": Command(browse),
    "store.find": Command(find),
    "store.revive": Command(revive),
    "store.purge": Command(purge),
    "store.queues": Command(queues),
    "store.settings": Command(settings),
    "store.configure": Command(configure),
    "store.facts": Command(facts),
    "store.check": Command(check),
    "store.watch": Command(watch),
}
