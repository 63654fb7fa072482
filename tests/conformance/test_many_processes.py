"""Eight publishers, eight consumers, one store: all is delivered, nothing acknowledged twice, nobody locked out."""

import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.store import Done, Outcome, Settlement, State
from pabal.testing.store_place import Child, count, draft, waiting
from tests.openers import OPENERS, Opener

PUBLISHERS = CONSUMERS = 8
BATCHES, BATCH, SINGLES = 40, 60, 100
EACH = BATCHES * BATCH + SINGLES


def publish(opener: Opener, place: Path, name: str) -> int:
    with closing(opener.open(place, SystemClock())) as store:
        for n in range(BATCHES):
            store.publish([draft(None, id=f"{name}-b{n}-{m}") for m in range(BATCH)])
        for n in range(SINGLES):
            store.publish([draft(None, id=f"{name}-s{n}", group=f"g{n % 7}")])
    return EACH


def consume(opener: Opener, place: Path, total: int) -> dict[str, int]:
    """Work until all there is has been done by somebody; return how often this one acknowledged each message."""
    acked: Counter[str] = Counter()
    end = time.monotonic() + 240
    with closing(opener.open(place, SystemClock())) as store:
        while time.monotonic() < end:
            leases = store.lease("jobs", 40, 120.0)
            for outcome, lease in zip(
                store.settle([Settlement(lease.receipt, Done()) for lease in leases]), leases, strict=True
            ):
                assert outcome is Outcome.APPLIED and lease.attempt == 1, lease
                acked[lease.receipt.id] += 1
            if not leases:
                if count(store, State.DONE) >= total:
                    break
                time.sleep(0.02)
    return dict(acked)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_every_message_of_many_processes_is_acknowledged_once(opener: Opener, tmp_path: Path) -> None:
    check(opener, tmp_path)


def check(opener: Opener, tmp_path: Path) -> None:
    """Let all work at once, and count what each acknowledged."""
    total = PUBLISHERS * EACH
    publishers = [Child(lambda n=n: publish(opener, tmp_path, f"p{n}")) for n in range(PUBLISHERS)]  # type: ignore[misc]  # mypy cannot type a lambda with a default
    consumers = [Child(lambda: consume(opener, tmp_path, total)) for _ in range(CONSUMERS)]
    assert sum(child.result() for child in publishers) == total == 20_000
    acked: Counter[str] = Counter()
    for child in consumers:
        acked.update(child.result())
    assert len(acked) == total and set(acked.values()) == {1}
    with closing(opener.open(tmp_path, SystemClock())) as store:
        assert (count(store, State.DONE), waiting(store)) == (total, 0)
