"""The store of a client: every method of the contract is a call to the manager that owns the real store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import msgspec

from pabal import errors
from pabal.errors import NoAnswer, PabalError, Refused, StoreClosed, StoreError, Uncertain
from pabal.mailbox import calls
from pabal.mailbox.calls import MAX_WATCHED, A, Call, R, entry_of, lease_of, wire_draft, wire_settlement
from pabal.mailbox.client import Mailbox, read_data
from pabal.store import (
    Consumer,
    Counters,
    Draft,
    Entry,
    Finding,
    KnownSettings,
    Lease,
    Outcome,
    Published,
    Receipt,
    Settlement,
    State,
)
from pabal.watch import ACCESS, PathWatch


class MailboxStore:
    """A `Store` behind a manager's mailbox. It keeps the guarantees of the manager's store."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._closed = False

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        if not drafts:
            self._check_open()
            return []
        try:
            return self._call(calls.PUBLISH, calls.PublishArguments([wire_draft(draft) for draft in drafts]))
        except NoAnswer as exc:
            if exc.withdrawn:
                raise
            raise Uncertain(str(exc), tuple(draft.message.id for draft in drafts)) from exc

    def lease(
        self,
        queue: str,
        limit: int,
        seconds: float,
        *,
        consumer: str = "",
        token: str = "",
        successive: bool = False,
    ) -> list[Lease]:
        arguments = calls.LeaseArguments(queue, limit, seconds, consumer, token, successive)
        return [lease_of(found) for found in self._call(calls.LEASE, arguments)]

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        arguments = calls.SettleArguments([wire_settlement(each) for each in settlements], durable)
        return self._call(calls.SETTLE, arguments)

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        return self._call(calls.EXTEND, calls.ExtendArguments([str(receipt) for receipt in receipts], seconds))

    def expired(self, queue: str, limit: int) -> list[Lease]:
        return [lease_of(found) for found in self._call(calls.EXPIRED, calls.ExpiredArguments(queue, limit))]

    def now(self) -> float:
        return self._call(calls.NOW, calls.Nothing())

    def next_due(self, queue: str) -> float | None:
        return self._call(calls.NEXT_DUE, calls.OfQueue(queue)).value

    def counts(self, queue: str) -> dict[State, int]:
        return self._call(calls.COUNTS, calls.OfQueue(queue))

    def counters(self, queue: str) -> Counters:
        return self._call(calls.COUNTERS, calls.OfQueue(queue))

    def oldest(self, queue: str, state: State) -> float | None:
        return self._call(calls.OLDEST, calls.OldestArguments(queue, state)).value

    def consumers(self) -> list[Consumer]:
        return self._call(calls.CONSUMERS, calls.Nothing())

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        found: list[Entry] = []
        while len(found) < limit:  # an answer holds a limited number
            arguments = calls.BrowseArguments(queue, state, after, limit - len(found))
            page = self._call(calls.BROWSE, arguments)
            if not page:
                break
            found.extend(map(entry_of, page))
            after = page[-1].cursor
        return found

    def find(self, queue: str, id: str) -> Entry | None:
        entry = self._call(calls.FIND, calls.FindArguments(queue, id)).value
        return None if entry is None else entry_of(entry)

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        return self._call(calls.REVIVE, calls.ReviveArguments(queue, list(ids)))

    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        return self._call(calls.CANCEL, calls.CancelArguments(queue, list(ids), inflight))

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        listed = None if ids is None else list(ids)
        return self._call(calls.PURGE, calls.PurgeArguments(queue, state, age, limit, listed))

    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        return self._call(calls.TRIM, calls.TrimArguments(queue, state, age, limit))

    def delete(self, queue: str, *, force: bool = False) -> int:
        return self._call(calls.DELETE, calls.DeleteArguments(queue, force))

    def queues(self) -> list[str]:
        return self._call(calls.QUEUES, calls.Nothing())

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        return self._call(calls.SETTINGS, calls.OfQueue(queue)).value

    def configure(self, queue: str, settings: Mapping[str, Any], *, known: KnownSettings = ...) -> bool:
        expected = msgspec.UNSET if isinstance(known, EllipsisType) else None if known is None else dict(known)
        return self._call(calls.CONFIGURE, calls.ConfigureArguments(queue, dict(settings), expected))

    def facts(self) -> Mapping[str, str]:
        found = self._call(calls.FACTS, calls.Nothing())
        return {"mailbox": str(self._mailbox.root), "client": self._mailbox.client, **found}

    def check(self, *, repair: bool) -> list[Finding]:
        return self._call(calls.CHECK, calls.CheckArguments(repair))

    def watch(self, queues: Sequence[str]) -> PathWatch:
        """Ask the manager to signal these queues' wake-up files, and watch the files."""
        files: list[str] = []
        for start in range(0, len(queues), MAX_WATCHED):
            arguments = calls.WatchArguments(list(queues[start : start + MAX_WATCHED]))
            found = self._call(calls.WATCH, arguments)
            files += found
        return PathWatch({f"{self._mailbox.wakeups}/{file}": ACCESS for file in files})

    def close(self) -> None:
        self._closed = True
        self._mailbox.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this connection was closed; open a new one")

    def _call(self, call: Call[A, R], arguments: A) -> R:
        self._check_open()
        try:
            return read_data(self._mailbox.ask_raw(call.command, arguments), call.result)
        except Refused as exc:
            raise _original_error(exc) from exc


def _original_error(refused: Refused) -> PabalError:
    """Return the error that the manager's store raised."""
    kind = getattr(errors, refused.kind, None)
    if kind is Uncertain:
        return Uncertain(str(refused), refused.ids)
    if isinstance(kind, type) and issubclass(kind, PabalError) and kind not in (Refused, errors.DecodeError):
        return kind(str(refused))
    return StoreError(f"{refused.code}: {refused}")
