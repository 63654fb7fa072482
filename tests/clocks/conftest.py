"""Processes with wall clocks of their own, on every store."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clocks.clocked import Clocked

if TYPE_CHECKING:
    from tests.services.postgres import PostgresServer

STORES = ("files", "sqlite", "hybrid", "postgres")
Start = Callable[..., Clocked]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim."""
    if shutil.which("gcc") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have gcc: run scripts/system-packages")
        pytest.skip("needs gcc: run scripts/system-packages")
    target = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).parent / "shim.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(target), str(source)], check=True)
    return target


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store."""
    place = {"files": f"file:{tmp_path}/spool", "sqlite": f"sqlite:{tmp_path}/q.db", "hybrid": f"hybrid:{tmp_path}/h"}
    if request.param in place:
        yield place[request.param]
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.schema() as schema:
        yield f"{server.url}?schema={schema}"


@pytest.fixture
def start(library: Path, url: str, tmp_path: Path) -> Iterator[Start]:
    """Start processes on the store, each with a wall clock that is so many seconds ahead."""
    with ExitStack() as stack:

        def started(ahead: float = 0.0, **more: object) -> Clocked:
            clocks = tmp_path / "clocks"
            return stack.enter_context(closing(Clocked(library, clocks, url, ahead=ahead, **more)))  # type: ignore[arg-type]

        yield started


@pytest.fixture
def own_clock(url: str) -> bool:
    """Whether dates are judged by the clocks of the processes, not by that of a server."""
    return not url.startswith("postgresql")
