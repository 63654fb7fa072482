"""The table of the library's calls to a manager: for each method of the store contract its arguments and its result.

`MailboxStore` makes these calls and `pabal.mailbox.commands.store` serves them; both are written against this table, so
a method is described once. On the wire a message is its envelope, a receipt its text, and terms travel whole.

What comes from the wire is checked like all input from outside: argument structures check themselves when they are
made, drafts and settlements when they are turned into values of the store contract.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from pabal.clock import utc_seconds
from pabal.envelope import Envelope, envelope_of, message_of
from pabal.errors import InvalidInput, InvalidReceipt, InvalidRequest
from pabal.ids import is_ours
from pabal.jsontext import check
from pabal.message import MAX_INSTANT, Message, check_message, check_seconds
from pabal.names import check_id, check_name
from pabal.policy.policy import LARGEST_MAX_BYTES
from pabal.store import (
    KEPT_FAILURES,
    Consumer,
    Counters,
    Dead,
    Done,
    Draft,
    Entry,
    Failure,
    Finding,
    Lease,
    Outcome,
    Published,
    Receipt,
    Retry,
    Settlement,
    State,
    Terms,
    Verdict,
)

PREFIX = "store."  # the name of every command of the library begins with it
MAX_WATCHED = 100  # queues in one request; a client that watches more sends several, so that other clients get a turn
_DEFAULT_TERMS = Terms()
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_MAX_COUNT = 2**53 - 1  # every reader of JSON and every store can hold it

A = TypeVar("A", bound="Arguments")
R = TypeVar("R")


# Values of the store contract that hold a message, in their form on the wire.


class WireDraft(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """A `Draft`. With `givenId` false the client promises that it generated the id, a UUIDv7, for this draft only."""

    queue: str
    message: Envelope
    delay: float = 0.0
    given_id: bool = True
    terms: Terms = _DEFAULT_TERMS
    existing: bool = False
    failure: Failure | None = None


class PlainMessage(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An envelope with nothing but a body, as most are. Decoding it apart is twice as fast."""

    message_id: str
    timestamp: datetime
    payload: Any


