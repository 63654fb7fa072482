"""Values of the store contract as JSON documents and back: what the library and the manager say to each other.

A message is its envelope, a receipt its text. What comes from the wire is checked like everything from outside.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from pabal.envelope import Envelope, envelope_of, message_of
from pabal.errors import InvalidInput, InvalidReceipt, InvalidRequest
from pabal.ids import is_ours
from pabal.jsontext import check
from pabal.message import MAX_INSTANT, Message, check_message, check_seconds
from pabal.names import check_id, check_name
from pabal.policy import DEFAULT_MAX_BYTES, LARGEST_MAX_BYTES
from pabal.store import Dead, Done, Draft, Entry, Failure, Finding, Lease, Receipt, Retry, Settlement, State, Terms
from pabal.store import Verdict as StoreVerdict

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
MOST_WATCHED = 100  # queues in one request: a client that watches more asks again, and others have their turn between
_LARGEST = 2**53 - 1  # a count that every reader of JSON and every store can hold


class WireTerms(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    dedup_window: float = 300.0
    max_bytes: int = DEFAULT_MAX_BYTES
    max_waiting: int = 0


class WireDraft(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """`givenId` false is the client's word that nobody has asked for this id before, nor will again; UUIDv7 only."""

    queue: str
    message: Envelope
    delay: float = 0.0
    given_id: bool = True
    terms: WireTerms = WireTerms()


