"""A store whose every use is written down, for the checker to judge after a crash."""

from collections.abc import Iterator, Sequence
from zlib import crc32

from pabal.clock import SystemClock
from pabal.errors import InvalidInput, QueueFull, StoreFull
from pabal.message import Message
from pabal.store import Dead, Done, Draft, Entry, Failure, Lease, Outcome, Retry, Settlement, State, Store, Verdict
from pabal.testing.history import History, body_hash

FAILED = Failure("NACKED", "for the test")
AT_ONCE = 100  # leases that one look takes over
_OPS: dict[type[Verdict], str] = {Done: "ack", Retry: "nack", Dead: "dead"}


class AheadClock(SystemClock):
    """The machine's clocks with some seconds added, so that processes agree and leases can be let run out at once."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.ahead = ahead

    def now(self) -> float:
        return super().now() + self.ahead

    def boot(self) -> float:
        return super().boot() + self.ahead


def draft(
    id: str,
    *,
    queue: str = "jobs",
    group: str = "",
    key: str = "",
    unique: str = "",
    size: int = 10,
    delay: float = 0.0,
) -> Draft:
    """Return a message whose body can be known again."""
    body = {"id": id, "filler": "x" * size}
    # Every second one as a queue makes them, with an id that nobody chose: there the store keeps no record of the id.
    given = crc32(id.encode()) % 2 == 0
    return Draft(
        queue, Message(id=id, body=body, group=group, dedup_key=key, unique=unique), delay=delay, given_id=given
    )


class Recorder:
    def __init__(self, store: Store, history: History, clock: SystemClock) -> None:
        self.store = store
        self._history = history
        self._clock = clock

    def publish(self, *drafts: Draft) -> None:
        self._invoke(drafts)
        try:
            answers = self.store.publish(drafts)
        except (InvalidInput, QueueFull, StoreFull):
            self._answer(drafts, "fail")
            raise
        except Exception:
            self._answer(drafts, "info")
            raise
        for each, answer in zip(drafts, answers, strict=True):
            self._history.note("publish", id=answer.id)
            if answer.id != each.message.id:
                self._history.note("publish", "fail", id=each.message.id)

    def _invoke(self, drafts: Sequence[Draft], receipt: str = "") -> None:
        for each in drafts:
            message = each.message
            whole = body_hash(message.body)
            self._history.note(
                "publish", "invoke", id=message.id, group=message.group, body_hash=whole, receipt=receipt
            )

    def _answer(self, drafts: Sequence[Draft], phase: str, receipt: str = "") -> None:
        for each in drafts:
            self._history.note("publish", phase, id=each.message.id, receipt=receipt)

    def lease(
        self, limit: int = 1, seconds: float = 60.0, *, queue: str = "jobs", successive: bool = False
    ) -> list[Lease]:
        since = self._clock.boot()
        leases = self.store.lease(queue, limit, seconds, successive=successive)
        self._leased("lease", leases, since, seconds)
        return leases

    def expired(self, queue: str = "jobs") -> list[Lease]:
        since = self._clock.boot()
        leases = self.store.expired(queue, AT_ONCE)
        self._leased("expired", leases, since, 0.0)
        return leases

    def _leased(self, op: str, leases: Sequence[Lease], since: float, seconds: float) -> None:
        for lease in leases:
            message = lease.message
            self._history.note(
                op,
                id=message.id,
                receipt=str(lease.receipt),
                group=message.group,
                body_hash=body_hash(message.body),
                attempt=lease.attempt,
                seconds=seconds,
                since=since,
            )

    def settle(self, *settlements: tuple[Lease, Verdict], durable: bool = False) -> list[Outcome]:
        for lease, verdict in settlements:
            self._settled(lease, verdict, "invoke", durable)
            self._invoke(verdict.then, str(lease.receipt))
        try:
            outcomes = self.store.settle([Settlement(lease.receipt, v) for lease, v in settlements], durable=durable)
        except Exception:
            for lease, verdict in settlements:
                self._settled(lease, verdict, "info", durable)
                self._answer(verdict.then, "info", str(lease.receipt))
            raise
        for (lease, verdict), outcome in zip(settlements, outcomes, strict=True):
            phase = "fail" if outcome is Outcome.LOST else "ok"
            self._settled(lease, verdict, phase, durable)
            self._answer(verdict.then, phase, str(lease.receipt))
        return outcomes

    def _settled(self, lease: Lease, verdict: Verdict, phase: str, durable: bool) -> None:
        facts = {"id": lease.receipt.id, "receipt": str(lease.receipt)}
        self._history.note(_OPS[type(verdict)], phase, durable=durable or bool(verdict.then), **facts)

    def ack(self, lease: Lease, *then: Draft, durable: bool = False) -> Outcome:
        return self.settle((lease, Done(then)), durable=durable)[0]

    def nack(self, lease: Lease, delay: float = 0.0) -> Outcome:
        return self.settle((lease, Retry(delay, FAILED)))[0]

    def bury(self, lease: Lease, *then: Draft) -> Outcome:
        return self.settle((lease, Dead(FAILED, then)))[0]

    def extend(self, lease: Lease, seconds: float) -> Outcome:
        facts = {"id": lease.receipt.id, "receipt": str(lease.receipt)}
        since = self._history.note("extend", "invoke", seconds=seconds, **facts)
        (outcome,) = self.store.extend([lease.receipt], seconds)
        phase = "fail" if outcome is Outcome.LOST else "ok"
        self._history.note("extend", phase, seconds=seconds, since=since, **facts)
        return outcome

    def sweep(self, queue: str = "jobs") -> int:
        """Give back what ran out, as a queue with attempts left does; return how many there were in one look."""
        leases = self.expired(queue)
        for lease in leases:
            self.nack(lease)
        return len(leases)

    def revive(self, *ids: str, queue: str = "jobs") -> None:
        for id in ids:
            self._history.note("revive", id=id)
        self.store.revive(queue, ids)

    def cancel(self, *ids: str, queue: str = "jobs") -> None:
        for id in ids:
            self._history.note("cancel", "invoke", id=id)
        found = self.store.cancel(queue, ids, inflight=True)
        for id in ids:
            self._history.note("cancel", "ok" if id in found else "fail", id=id, durable=True)

    def survey(self) -> None:
        """Write down what the store holds."""
        for queue in self.store.queues():
            for state in State:
                for entry in all_entries(self.store, queue, state):
                    whole = body_hash(entry.message.body) if entry.message else ""
                    self._history.note("stored", id=entry.id, state=str(state), body_hash=whole)

    def drain(self) -> None:
        """Let everything come up, deliver and acknowledge it, and write down what is left."""
        for queue in self.store.queues():
            while self.sweep(queue) == AT_ONCE:
                pass  # a crowd that was killed in a hurry leaves more leases than one look takes
            while leases := self.lease(100, queue=queue):
                self.settle(*((lease, Done()) for lease in leases))
        self.survey()
        self._history.note("drain")


def all_entries(store: Store, queue: str, state: State) -> Iterator[Entry]:
    """Browse all messages of a state: a page ends early after many bytes."""
    after = ""
    while page := store.browse(queue, state, after=after, limit=1_000_000):
        yield from page
        after = page[-1].cursor
