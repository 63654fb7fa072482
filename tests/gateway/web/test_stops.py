"""The dashboard and the HTTP interface while the store or the gateway stands still, is gone, and comes back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import pabal
from pabal.gateway.api import live
from pabal.queues.overview import PATIENCE
from tests.gateway.conftest import Running
from tests.gateway.http_client import Client, Failed
from tests.gateway.web.conftest import OpenPage
from tests.services.postgres import PostgresServer, free_port, running
from tests.waiting import until


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A PostgreSQL server of its own, to be stopped; that of the other tests says why there can be none here."""
    with running() as found:
        yield found


class TestStore:
    """A store on a server that stops."""

    @pytest.fixture
    def url(self, server: PostgresServer) -> str:
        with pabal.connect(server.url) as mq:
            mq.queue("emails").publish_many(range(12))
        return server.url

    @pytest.mark.parametrize("outage", ["hung", "gone"])
    def test_it_is_shown_and_heals_by_itself(self, server: PostgresServer, open_page: OpenPage, outage: str) -> None:
        page = open_page()
        row = page.get_by_role("row", name="emails")
        expect(row).to_contain_text("12")
        server.hang() if outage == "hung" else server.stop()
        expect(page.locator("#live-text")).to_have_text("the store does not answer")
        expect(page.locator("#banner")).to_be_visible()
        expect(row).to_contain_text("12")  # what it said last
        late = open_page()  # whoever comes now is told as well
        expect(late.locator("#live-text")).to_have_text("the store does not answer")
        server.resume() if outage == "hung" else server.start()
        for each in (page, late):
            expect(each.locator("#live-text")).to_have_text("live", timeout=120_000)
            expect(each.locator("#banner")).to_be_hidden()
            expect(each.get_by_role("row", name="emails")).to_contain_text("12")

    @pytest.mark.parametrize("outage", ["hung", "gone"])
    def test_a_lease_is_answered_with_an_error_and_not_with_nothing(
        self, server: PostgresServer, shown: Running, outage: str
    ) -> None:
        client = Client(shown)
        assert client("lease", queue="empty", wait=0.1)["messages"] == []
        server.hang() if outage == "hung" else server.stop()
        try:
            with pytest.raises(Failed) as caught:
                client("lease", queue="empty", wait=0.1)
            assert caught.value.status == 503
        finally:
            server.resume() if outage == "hung" else server.start()


def test_a_gateway_that_hangs_is_shown_and_heals_by_itself(
    emails: pabal.Queue, shown: Running, open_page: OpenPage
) -> None:
    page = open_page()
    expect(page.locator("#live-text")).to_have_text("live")
    os.kill(shown.process.pid, signal.SIGSTOP)
    try:
        expect(page.locator("#live-text")).to_have_text("not connected")
    finally:
        os.kill(shown.process.pid, signal.SIGCONT)
    expect(page.locator("#live-text")).to_have_text("live")
    expect(page.locator("#banner")).to_be_hidden()


def test_the_page_looks_often_enough_to_show_a_stop_within_two_seconds() -> None:
    text = (resources.files("pabal.gateway") / "web" / "main.js").read_text()
    silence, look = (int(re.findall(rf"^const {name} = (\d+);$", text, re.M)[0]) for name in ("SILENCE", "LOOK"))
    assert "silent > SILENCE" in text and "}, LOOK);" in text
    assert silence + look <= 2000  # of a gateway; a store that is silent is told by it, and sooner
    assert live._EVERY * 1000 < silence and live._EVERY + PATIENCE < 2


class TestManager:
    """`pabal up` with its gateway."""

    @contextmanager
    def manager(self, place: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
        script = "from pabal.cli.main import main; main()"
        command = [sys.executable, "-c", script, "up", "--root", ".pabal", "--gateway-port", str(port)]
        with (place / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            until(lambda: _answers(port))
            yield process
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()
            until(lambda: not _answers(port))  # the kernel ends the gateway with it

    def test_its_stop_is_shown_and_healed(self, tmp_path: Path, browser: Browser) -> None:
        port = free_port()
        with self.manager(tmp_path, port) as process:
            token = (tmp_path / ".pabal" / "gateway.token").read_text().strip()
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/?token={token}")
            expect(page.locator("#live-text")).to_have_text("live")
            os.kill(process.pid, signal.SIGSTOP)
            expect(page.locator("#banner")).to_contain_text("the manager stands still")
            os.kill(process.pid, signal.SIGCONT)
            expect(page.locator("#live-text")).to_have_text("live")
        expect(page.locator("#live-text")).to_have_text("not connected")
        with self.manager(tmp_path, port):
            expect(page.locator("#live-text")).to_have_text("live")
            expect(page.locator("#banner")).to_be_hidden()
            page.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
