"""Tests of pabal.aio run under asyncio's own event loop and under uvloop, by the pytest plugin of anyio."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pabal.aio
from pabal import Policy, RetryPolicy


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path}/store"


@pytest.fixture
async def mq(url: str) -> AsyncIterator[pabal.aio.Connection]:
    async with pabal.aio.connect(url) as connection:
        yield connection


@pytest.fixture
async def jobs(mq: pabal.aio.Connection) -> pabal.aio.Queue:
    queue = mq.queue("jobs")
    await queue.configure(Policy(retry=RetryPolicy(limit=2, initial=0, max=0)))
    return queue
