"""The small pieces of work that are killed at every system call: what is there before, and what is then done."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pabal.store import Dead, Done, Draft, Lease, Outcome, Settlement, State
from pabal.testing.history import History
from pabal.testing.store_place import FAILED
from tests.crash.recorder import AheadClock, Recorder, draft
from tests.openers import OPENERS


class Desk:
    """Where an operation is done: a place, a clock, and a recorder once the store is open."""

    def __init__(self, store: str, place: Path, history: Path) -> None:
        self._store = store
        self._place = place
        self.clock = AheadClock()
        self._history = History(history, clock=self.clock)

    def open(self) -> Recorder:
        store = OPENERS[self._store].open(self._place, self.clock)
        return Recorder(store, self._history, self.clock)


class Operation(NamedTuple):
    before: Callable[[Recorder], list[Lease]]  # returns the leases that `act` settles
    act: Callable[[Recorder, list[Lease]], object]


def _one_there(recorder: Recorder) -> list[Lease]:
    # A first message makes the queue, so that what is cut is the operation and not the making of folders.
    recorder.publish(draft("first"))
    return []


def _one_unique_left(recorder: Recorder) -> list[Lease]:
    """Leave the record of a key whose message is done."""
    recorder.publish(draft("first", unique="k"))
    for lease in recorder.lease(1):
        recorder.ack(lease)
    return []


def _publish_unique(recorder: Recorder, _: list[Lease]) -> None:
    recorder.publish(draft("one", unique="k"))
    recorder.publish(draft("two", unique="k"), draft("three", unique="l"))


def _two_leased(recorder: Recorder) -> list[Lease]:
    recorder.publish(draft("first", group="g"), draft("second", group="g"), draft("third"))
    return recorder.lease(2)


def _group_leased(recorder: Recorder, seconds: float = 60.0) -> list[Lease]:
    """Lease three of a group of four together."""
    recorder.publish(*(draft(id, group="g") for id in ("one", "two", "three", "four")))
    return recorder.lease(3, seconds, successive=True)


def _group_there(recorder: Recorder) -> list[Lease]:
    recorder.publish(*(draft(id, group="g") for id in ("one", "two", "three")), draft("alone"))
    return []


def _group_lapsed(recorder: Recorder) -> list[Lease]:
    _group_leased(recorder, -1.0)
    return []


def _settle_group(recorder: Recorder, leases: list[Lease]) -> None:
    """Give back the last and the first, and acknowledge the one between."""
    one, two, three = leases
    recorder.nack(three)
    recorder.nack(one, 60.0)
    recorder.ack(two, *_follow_ups(two))


def _two_lapsed(recorder: Recorder) -> list[Lease]:
    recorder.publish(draft("first", group="g"), draft("second", group="g"), draft("third"))
    recorder.lease(2, seconds=-1.0)
    return []


def _two_dead_and_one_done(recorder: Recorder) -> list[Lease]:
    for lease in _two_leased(recorder):
        recorder.bury(lease)
    for lease in recorder.lease(1):
        recorder.ack(lease)
    return []


def _publish(*drafts: Draft) -> Operation:
    return Operation(_one_there, lambda recorder, _: recorder.publish(*drafts))


def _settle(act: Callable[[Recorder, Lease], object]) -> Operation:
    return Operation(_two_leased, lambda recorder, leases: [act(recorder, lease) for lease in leases])


def _follow_ups(lease: Lease) -> tuple[Draft, ...]:
    name = lease.receipt.id
    then = (draft(f"{name}-1", queue="next"), draft(f"{name}-2", queue="last", group="h"))
    return (*then, draft(f"{name}-3", queue="next", key=f"{name} k"))


def _ack_with_follow_ups(recorder: Recorder, lease: Lease) -> None:
    recorder.ack(lease, *_follow_ups(lease))


def _ack_all_with_follow_ups(recorder: Recorder, leases: list[Lease]) -> None:
    recorder.settle(*((lease, Done(_follow_ups(lease))) for lease in leases))


def _ack_with_a_unique_follow_up(recorder: Recorder, leases: list[Lease]) -> None:
    for number, lease in enumerate(leases):
        recorder.ack(lease, draft(f"then-{number}", unique=f"u-{number}"))


def _ack_in_two_steps(recorder: Recorder, lease: Lease) -> None:
    """Break the promise on purpose: what is recorded as one step is done as two."""
    then = (draft(f"{lease.receipt.id}-1", queue="next"), draft(f"{lease.receipt.id}-2", queue="last"))
    whole = recorder.store.settle

    def in_two(settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        outcomes = whole([Settlement(receipt, Done()) for receipt, _ in settlements])
        for each in then:
            recorder.store.publish([each])
        return outcomes

    recorder.store.settle = in_two  # type: ignore[method-assign]  # on purpose
    recorder.ack(lease, *then)


def _purge(recorder: Recorder, _: list[Lease]) -> None:
    recorder.store.purge("jobs", State.DEAD)
    recorder.store.purge("jobs", State.DONE)


def _recover(recorder: Recorder, _: list[Lease]) -> None:
    """What a process does that comes after one that died."""
    for queue in recorder.store.queues():
        recorder.store.counts(queue)
        recorder.sweep(queue)
        recorder.lease(1, queue=queue)


def _full_queue(recorder: Recorder) -> list[Lease]:
    """Fill a queue that is deleted; what becomes of it is not written down."""
    names = [("a", "g"), ("b", "g"), ("c", ""), ("d", "")]
    drafts = [draft(id, queue="gone", group=group, key=f"key {id}") for id, group in names]
    recorder.store.publish([*drafts, draft("e", queue="gone", delay=60.0)])
    recorder.store.configure("gone", {"paused": False})
    leases = recorder.store.lease("gone", 3, 60.0)
    recorder.store.settle([Settlement(leases[0].receipt, Done()), Settlement(leases[1].receipt, Dead(FAILED))])
    return []


def _delete(recorder: Recorder, _: list[Lease]) -> None:
    recorder.store.delete("gone", force=True)


OPERATIONS: dict[str, Operation] = {
    "publish": _publish(draft("one", size=2000)),
    "publish-new-queue": _publish(draft("one", queue="fresh")),
    "publish-batch": _publish(draft("b-1"), draft("b-2"), draft("b-3"), draft("c", queue="next")),
    "publish-key": _publish(draft("one", key="k"), draft("two", key="k")),
    "publish-unique": Operation(_one_unique_left, _publish_unique),
    "ack-then-unique": Operation(_two_leased, _ack_with_a_unique_follow_up),
    "publish-group": _publish(draft("a", group="g"), draft("b", group="g")),
    "publish-delayed": _publish(draft("one", delay=60.0)),
    "lease": Operation(_one_there, lambda recorder, _: recorder.lease(2)),
    "lease-successive": Operation(_group_there, lambda recorder, _: recorder.lease(3, successive=True)),
    "settle-successive": Operation(_group_leased, _settle_group),
    "sweep-successive": Operation(_group_lapsed, lambda recorder, _: recorder.sweep()),
    "ack": _settle(lambda recorder, lease: recorder.ack(lease)),
    "ack-durable": _settle(lambda recorder, lease: recorder.ack(lease, durable=True)),
    "ack-then": _settle(_ack_with_follow_ups),
    "ack-then-many": Operation(_two_leased, _ack_all_with_follow_ups),
    "nack": _settle(lambda recorder, lease: recorder.nack(lease)),
    "nack-delay": _settle(lambda recorder, lease: recorder.nack(lease, 60.0)),
    "bury": _settle(lambda recorder, lease: recorder.bury(lease)),
    "extend": _settle(lambda recorder, lease: recorder.extend(lease, 600.0)),
    "sweep": Operation(_two_lapsed, lambda recorder, _: recorder.sweep()),
    "revive": Operation(_two_dead_and_one_done, lambda recorder, _: recorder.revive("first", "third")),
    "cancel": Operation(_two_leased, lambda recorder, _: recorder.cancel("first", "third")),
    "purge": Operation(_two_dead_and_one_done, _purge),
    "configure": Operation(_one_there, lambda recorder, _: recorder.store.configure("jobs", {"paused": False})),
    "recover": Operation(_one_there, _recover),
}

DELETE: dict[str, Operation] = {"delete": Operation(_full_queue, _delete)}

# What the tests must find fault with, or they would find nothing.
BROKEN: dict[str, Operation] = {"ack-then-in-two-steps": _settle(_ack_in_two_steps)}
