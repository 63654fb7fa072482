"""Who takes too long over a request is let go; who waits for an answer is not."""

import asyncio
from contextlib import suppress

import pytest

from pabal.runtime import http_server
from tests.apps.chat.gateways import WITHIN, Client, Site, played, until

HALF = b"POST /auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(http_server, "BODY_SECONDS", 0.4)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", b""), (HALF[:20], b"HTTP/1.1 408 "), (HALF, b"HTTP/1.1 408 ")],
    ids=["nothing", "half a head", "half a body"],
)
@played
async def test_who_does_not_finish_a_request_is_let_go(
    embedded_site: Site, sent: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with embedded_site.gateway() as gateway:
        heard, wire = await asyncio.open_connection("127.0.0.1", gateway.port)
        wire.write(sent)
        assert (await asyncio.wait_for(heard.read(), WITHIN))[:13] == answer
        wire.close()
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


@played
async def test_who_sends_a_head_letter_by_letter_is_let_go(embedded_site: Site) -> None:
    with embedded_site.gateway() as gateway:
        heard, wire = await asyncio.open_connection("127.0.0.1", gateway.port)
        answer = asyncio.create_task(heard.read())
        for letter in HALF * 10:
            if answer.done():
                break
            wire.write(bytes([letter]))
            await asyncio.sleep(0.05)
        with suppress(ConnectionResetError):  # a letter crossed the answer on its way
            assert (await asyncio.wait_for(answer, WITHIN)).startswith(b"HTTP/1.1 408 ")
        wire.close()


@played
async def test_a_second_request_that_is_not_finished_is_let_go(embedded_site: Site) -> None:
    with embedded_site.gateway() as gateway:
        heard, wire = await asyncio.open_connection("127.0.0.1", gateway.port)
        for _ in range(2):
            wire.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(heard.readuntil(b"ok"), WITHIN)
        wire.write(HALF[:20])
        assert (await asyncio.wait_for(heard.read(), WITHIN)).startswith(b"HTTP/1.1 408 ")
        wire.close()


@pytest.mark.parametrize("transport", ["websocket", "polling"])
@played
async def test_who_waits_for_an_answer_may_wait_longer(embedded_site: Site, transport: str) -> None:
    ann = embedded_site.person()
    room = embedded_site.room(ann)
    client = Client()
    with embedded_site.gateway() as gateway, embedded_site.worker():
        await client.connect(gateway, {"token": ann.token}, transport)
        assert (await client.ask("joinRoom", {"roomId": room}))["success"]
        await asyncio.sleep(1.0)
        await client.send(room, "still here")
        await until(lambda: client.texts)
        await client.close()
