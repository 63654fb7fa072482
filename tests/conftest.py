"""Lets tests import one another as `tests.…`, and starts the servers that some of them need."""

import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from pabal.jsontext import storable

sys.path.insert(0, str(Path(__file__).parent.parent))

# A run that was started in the background has Ctrl-C ignored, and so would every process that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed: a loaded machine may stand still for a second.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

if TYPE_CHECKING:
    from tests.services.kafka import KafkaServer
    from tests.services.postgres import PostgresServer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test may log what UTF-8 cannot carry; between the processes of a run it would end the run."""
    report = yield
    report.sections = [(name, storable(text)) for name, text in report.sections]
    return report


# What `make quick` leaves out beside the tests that need a server: many processes, kills, browsers, whole programs.
SLOW = (
    "/crash/",
    "/damage/",
    "apps/chat/test_gateway",
    "apps/chat/test_outside_client",
    "apps/chat/test_worker",
    "apps/chat/web",
    "apps/kingdom/chamberlain",
    "apps/kingdom/test_example",
    "apps/kingdom/test_supervision",
    "apps/kingdom/test_whole",
    "conformance/test_many_processes",
    "mcp/test_judges",
    "mcp/test_stdio",
    "topics/test_broken_handles",
    "cli/test_chat",
    "cli/test_execute",
    "cli/test_ignite",
    "cli/test_up",
    "test_benchmarks",
    "test_docs",
    "test_examples",
    "test_interrupts",
    "_storm",
    "_crash",
)
SERVERS = {"postgres", "kafka", "servers"}

# Tests of whole programs wait for browsers, terminals and servers, which a loaded machine can starve: each of these may
# be run a second time, which is told with its failure. Tests of what a store promises never are (docs/adr/0054).
TWICE = ("tests/apps/", "tests/cli/", "tests/manager/", "tests/mcp/", "tests/test_docs", "tests/test_examples")
TWICE_AT_MOST = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that needs a server, by its fixtures or its parameters, and each one that takes long."""
    for item in items:
        if any(part in item.path.as_posix() for part in TWICE) and not os.environ.get("PABAL_SOAK"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        parameters = getattr(item, "callspec", None)
        words = {*getattr(item, "fixturenames", ()), *(parameters.id.split("-") if parameters else ())}
        if words & SERVERS:
            item.add_marker("server")
        if any(name in item.path.as_posix() for name in SLOW):
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why tests were run a second time: their failures are as true as those of a test that is run once."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"run a second time: {report.nodeid}", "_")
        terminalreporter.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A few tests that needed a second run are a loaded machine; more of them are a defect."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and len(reporter.getreports("rerun")) > TWICE_AT_MOST and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"more than {TWICE_AT_MOST} tests needed a second run", red=True)


@pytest.fixture(scope="session", autouse=True)
def watches_left_open() -> Iterator[None]:
    """A user has 128 inotify instances as a rule: tests that leave theirs open make others poll, and fail far away."""
    yield
    own = Path("/proc/self/fd")
    left = [fd.name for fd in own.iterdir() if fd.is_symlink() and "inotify" in os.readlink(fd)]
    assert len(left) < 20, f"{len(left)} watches were left open: close what was opened"


@pytest.fixture(autouse=True)
def logs_left_open() -> Iterator[None]:
    """A log that a test leaves open writes to a stream that is gone, in the midst of another test."""
    yield
    left = []
    for logger in (logging.getLogger("pabal"), logging.getLogger("uvicorn")):
        for handler in [each for each in logger.handlers if isinstance(each, logging.StreamHandler)]:
            logger.removeHandler(handler)
            left.append(handler)
    assert not left, f"{left} were left open"


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


@pytest.fixture
def schema(postgres: "PostgresServer") -> Iterator[str]:
    """A schema of the PostgreSQL server that is removed after the test."""
    with postgres.schema() as schema:
        yield schema


@pytest.fixture(params=["transaction", "session"])
def pgbouncer(postgres: "PostgresServer", request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the PostgreSQL server through a PgBouncer in each of its modes."""
    from tests.services.pgbouncer import program, running

    if program() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have PgBouncer: run scripts/system-packages")
        pytest.skip("needs PgBouncer: run scripts/system-packages")
    with running(postgres, request.param) as url:
        yield url


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