class PlainMessage(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An envelope that says nothing beside its body, as most do: read apart because that is twice as fast."""

    message_id: str
    timestamp: datetime
    payload: Any


class PlainDraft(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    queue: str
    message: PlainMessage
    delay: float = 0.0
    given_id: bool = True
    terms: WireTerms = WireTerms()


class WireLease(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    receipt: str
    message: Envelope
    attempt: int
    due_at: float
    failure: Failure | None = None


class WireVerdict(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`verdict` is done, retry or dead; the other fields belong to some of these."""

    receipt: str
    verdict: str
    then: list[WireDraft] = []
    failure: Failure | None = None
    keep: bool = False
    delay: float = 0.0


class WireEntry(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    queue: str
    id: str
    state: str
    attempt: int = 0
    due_at: float = 0.0
    message: Envelope | None = None
    failure: Failure | None = None
    data: str = ""
    cursor: str = ""
    token: str = ""


class WireFinding(msgspec.Struct, frozen=True):
    where: str
    problem: str
    remedy: str
    repaired: bool


def wire_draft(draft: Draft) -> WireDraft:
    terms = WireTerms(*draft.terms) if draft.terms != _COMMON else _COMMON_WIRE
    return WireDraft(draft.queue, envelope_of(draft.message), draft.delay, draft.given_id, terms)


def draft_of(found: WireDraft | PlainDraft, *, repeated: bool = False) -> Draft:
    """Return the draft; in a request that may be a repetition, its id is its dedup key whatever the client says."""
    terms = _COMMON if found.terms == _COMMON_WIRE else _terms_of(found.terms)
    check_name(found.queue)
    if found.delay:
        check_seconds("delay", found.delay)
    message = _plain(found.message) if isinstance(found, PlainDraft) else _whole(found.message)
    given = repeated or found.given_id or not is_ours(message.id)
    return Draft(found.queue, message, found.delay, given, terms)


def _terms_of(found: WireTerms) -> Terms:
    check_seconds("dedupWindow", found.dedup_window)
    if not 1 <= found.max_bytes <= LARGEST_MAX_BYTES:
        raise InvalidRequest(f"maxBytes must be 1 to {LARGEST_MAX_BYTES}; found {found.max_bytes}")
    if not 0 <= found.max_waiting <= _LARGEST:
        raise InvalidRequest(f"maxWaiting must be 0 to {_LARGEST}; found {found.max_waiting}")
    return Terms(found.dedup_window, found.max_bytes, found.max_waiting)


_COMMON, _COMMON_WIRE = Terms(), WireTerms()


def _plain(found: PlainMessage) -> Message:
    check(found.payload)
    created_at = _seconds(found.timestamp)
    if not 0 <= created_at <= MAX_INSTANT:
        raise InvalidRequest(f"timestamp must be in the years 1970 to 9999; found {found.timestamp}")
    return Message(id=check_id(found.message_id), body=found.payload, created_at=created_at)


def _whole(found: Envelope) -> Message:
    try:
        return check_message(message_of(found))
    except InvalidInput:
        raise
    except (ValueError, TypeError, OverflowError) as exc:
        raise InvalidRequest(f"message {found.message_id!r:.80}: {exc}") from exc


@lru_cache(maxsize=8)  # the messages of a batch share their time
def _seconds(instant: datetime) -> float:
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


def receipt_of(text: str) -> Receipt:
    receipt = Receipt.parse(text)
    if not _TOKEN.fullmatch(receipt.token):
        raise InvalidReceipt(f"a receipt is <queue>/<id>/<token>; found {text!r:.80}")
    return receipt


def check_token(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise InvalidReceipt(f"a token is 1-64 letters, digits, '-' and '_'; found {token!r:.80}")
    return token


def wire_lease(lease: Lease) -> WireLease:
    return WireLease(str(lease.receipt), envelope_of(lease.message), lease.attempt, lease.due_at, lease.failure)


def lease_of(found: WireLease) -> Lease:
    receipt = Receipt(*found.receipt.split("/"))
    return Lease(receipt, message_of(found.message), found.attempt, found.due_at, found.failure)


def wire_settlement(settlement: Settlement) -> WireVerdict:
    receipt, verdict = settlement
    return WireVerdict(
        str(receipt),
        type(verdict).__name__.lower(),
        [wire_draft(draft) for draft in verdict.then],
        verdict.failure,
        verdict.keep if isinstance(verdict, Done) else False,
        verdict.delay if isinstance(verdict, Retry) else 0.0,
    )


def settlement_of(found: WireVerdict) -> Settlement:
    then = tuple(map(draft_of, found.then))
    receipt = receipt_of(found.receipt)
    if found.failure is not None:
        _check_failure(found.failure)
    verdict: StoreVerdict
    if found.verdict == "done":
        verdict = Done(then, found.failure, found.keep)
    elif found.verdict == "retry":
        verdict = Retry(check_seconds("delay", found.delay), found.failure, then)
    elif found.verdict == "dead" and found.failure is not None:
        verdict = Dead(found.failure, then)
    else:
        raise InvalidRequest(f"verdict must be done, retry, or dead with its failure; found {found.verdict!r:.40}")
    return Settlement(receipt, verdict)


def _check_failure(failure: Failure) -> None:
    """Refuse numbers of a failure that nobody could show or count with."""
    if not 0 <= failure.at <= MAX_INSTANT:
        raise InvalidRequest(f"failure.at must be in the years 1970 to 9999; found {failure.at!r:.40}")
    for what, count in (("attempt", failure.attempt), ("repeats", failure.repeats)):
        if not 0 <= count <= _LARGEST:
            raise InvalidRequest(f"failure.{what} must be 0 to {_LARGEST}; found {count}")


def wire_entry(entry: Entry) -> WireEntry:
    return WireEntry(
        entry.queue,
        entry.id,
        str(entry.state),
        entry.attempt,
        entry.due_at,
        None if entry.message is None else envelope_of(entry.message),
        entry.failure,
        b64encode(entry.data).decode(),
        entry.cursor,
        entry.token,
    )


def entry_of(found: WireEntry) -> Entry:
    return Entry(
        found.queue,
        found.id,
        State(found.state),
        found.attempt,
        found.due_at,
        None if found.message is None else message_of(found.message),
        found.failure,
        b64decode(found.data),
        found.cursor,
        found.token,
    )


def wire_findings(findings: Sequence[Finding]) -> list[WireFinding]:
    return [WireFinding(*finding) for finding in findings]


def finding_of(found: WireFinding) -> Finding:
    return Finding(found.where, found.problem, found.remedy, found.repaired)
