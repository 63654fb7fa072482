"""The store of somebody else: every call of the contract is a request to the manager that owns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pabal import errors
from pabal.clock import Clock
from pabal.errors import NoAnswer, PabalError, Refused, StoreClosed, StoreError, Uncertain
from pabal.mailbox.client import Mailbox
from pabal.mailbox.wire import (
    MOST_WATCHED,
    WireEntry,
    WireFinding,
    WireLease,
    entry_of,
    finding_of,
    lease_of,
    wire_draft,
    wire_settlement,
)
from pabal.store import Draft, Entry, Finding, Lease, Outcome, Published, Receipt, Settlement, State
from pabal.watch import ACCESS, PathWatch

T = TypeVar("T")


class _Published(msgspec.Struct):
    published: list[tuple[str, bool]]


class _Leases(msgspec.Struct):
    leases: list[WireLease]


class _Outcomes(msgspec.Struct):
    outcomes: list[Outcome]


class _Seconds(msgspec.Struct):
    seconds: float | None


class _Counts(msgspec.Struct):
    counts: dict[State, int]


class _Entries(msgspec.Struct):
    entries: list[WireEntry]


class _Found(msgspec.Struct):
    entry: WireEntry | None


class _Ids(msgspec.Struct):
    ids: list[str]


class _Removed(msgspec.Struct):
    removed: int


class _Queues(msgspec.Struct):
    queues: list[str]


class _Settings(msgspec.Struct):
    settings: dict[str, Any] | None


class _Facts(msgspec.Struct):
    facts: dict[str, str]


class _Findings(msgspec.Struct):
    findings: list[WireFinding]


class _Bells(msgspec.Struct):
    bells: list[str]


class MailboxStore:
    """A `Store` whose messages lie with a manager. What it promises is what the manager's store promises."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._closed = False

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        if not drafts:
            self._check_open()
            return []
        try:
            asked = {"drafts": [wire_draft(draft) for draft in drafts]}
            return [Published(*each) for each in self._ask(_Published, "store.publish", asked).published]
        except NoAnswer as exc:
            if exc.withdrawn:
                raise
            raise Uncertain(str(exc), tuple(draft.message.id for draft in drafts)) from exc

    def lease(self, queue: str, limit: int, seconds: float, *, consumer: str = "", token: str = "") -> list[Lease]:
        asked = {"queue": queue, "limit": limit, "seconds": seconds, "consumer": consumer, "token": token}
        return [lease_of(found) for found in self._ask(_Leases, "store.lease", asked).leases]

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        asked = {"settlements": [wire_settlement(each) for each in settlements], "durable": durable}
        return self._ask(_Outcomes, "store.settle", asked).outcomes

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        asked = {"receipts": [str(receipt) for receipt in receipts], "seconds": seconds}
        return self._ask(_Outcomes, "store.extend", asked).outcomes

    def expired(self, queue: str, limit: int) -> list[Lease]:
        found = self._ask(_Leases, "store.expired", {"queue": queue, "limit": limit})
        return [lease_of(lease) for lease in found.leases]

    def next_due(self, queue: str) -> float | None:
        return self._ask(_Seconds, "store.next_due", {"queue": queue}).seconds

    def counts(self, queue: str) -> dict[State, int]:
        return self._ask(_Counts, "store.counts", {"queue": queue}).counts

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        found: list[Entry] = []
        while len(found) < limit:
            asked = {"queue": queue, "state": state, "after": after, "limit": limit - len(found)}
            page = self._ask(_Entries, "store.browse", asked).entries
            if not page:
                break
            found.extend(map(entry_of, page))
            after = page[-1].cursor
        return found

    def find(self, queue: str, id: str) -> Entry | None:
        entry = self._ask(_Found, "store.find", {"queue": queue, "id": id}).entry
        return None if entry is None else entry_of(entry)

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        return self._ask(_Ids, "store.revive", {"queue": queue, "ids": list(ids)}).ids

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        asked = {"queue": queue, "state": state, "age": age, "limit": limit, "ids": None if ids is None else list(ids)}
        return self._ask(_Removed, "store.purge", asked).removed

    def queues(self) -> list[str]:
        return self._ask(_Queues, "store.queues", {}).queues

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        return self._ask(_Settings, "store.settings", {"queue": queue}).settings

    def configure(self, queue: str, settings: Mapping[str, Any]) -> None:
        self._ask(_Nothing, "store.configure", {"queue": queue, "settings": dict(settings)})

    def facts(self) -> Mapping[str, str]:
        found = self._ask(_Facts, "store.facts", {}).facts
        return {"mailbox": str(self._mailbox.root), "client": self._mailbox.client, **found}

    def check(self, *, repair: bool) -> list[Finding]:
        return [finding_of(found) for found in self._ask(_Findings, "store.check", {"repair": repair}).findings]

    def watch(self, queues: Sequence[str]) -> PathWatch:
        """Have the manager ring for these queues, and listen."""
        bells: list[str] = []
        for start in range(0, len(queues), MOST_WATCHED):
            some = list(queues[start : start + MOST_WATCHED])
            bells += self._ask(_Bells, "store.watch", {"queues": some}).bells
        return PathWatch({f"{self._mailbox.bells}/{bell}": ACCESS for bell in bells})

    def close(self) -> None:
        self._closed = True
        self._mailbox.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this connection was closed; open a new one")

    def _ask(self, expected: type[T], command: str, payload: object) -> T:
        self._check_open()
        try:
            return self._mailbox.ask_for(expected, command, payload)
        except Refused as exc:
            raise _as_told(exc) from exc


class _Nothing(msgspec.Struct):
    pass


class MailboxDriver:
    """Opens a mailbox as one client."""

    def __init__(self, client: str) -> None:
        self._client = client

    def __call__(self, path: Path, /, *, clock: Clock) -> MailboxStore:
        return MailboxStore(Mailbox(path, self._client, clock=clock))

    def exists(self, path: Path, /) -> bool:
        return Mailbox.exists(path)


def _as_told(refused: Refused) -> PabalError:
    """Return the error that the manager's store raised, as if it had been raised here."""
    kind = getattr(errors, refused.kind, None)
    if kind is Uncertain:
        return Uncertain(str(refused), refused.ids)
    if isinstance(kind, type) and issubclass(kind, PabalError) and kind not in (Refused, errors.DecodeError):
        return kind(str(refused))
    return StoreError(f"{refused.code}: {refused}")