class PlainDraft(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A `Draft` of a plain message."""

    queue: str
    message: PlainMessage
    delay: float = 0.0
    given_id: bool = True
    terms: Terms = _DEFAULT_TERMS
    existing: bool = False


class WireLease(msgspec.Struct, frozen=True, array_like=True):
    """A `Lease`."""

    receipt: str
    message: Envelope
    attempt: int
    due_at: float
    failure: Failure | None = None
    expired: bool | None = None
    consumer: str = ""


class WireEntry(NamedTuple):
    """An `Entry`: the same fields in the same order, with the message as its envelope."""

    queue: str
    id: str
    state: State
    attempt: int = 0
    due_at: float = 0.0
    message: Envelope | None = None
    failure: Failure | None = None
    data: bytes = b""
    cursor: str = ""
    token: str = ""


class WireSettlement(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A `Settlement`: `verdict` is done, retry or dead; each uses some of the other fields."""

    receipt: str
    verdict: str
    then: list[WireDraft] = []
    failure: Failure | None = None
    keep: bool = False
    delay: float = 0.0
    counted: bool = True


# The arguments of the calls. A field has the name of the method's parameter, and means the same in every call.


def check_token(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise InvalidReceipt(f"a token is 1-64 letters, digits, '-' and '_'; found {token!r:.80}")
    return token


def _check_limit(limit: int) -> None:
    if limit < 0:
        raise InvalidRequest(f"payload.limit: 0 or more is expected; found {limit}")


def _check_queues(queues: list[str]) -> None:
    if len(queues) > MAX_WATCHED:
        raise InvalidRequest(f"payload.queues: {MAX_WATCHED} at most; found {len(queues)}")
    for queue in queues:
        check_name(queue)


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "queue": check_name,
    "queues": _check_queues,
    "id": check_id,
    "ids": lambda ids: [check_id(id) for id in ids or ()],
    "limit": _check_limit,
    "seconds": partial(check_seconds, "seconds"),
    "age": partial(check_seconds, "age"),
    "consumer": lambda consumer: consumer and check_name(consumer, "consumer"),
    "token": lambda token: token and check_token(token),
}


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of a call. An unknown field is an error."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name in _CHECKS:
                _CHECKS[name](getattr(self, name))


class Nothing(Arguments, frozen=True):
    """No arguments, or no result."""


class OfQueue(Arguments, frozen=True):
    queue: str


class PublishArguments(Arguments, frozen=True):
    drafts: list[WireDraft]


class PlainPublishArguments(Arguments, frozen=True):
    drafts: list[PlainDraft]


class LeaseArguments(OfQueue, frozen=True):
    limit: int
    seconds: float
    consumer: str = ""
    token: str = ""
    successive: bool = False


class SettleArguments(Arguments, frozen=True):
    settlements: list[WireSettlement]
    durable: bool = False


class ExtendArguments(Arguments, frozen=True):
    receipts: list[str]
    seconds: float


class ExpiredArguments(OfQueue, frozen=True):
    limit: int


class BrowseArguments(OfQueue, frozen=True):
    state: State
    after: str = ""
    limit: int = 100


class OldestArguments(OfQueue, frozen=True):
    state: State


class FindArguments(OfQueue, frozen=True):
    id: str


class ReviveArguments(OfQueue, frozen=True):
    ids: list[str]


class CancelArguments(OfQueue, frozen=True):
    ids: list[str]
    inflight: bool = False


class PurgeArguments(OfQueue, frozen=True):
    state: State
    age: float = 0.0
    limit: int = 1000
    ids: list[str] | None = None


class TrimArguments(OfQueue, frozen=True):
    state: State
    age: float
    limit: int = 1000


class DeleteArguments(OfQueue, frozen=True):
    force: bool = False


class ConfigureArguments(OfQueue, frozen=True):
    settings: dict[str, Any]
    known: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET  # the document that it replaces


class CheckArguments(Arguments, frozen=True):
    repair: bool = False


class WatchArguments(Arguments, frozen=True):
    queues: list[str]


class Maybe(msgspec.Struct, Generic[R], frozen=True):
    """A result that may be None."""

    value: R | None = None


@dataclass(frozen=True)
class Call(Generic[A, R]):
    """One row of the table: a method of the store contract, its arguments and its result on the wire."""

    method: str
    arguments: type[A]
    result: type[R]

    @property
    def command(self) -> str:
        """Return the name of the mailbox command."""
        return f"{PREFIX}{self.method}"


PUBLISH = Call("publish", PublishArguments, list[Published])
LEASE = Call("lease", LeaseArguments, list[WireLease])
SETTLE = Call("settle", SettleArguments, list[Outcome])
EXTEND = Call("extend", ExtendArguments, list[Outcome])
EXPIRED = Call("expired", ExpiredArguments, list[WireLease])
NOW = Call("now", Nothing, float)
NEXT_DUE = Call("next_due", OfQueue, Maybe[float])
COUNTS = Call("counts", OfQueue, dict[State, int])
COUNTERS = Call("counters", OfQueue, Counters)
CONSUMERS = Call("consumers", Nothing, list[Consumer])
OLDEST = Call("oldest", OldestArguments, Maybe[float])
BROWSE = Call("browse", BrowseArguments, list[WireEntry])
FIND = Call("find", FindArguments, Maybe[WireEntry])
REVIVE = Call("revive", ReviveArguments, list[str])
CANCEL = Call("cancel", CancelArguments, list[str])
PURGE = Call("purge", PurgeArguments, int)
TRIM = Call("trim", TrimArguments, int)
DELETE = Call("delete", DeleteArguments, int)
QUEUES = Call("queues", Nothing, list[str])
SETTINGS = Call("settings", OfQueue, Maybe[dict[str, Any]])
CONFIGURE = Call("configure", ConfigureArguments, bool)
FACTS = Call("facts", Nothing, dict[str, str])
CHECK = Call("check", CheckArguments, list[Finding])
WATCH = Call("watch", WatchArguments, list[str])


# To the wire and back. What only the manager sends is not checked again by the client.


def wire_draft(draft: Draft) -> WireDraft:
    # msgspec leaves out a default only if it is the very same object.
    terms = _DEFAULT_TERMS if draft.terms == _DEFAULT_TERMS else draft.terms
    fields = draft.delay, draft.given_id, terms, draft.existing, draft.failure
    return WireDraft(draft.queue, envelope_of(draft.message), *fields)


def draft_of(found: WireDraft | PlainDraft, *, repeated: bool = False) -> Draft:
    """Return the draft. If the request may be a repetition (`repeated`), its id is its dedup key in any case."""
    check_name(found.queue)
    if found.delay:
        check_seconds("delay", found.delay)
    if found.terms != _DEFAULT_TERMS:
        _check_terms(found.terms)
    failure = None
    if isinstance(found, PlainDraft):
        message = _plain_message(found.message)
    else:
        message, failure = _whole_message(found.message), found.failure
        if failure is not None:
            _check_failure(failure)
    given_id = repeated or found.given_id or not is_ours(message.id)
    return Draft(found.queue, message, found.delay, given_id, found.terms, found.existing, failure)


def _check_terms(terms: Terms) -> None:
    check_seconds("terms.dedup_window", terms.dedup_window)
    if not 1 <= terms.max_bytes <= LARGEST_MAX_BYTES:
        raise InvalidRequest(f"terms.max_bytes must be 1 to {LARGEST_MAX_BYTES}; found {terms.max_bytes}")
    if not 0 <= terms.max_waiting <= _MAX_COUNT:
        raise InvalidRequest(f"terms.max_waiting must be 0 to {_MAX_COUNT}; found {terms.max_waiting}")


def _plain_message(found: PlainMessage) -> Message:
    check(found.payload)
    created_at = utc_seconds(found.timestamp)
    if not 0 <= created_at <= MAX_INSTANT:
        raise InvalidRequest(f"timestamp must be in the years 1970 to 9999; found {found.timestamp}")
    return Message(id=check_id(found.message_id), body=found.payload, created_at=created_at)


def _whole_message(found: Envelope) -> Message:
    try:
        return check_message(message_of(found))
    except InvalidInput:
        raise
    except (ValueError, TypeError, OverflowError) as exc:
        raise InvalidRequest(f"message {found.message_id!r:.80}: {exc}") from exc


def receipt_of(text: str) -> Receipt:
    receipt = Receipt.parse(text)
    if not _TOKEN.fullmatch(receipt.token):
        raise InvalidReceipt(f"a receipt is <queue>/<id>/<token>; found {text!r:.80}")
    return receipt


def wire_lease(lease: Lease) -> WireLease:
    message = envelope_of(lease.message)
    rest = lease.attempt, lease.due_at, lease.failure, lease.expired, lease.consumer
    return WireLease(str(lease.receipt), message, *rest)


def lease_of(found: WireLease) -> Lease:
    receipt = Receipt.parse(found.receipt)
    rest = found.attempt, found.due_at, found.failure, found.expired, found.consumer
    return Lease(receipt, message_of(found.message), *rest)


def wire_entry(entry: Entry) -> WireEntry:
    message = None if entry.message is None else envelope_of(entry.message)
    return WireEntry(*entry[:5], message, *entry[6:])


def entry_of(found: WireEntry) -> Entry:
    message = None if found.message is None else message_of(found.message)
    return Entry(*found[:5], message, *found[6:])


def wire_settlement(settlement: Settlement) -> WireSettlement:
    receipt, verdict = settlement
    return WireSettlement(
        str(receipt),
        type(verdict).__name__.lower(),
        [wire_draft(draft) for draft in verdict.then],
        verdict.failure,
        verdict.keep if isinstance(verdict, Done) else False,
        verdict.delay if isinstance(verdict, Retry) else 0.0,
        verdict.counted if isinstance(verdict, Retry) else True,
    )


def settlement_of(found: WireSettlement) -> Settlement:
    then = tuple(map(draft_of, found.then))
    receipt = receipt_of(found.receipt)
    if found.failure is not None:
        _check_failure(found.failure)
    verdict: Verdict
    if found.verdict == "done":
        verdict = Done(then, found.failure, found.keep)
    elif found.verdict == "retry":
        verdict = Retry(check_seconds("delay", found.delay), found.failure, then, found.counted)
    elif found.verdict == "dead" and found.failure is not None:
        verdict = Dead(found.failure, then)
    else:
        raise InvalidRequest(f"verdict must be done, retry, or dead with its failure; found {found.verdict!r:.40}")
    return Settlement(receipt, verdict)


def _check_failure(failure: Failure) -> None:
    """Refuse numbers that cannot be shown as a date or stored as a count, and more earlier failures than are kept."""
    if len(failure.before) > KEPT_FAILURES or any(each.before for each in failure.before):
        raise InvalidRequest(f"failure.before must be {KEPT_FAILURES} failures at most, which have none before them")
    for each in failure.before:
        _check_failure(each)
    if not 0 <= failure.at <= MAX_INSTANT:
        raise InvalidRequest(f"failure.at must be in the years 1970 to 9999; found {failure.at!r:.40}")
    for field, count in (("attempt", failure.attempt), ("repeats", failure.repeats)):
        if not 0 <= count <= _MAX_COUNT:
            raise InvalidRequest(f"failure.{field} must be 0 to {_MAX_COUNT}; found {count}")
