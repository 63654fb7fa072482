"""A process that publishes to or consumes from PostgreSQL until it is killed, whatever becomes of the server.

    python -m tests.crash.postgres_busy URL SCHEMA HISTORY ROLE SEED

What was uncertain is repeated until it is known, as the contract says one may.
"""

import random
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from pabal.clock import SystemClock
from pabal.errors import StoreError, Uncertain
from pabal.store import Draft, Lease, Outcome, Verdict
from pabal.stores.postgres import PostgresStore
from pabal.testing.history import History
from tests.crash import busy
from tests.crash.recorder import Recorder


class Patient(Recorder):
    """Repeats what may or may not have been done."""

    def publish(self, *drafts: Draft) -> None:
        while True:
            try:
                return super().publish(*drafts)
            except Uncertain:
                continue

    def settle(self, *settlements: tuple[Lease, Verdict], durable: bool = True) -> list[Outcome]:
        while True:
            try:
                return super().settle(*settlements, durable=True)  # no crash of this server undoes a verdict
            except Uncertain:
                continue


def survive(work: Callable[[], None]) -> None:
    """Work until the store gives up on its server, then rest."""
    try:
        work()
    except StoreError:
        time.sleep(0.05)


def main(url: str, schema: str, history: str, role: str, seed: str) -> None:
    clock = SystemClock()
    store = PostgresStore(url, schema=schema, patience=60.0)
    recorder = Patient(store, History(Path(history), clock=clock, seed=int(seed)), clock)
    name, chance = Path(history).stem, random.Random(seed)
    for n in count():
        survive(lambda n=n: busy.ROLES[role](recorder, f"{name}.{n}", chance))  # type: ignore[misc]  # mypy cannot type a lambda with a default


if __name__ == "__main__":
    main(*sys.argv[1:])
