"""Shows a queue at work: a publisher, a worker that fails and is killed, and a live view of the messages.

The publisher and the worker run as processes of their own on a fresh store in .pabal/demo. Ctrl-C ends the demo early.
Run it with `make demo`, or `python examples/demo/demo.py --store file --seconds 60`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from scenario import Scenario
from view import Screen

import pabal

PLACE = Path(".pabal/demo")
STORES = {"sqlite": "pabal.db", "file": "files", "hybrid": "hybrid"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Watch a queue at work: retries, dead letters, a kill -9.")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long; 20 by default")
    parser.add_argument("--store", choices=STORES, default="sqlite", help="on which store; sqlite by default")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    with _fresh_place():
        url = f"{arguments.store}:{PLACE / STORES[arguments.store]}"
        with pabal.connect(url) as mq, closing(Screen()) as screen:
            scenario = Scenario(mq, url, screen)
            scenario.run(arguments.seconds)
            print("\n".join(scenario.summary()))


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


@contextmanager
def _fresh_place() -> Iterator[None]:
    """Empty the demo's own folder, unless another demo is running in it."""
    PLACE.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(PLACE / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another demo is running in {PLACE}", file=sys.stderr)
            sys.exit(2)
        for path in PLACE.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        yield
    finally:
        os.close(lock)


if __name__ == "__main__":
    main()
