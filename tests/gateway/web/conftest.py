"""A gateway, a store, and tabs of a real browser for the tests of the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request

import pabal
from tests.gateway.conftest import Running, gateway
from tests.services.browser import running as browser_running

WIDE = {"width": 1280, "height": 800}
OpenPage = Callable[..., Page]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with browser_running() as found:
        yield found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/jobs.db"


@pytest.fixture
def shown(url: str, tmp_path: Path) -> Iterator[Running]:
    with gateway(url, tmp_path / "log") as running:
        yield running


@pytest.fixture
def mq(url: str) -> Iterator[pabal.Connection]:
    with pabal.connect(url) as found:
        yield found


@pytest.fixture
def emails(mq: pabal.Connection) -> pabal.Queue:
    """A queue whose messages have one attempt."""
    queue = mq.queue("emails")
    queue.create(pabal.Policy(retry=pabal.RetryPolicy(limit=1)))
    return queue


@pytest.fixture
def open_page(browser: Browser, shown: Running) -> Iterator[OpenPage]:
    """Open the dashboard in a browser of its own. No script may fail, and no request may go elsewhere."""
    contexts, wrong = [], []

    def heard(request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(shown.address).netloc and not request.url.startswith("data:"):
            wrong.append(f"a request to {request.url}")

    def open_one(path: str = "", address: str | None = None, **options: object) -> Page:
        context = browser.new_context(**{"viewport": WIDE, **options})  # type: ignore[arg-type]  # its keywords
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", heard)
        page.goto(address or shown.dashboard)
        if path:
            page.goto(f"{shown.address}/{path}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert wrong == []
