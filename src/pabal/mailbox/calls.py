"""The library's commands: one for each method of the store contract, so that a client's store is the manager's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pabal.errors import InvalidRequest
from pabal.mailbox.command import Command
from pabal.mailbox.desk import Desk, Kind, Work
from pabal.mailbox.protocol import Request
from pabal.mailbox.wire import (
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
from pabal.store import Checkable, Draft, Outcome, Settlement, State

MOST_AT_ONCE = 1000  # messages in one answer; a call that asks for more gets these, and asks again


class _Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Publish(_Payload, frozen=True):
    drafts: list[WireDraft]


class _PublishPlain(_Payload, frozen=True):
    drafts: list[PlainDraft]


def publish(desk: Desk, request: Request) -> Work:
    try:
        asked: _Publish | _PublishPlain = request.read(_PublishPlain)
    except InvalidRequest:
        asked = request.read(_Publish)
    drafts = [draft_of(found, repeated=request.repeated) for found in asked.drafts]
    _check_senders(desk, request, drafts)
    return Work(drafts, lambda found: {"published": [[id, duplicate] for id, duplicate in found]})


def _check_senders(desk: Desk, request: Request, drafts: Sequence[Draft]) -> None:
    for draft in drafts:
        desk.check_sender(request, draft.message.sender)


class _Lease(_Payload, frozen=True):
    queue: str
    limit: int
    seconds: float
    consumer: str = ""
    token: str = ""


def lease(desk: Desk, request: Request) -> dict[str, Any]:
    asked = request.read(_Lease)
    token = check_token(asked.token) if asked.token else desk.token(request)
    consumer = check_name(asked.consumer, "consumer") if asked.consumer else ""
    leases = desk.store.lease(_name(asked.queue), _limit(asked.limit), asked.seconds, consumer=consumer, token=token)
    desk.tell_leased(leases)
    return {"leases": [wire_lease(each) for each in leases]}


class _Settle(_Payload, frozen=True):
    settlements: list[WireVerdict]
    durable: bool = False


def settle(desk: Desk, request: Request) -> Work:
    asked = request.read(_Settle)
    settlements = [settlement_of(found) for found in asked.settlements]
    _check_senders(desk, request, [draft for _, verdict in settlements for draft in verdict.then])

    def finish(outcomes: Sequence[Outcome]) -> dict[str, Any]:
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            _tell(desk, settlement, outcome)
        return {"outcomes": [outcome.value for outcome in outcomes]}

    return Work(settlements, finish, durable=asked.durable)


def _tell(desk: Desk, settlement: Settlement, outcome: Outcome) -> None:
    desk.tell_settled(settlement, "lost" if outcome is Outcome.LOST else type(settlement.verdict).__name__.lower())


class _Extend(_Payload, frozen=True):
    receipts: list[str]
    seconds: float


def extend(desk: Desk, request: Request) -> Work:
    asked = request.read(_Extend)
    receipts = [receipt_of(text) for text in asked.receipts]
    return Work(receipts, lambda outcomes: {"outcomes": [each.value for each in outcomes]}, term=asked.seconds)


class _Slice(_Payload, frozen=True):
    queue: str
    limit: int


def expired(desk: Desk, request: Request) -> dict[str, Any]:
    asked = request.read(_Slice)
    leases = desk.store.expired(_name(asked.queue), _limit(asked.limit))
    desk.tell("expired", asked.queue, count=len(leases))
    return {"leases": [wire_lease(each) for each in leases]}


class _OfQueue(_Payload, frozen=True):
    queue: str


def next_due(desk: Desk, request: Request) -> dict[str, Any]:
    return {"seconds": desk.store.next_due(_name(request.read(_OfQueue).queue))}


def counts(desk: Desk, request: Request) -> dict[str, Any]:
    found = desk.store.counts(_name(request.read(_OfQueue).queue))
    return {"counts": {str(state): many for state, many in found.items()}}


class _Browse(_Payload, frozen=True):
    queue: str
    state: State
    after: str = ""
    limit: int = 100


def browse(desk: Desk, request: Request) -> dict[str, Any]:
    asked = request.read(_Browse)
    entries = desk.store.browse(_name(asked.queue), asked.state, after=asked.after, limit=_limit(asked.limit))
    return {"entries": [wire_entry(entry) for entry in entries]}


class _Find(_Payload, frozen=True):
    queue: str
    id: str


def find(desk: Desk, request: Request) -> dict[str, Any]:
    asked = request.read(_Find)
    entry = desk.store.find(_name(asked.queue), check_id(asked.id))
    return {"entry": None if entry is None else wire_entry(entry)}


class _Revive(_Payload, frozen=True):
    queue: str
    ids: list[str]


def revive(desk: Desk, request: Request) -> dict[str, Any]:
    asked = request.read(_Revive)
    revived = desk.store.revive(_name(asked.queue), [check_id(id) for id in asked.ids])
    desk.tell("revived", asked.queue, count=len(revived))
    return {"ids": revived}


class _Purge(_Payload, frozen=True):
    queue: str
    state: State
    age: float = 0.0
    limit: int = 1000
    ids: list[str] | None = None


def purge(desk: Desk, request: Request) -> dict[str, Any]:
    asked = request.read(_Purge)
    age = check_seconds("age", asked.age)
    ids = None if asked.ids is None else [check_id(id) for id in asked.ids]
    limit = _limit(asked.limit, most=100_000)
    removed = desk.store.purge(_name(asked.queue), asked.state, age=age, limit=limit, ids=ids)
    desk.tell("purged", asked.queue, count=removed, code=str(asked.state))
    return {"removed": removed}


def queues(desk: Desk, request: Request) -> dict[str, Any]:
    request.read(_Payload)
    return {"queues": desk.store.queues()}


def settings(desk: Desk, request: Request) -> dict[str, Any]:
    return {"settings": desk.store.settings(_name(request.read(_OfQueue).queue))}


class _Configure(_Payload, frozen=True):
    queue: str
    settings: dict[str, Any]


def configure(desk: Desk, request: Request) -> dict[str, Any]:
    asked = request.read(_Configure)
    desk.store.configure(_name(asked.queue), asked.settings)
    return {}


def facts(desk: Desk, request: Request) -> dict[str, Any]:
    request.read(_Payload)
    return {"facts": dict(desk.store.facts())}


class _Check(_Payload, frozen=True):
    repair: bool = False


def check(desk: Desk, request: Request) -> dict[str, Any]:
    repair = request.read(_Check).repair
    found = desk.store.check(repair=repair) if isinstance(desk.store, Checkable) else []
    return {"findings": wire_findings(found)}


class _Watch(_Payload, frozen=True):
    queues: list[str]


def watch(desk: Desk, request: Request) -> dict[str, Any]:
    """Let the bells of these queues be rung from now on."""
    names = [_name(queue) for queue in request.read(_Watch).queues]
    return {"bells": [desk.hang_bell(name) for name in names]}


def _name(queue: str) -> str:
    return check_name(queue)


def _limit(limit: int, most: int = MOST_AT_ONCE) -> int:
    if limit < 0:
        raise InvalidRequest(f"payload.limit: 0 or more is expected; found {limit}")
    return min(limit, most)


CALLS: dict[str, Command] = {
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
