"""A process that publishes or consumes as fast as it can until it is killed or the disk is gone.

    python -m tests.crash.busy STORE PLACE HISTORY ROLE SEED [FAULT]

FAULT breaks the product on purpose, to prove that the tests would see it: `no-dir-sync` or `sqlite-normal`.
"""

import random
import sys
from itertools import count
from pathlib import Path

from pabal import durable
from pabal.errors import StoreError
from pabal.store import Done, Retry
from pabal.testing.history import History
from tests.crash.recorder import FAILED, AheadClock, Recorder, draft
from tests.openers import OPENERS

LEASE_SECONDS = 1.0
QUEUES = ("jobs", "next")


def publish(recorder: Recorder, name: str, chance: random.Random) -> None:
    """Publish one at a time and in batches, into groups and under keys."""
    for n in count():
        group = chance.choice(("", f"g {name}"))
        size = chance.choice((10, 1000, 9000))
        batch = [
            draft(f"{name}-{n}-{m}", group=group, size=size, key=chance.choice(("", f"k {name} {n}")))
            for m in range(chance.choice((1, 1, 1, 5)))
        ]
        recorder.publish(*batch)


def consume(recorder: Recorder, name: str, chance: random.Random) -> None:
    """Lease, and settle in every way there is."""
    for n in count():
        queue = chance.choice(QUEUES)
        if n % 20 == 0:
            recorder.sweep(queue)
        for lease in recorder.lease(3, LEASE_SECONDS, queue=queue, successive=chance.random() < 0.5):
            way = chance.random()
            if way < 0.5:
                recorder.ack(lease)
            elif way < 0.6:
                recorder.ack(lease, durable=True)
            elif way < 0.8 and queue == "jobs":
                id = f"{lease.receipt.id}-{lease.attempt}"
                recorder.ack(lease, draft(f"{id}-a", queue="next"), draft(f"{id}-b", queue="next"))
            elif way < 0.9:
                recorder.nack(lease)
            elif way < 0.95:
                recorder.extend(lease, LEASE_SECONDS)
            # else it is dropped, as by a consumer that died


def publish_many(recorder: Recorder, name: str, chance: random.Random) -> None:
    """Publish batches of a hundred, now and then into groups and under keys."""
    for n in count():
        group, key = chance.choice((("", ""), ("", ""), (f"g {name}", ""), ("", f"k {name} {n}")))
        recorder.publish(*(draft(f"{name}-{n}-{m}", group=group, key=f"{key} {m}" if key else "") for m in range(100)))


def consume_many(recorder: Recorder, name: str, chance: random.Random) -> None:
    """Lease up to a hundred and settle them together; give some back, and drop some."""
    for n in count():
        queue = chance.choice(QUEUES)
        if n % 20 == 0:
            recorder.sweep(queue)
        leases = recorder.lease(100, LEASE_SECONDS, queue=queue, successive=chance.random() < 0.5)
        kept = [lease for lease in leases if chance.random() > 0.01]
        recorder.settle(*((lease, Retry(failure=FAILED) if chance.random() < 0.02 else Done()) for lease in kept))


ROLES = {"publish": publish, "consume": consume, "publish_many": publish_many, "consume_many": consume_many}


def break_on_purpose(fault: str) -> None:
    if fault == "no-dir-sync":
        durable.sync_dir = lambda path: None
    if fault == "no-body-sync":
        durable.sync_all = lambda fds: None
    if fault == "sqlite-normal":
        from pabal.sql.group import Job
        from pabal.sql.writer import Writer

        honest = Writer.commit

        def careless(self: Writer, jobs: list[Job]) -> dict[str, int]:
            for job in jobs:
                job.durable = False
            return honest(self, jobs)

        Writer.commit = careless  # type: ignore[method-assign]  # on purpose


def main(store: str, place: str, history: str, role: str, seed: str, fault: str = "") -> None:
    break_on_purpose(fault)  # before the store's modules are imported and take the honest functions
    clock = AheadClock()
    name = Path(history).stem
    recorder = Recorder(
        OPENERS[store].open(Path(place), clock), History(Path(history), clock=clock, seed=int(seed)), clock
    )
    try:
        ROLES[role](recorder, name, random.Random(seed))
    except StoreError as exc:
        # After a power cut this is how it ends; whoever started the process knows whether there was one.
        Path(history).with_suffix(".failed").write_text(f"{type(exc).__name__}: {exc}")


if __name__ == "__main__":
    main(*sys.argv[1:])
