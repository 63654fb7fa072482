"""Fixtures of pytest for programs that use queues. pytest finds them where Pabal is installed.

`pabal_clock` stands still until a test moves it, `pabal_connection` is a store in the test's own folder that follows
it, `pabal_queue` a queue of it. `pabal.testing.drain` runs a handler until nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pabal.connect import Connection
    from pabal.queues.queue import Queue
    from pabal.testing.clock import ManualClock


@pytest.fixture
def pabal_clock() -> ManualClock:
    """A clock that a test moves by hand: `pabal_clock.advance(60)`."""
    from pabal.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def pabal_connection(tmp_path: Path, pabal_clock: ManualClock) -> Iterator[Connection]:
    """A connection to a SQLite store in `tmp_path`, whose time is that of `pabal_clock`."""
    from pabal.connect import connect

    with connect(f"sqlite:{tmp_path / 'pabal.db'}", clock=pabal_clock, consumer="test") as connection:
        yield connection


@pytest.fixture
def pabal_queue(pabal_connection: Connection) -> Queue:
    """The queue `test` of `pabal_connection`."""
    return pabal_connection.queue("test")
