"""Workers in processes of their own, some of which die where they are told to.

Run as `python -m tests.apps.chat.crew TOPICS_URL DB_URL NAME DEATH HEARTBEAT`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.apps.chat.place import Place

ROOT = Path(__file__).parents[3]
SESSION = 2.0
LIVES = "lives"
DIES_STORED = "stored"  # right after the database committed, before anything is published or committed elsewhere
DIES_TOLD = "told"  # right after the outbox was published, before its rows are removed


class Crew:
    """The workers of one test."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place = place
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, death: str = LIVES) -> subprocess.Popen[bytes]:
        name = f"worker-{len(self._processes)}"
        arguments = [self._place.topics_url, self._place.db_url, name, death, str(self.heartbeat(name))]
        with (self._folder / "workers.log").open("ab") as log:
            found = subprocess.Popen([sys.executable, "-m", "tests.apps.chat.crew", *arguments], cwd=ROOT, stderr=log)
        self._processes.append(found)
        return found

    def heartbeat(self, name: str) -> Path:
        return self._folder / f"{name}.beat"

    def log(self) -> str:
        return (self._folder / "workers.log").read_text()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(60)


@contextmanager
def crew(place: Place, folder: Path) -> Iterator[Crew]:
    found = Crew(place, folder)
    try:
        yield found
    finally:
        found.end()


def main(topics_url: str, db_url: str, name: str, death: str, heartbeat: str) -> None:
    from pabal.apps.chat.ledger.ledger import Ledger
    from pabal.apps.chat.worker import run_worker

    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(message)s")
    persist = Ledger.persist

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def persist_and_die(self: Ledger, events: Sequence[Any]) -> list[Any]:
        answers = persist(self, events)
        if answers:
            die()
        return answers

    if death == DIES_STORED:
        Ledger.persist = persist_and_die  # type: ignore[method-assign]
    if death == DIES_TOLD:
        Ledger.sent = lambda self, numbers: die()  # type: ignore[method-assign]
    run_worker(topics_url, db_url, name, heartbeat=Path(heartbeat), session=SESSION)


if __name__ == "__main__":
    main(*sys.argv[1:])
