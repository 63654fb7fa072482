"""A queue with messages in every state, and what there is to compare when it has been moved."""

from typing import Any

from pabal.policy.policy import Policy, RetryPolicy, document_of
from pabal.store import Dead, Done, Draft, Failure, Retry, Settlement, State, Store
from pabal.testing.store_place import draft

QUEUE = "jobs"
FAILED = Failure("NACKED", "not yet \N{SNOWMAN}", at=1_700_000_000.0, attempt=1, consumer="tester")
POLICY = document_of(Policy(visibility=12.5, retry=RetryPolicy(limit=9), dedup_window=900.0))
MOVABLE = (State.READY, State.DELAYED, State.DEAD)


class Moment(float):
    """An instant, the same to two seconds: a spool rounds to milliseconds, and a server adds the time of a call."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(self - other) < 2.0

    __hash__ = None  # type: ignore[assignment]  # equal ones need not be near in any table


def fill(store: Store, many: int = 3) -> None:
    """Put `many` messages of each kind into the queue: tried, delayed, dead, done, grouped, addressed, keyed."""
    store.configure(QUEUE, POLICY)
    for kind, verdict in (("done", Done()), ("dead", Dead(FAILED)), ("tried", Retry(0.0, FAILED))):
        store.publish([_draft(kind, n, priority=50) for n in range(many)])
        leases = store.lease(QUEUE, many, 60.0)
        assert len(leases) == many
        store.settle([Settlement(lease.receipt, verdict) for lease in leases])
        if kind == "tried":  # a second attempt, put off for long
            leases = store.lease(QUEUE, many // 2, 60.0)
            store.settle([Settlement(lease.receipt, Retry(3600.0, FAILED)) for lease in leases])
    store.publish([_draft("delayed", n, delay=1800.0 + n) for n in range(many)])
    store.publish([_draft("group", n, group=f"g{n % 2}") for n in range(many)])
    store.publish([_draft("addressed", n, target=f"worker-{n % 2}") for n in range(many)])
    store.publish([_draft("keyed", n, dedup_key=f"key {n}") for n in range(many)])
    store.publish([draft(["generated", n], priority=n % 5) for n in range(many)])


def _draft(kind: str, n: int, **more: Any) -> Draft:
    return draft([kind, n], id=f"{kind}-{n:05d}", **more)


def survey(store: Store) -> dict[str, tuple[Any, ...]]:
    """Return everything that a move must keep, by id; a message that is there twice is an error."""
    found: dict[str, tuple[Any, ...]] = {}
    for state in MOVABLE:
        after = ""
        while page := store.browse(QUEUE, state, after=after, limit=500):
            after = page[-1].cursor
            for entry in page:
                assert entry.id not in found, f"{entry.id} is there twice"
                assert entry.message is not None
                found[entry.id] = (state, entry.attempt, entry.message, entry.failure, Moment(entry.due_at))
    return found


def order(store: Store) -> list[str]:
    """Lease all there is for worker-0 and say in which order it came."""
    seen = []
    while leases := store.lease(QUEUE, 1, 60.0, consumer="worker-0"):
        seen.append(leases[0].receipt.id)
        store.settle([Settlement(leases[0].receipt, Done())])
    return seen


def done_ids(store: Store) -> set[str]:
    return {entry.id for entry in store.browse(QUEUE, State.DONE, limit=100_000)}
