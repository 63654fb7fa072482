"""Lets tests import one another as `tests.…`, and starts the servers that some of them need."""

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pabal.jsontext import storable

sys.path.insert(0, str(Path(__file__).parent.parent))

# A run that was started in the background has Ctrl-C ignored, and so would every process that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from tests.services.kafka import KafkaServer
    from tests.services.postgres import PostgresServer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test may log what UTF-8 cannot carry; between the processes of a run it would end the run."""
    report = yield
    report.sections = [(name, storable(text)) for name, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def watches_left_open() -> Iterator[None]:
    """A user has 128 inotify instances as a rule: tests that leave theirs open make others poll, and fail far away."""
    yield
    own = Path("/proc/self/fd")
    left = [fd.name for fd in own.iterdir() if fd.is_symlink() and "inotify" in os.readlink(fd)]
    assert len(left) < 20, f"{len(left)} watches were left open: close what was opened"


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """A PostgreSQL server, started for the first test that asks and stopped after the last."""
    from tests.services.postgres import binaries, running

    if binaries() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have PostgreSQL: run scripts/system-packages")
        pytest.skip("needs PostgreSQL: run scripts/system-packages")
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> "Iterator[KafkaServer]":
    """A Kafka server, started for the first test that asks and stopped after the last."""
    from tests.services.kafka import missing, running

    if reason := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have {reason}")
        pytest.skip(f"needs {reason}")
    with running() as server:
        yield server
