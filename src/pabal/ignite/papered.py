"""A store whose leases are papers in the hands of agents: the contract of the store, with the papers kept in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pabal.errors import InvalidConfig, InvalidInput
from pabal.ignite.papers import Papers
from pabal.ignite.team import MONITOR
from pabal.message import Message
from pabal.passing import PassingStore
from pabal.store import Done, Draft, Entry, Outcome, Receipt, Retry, Settlement, State, Store, Watch

_CLAIM = "workspace"
_PAGE = 100


@runtime_checkable
class Bell(Watch, Protocol):
    """A watch for loops that wait on many things."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `wait` might not sleep."""
        ...


class PaperedStore(PassingStore):
    """Any store, and the papers of what is leased from it."""

    def __init__(self, store: Store, papers: Papers) -> None:
        super().__init__(store)
        self.papers = papers

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        """Apply each verdict, then take its paper. One whose reader removed the paper is done, whatever is said now."""
        removed = {
            each.receipt
            for each in settlements
            if not isinstance(each.verdict, Done) and self.papers.was_removed(each.receipt)
        }
        if removed:
            self._store.settle([Settlement(receipt, Done()) for receipt in removed])
        rest = [each for each in settlements if each.receipt not in removed]
        outcomes = iter(self._store.settle(rest, durable=durable) if rest else ())
        for each in settlements:
            self.papers.remove(each.receipt)
        return [Outcome.LOST if each.receipt in removed else next(outcomes) for each in settlements]

    def catch_up(self, queue: str) -> set[str]:
        """Bring papers and leases together, as whoever was killed left them; return the tokens of new papers."""
        self.papers.make(queue)
        held = self._held(queue)
        self.papers.sweep(queue, {entry.token for entry in held})
        return {entry.token for entry in held if self._catch_up_one(Receipt(queue, entry.id, entry.token), entry)}

    def _catch_up_one(self, receipt: Receipt, entry: Entry) -> bool:
        """See to one lease; True if its paper had to be written."""
        path = self.papers.path(receipt)
        if path is not None and self.papers.is_readable(path):
            self.papers.mark(receipt)
            return False
        if path is None and self.papers.was_removed(receipt):
            self.settle([Settlement(receipt, Done())])
            return False
        try:
            if path is not None or entry.message is None:
                raise InvalidInput("its reader spoilt it")
            self.papers.write(receipt, entry.message, entry.attempt, entry.failure)
        except InvalidInput:
            self._store.settle([Settlement(receipt, Retry(0.0, entry.failure))])  # to be given anew, or refused then
        found = self._store.find(receipt.queue, receipt.id)
        if found is None or found.token != receipt.token:  # settled just now, perhaps by its reader
            self.papers.remove(receipt)
            return False
        return True

    def _held(self, queue: str) -> list[Entry]:
        found: list[Entry] = []
        while page := self._store.browse(queue, State.INFLIGHT, after=found[-1].cursor if found else "", limit=_PAGE):
            found += page
        return found

    def claim(self, place: str, now: float) -> None:
        """Let one workspace alone give out this store's mail; raise InvalidConfig if another does."""
        message = Message(id=_CLAIM, body={"place": place}, type="claim", sender=MONITOR, created_at=now)
        self._store.publish([Draft(MONITOR, message)])
        found = self._store.find(MONITOR, _CLAIM)
        body = found.message.body if found is not None and found.message is not None else None
        other = body.get("place") if isinstance(body, dict) else None
        if other != place:
            raise InvalidConfig(
                f"queues: this store belongs to the workspace {other}; found {place}. Give each team a schema or a file"
                f" of its own. If that workspace is gone for good, `pabal purge {MONITOR} --state ready` frees its mail"
            )

    def watch(self, queues: Sequence[str]) -> Bell:
        watch = super().watch(queues)
        assert isinstance(watch, Bell)
        return watch
