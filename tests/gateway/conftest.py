"""A gateway in a process of its own, and boto3 as its client."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config


class Running:
    """A gateway that was started with these options."""

    def __init__(self, url: str, *options: str, log: Path) -> None:
        self.url = url
        self._options = options
        self._log = log
        self.address = ""
        self.dashboard = ""
        self.start()

    def start(self) -> None:
        port = self.address.rpartition(":")[2] or "0"
        script = "from pabal.cli.main import main; main()"
        command = [sys.executable, "-c", script, "gateway", "--url", self.url, "--port", port]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        first, second = self.process.stdout.readline(), self.process.stdout.readline()
        if not second.startswith("serving SQS at "):
            self.kill()
            raise AssertionError(f"{first!r}, {second!r}; {self._log.read_text()}")
        self.dashboard, self.address = first.split()[-1], second.split()[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def gateway(url: str, log: Path, *options: str) -> Iterator[Running]:
    running = Running(url, *options, log=log)
    try:
        yield running
    finally:
        running.kill()


def client_of(address: str, *, key: str = "any", secret: str = "any", **config: Any) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=address,
        region_name="eu-west-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 1}, **config),
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[Running]:
    """One gateway for all tests of a module, on a SQLite store."""
    with gateway(f"sqlite:{place}/jobs.db", place / "log") as running:
        yield running


@pytest.fixture
def sqs(served: Running) -> Any:
    return client_of(served.address)


@pytest.fixture
def new_queue(sqs: Any, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes queues with names of their own; returns their URLs."""
    made: list[str] = []

    def make(suffix: str = "", **attributes: str) -> str:
        stem = f"{request.node.name[:40]}-{len(made)}".replace("[", "-").replace("]", "")
        url: str = sqs.create_queue(QueueName=stem + suffix, Attributes=attributes)["QueueUrl"]
        made.append(url)
        return url

    return make


@pytest.fixture
def queue(new_queue: Callable[..., str]) -> str:
    return new_queue()
