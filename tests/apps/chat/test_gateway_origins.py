"""Which names, pages and addresses a gateway answers to."""

import socket as sockets

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from pabal.errors import InvalidInput
from pabal.runtime.origins import Origins, check_bind
from tests.apps.chat.gateways import Site, played


@played
async def test_a_name_that_is_not_ours_is_refused_by_rest_and_by_sockets(embedded_site: Site) -> None:
    ann = embedded_site.person()
    with embedded_site.gateway(origins=Origins(hosts=("chat.example.org",))) as gateway:
        async with ann.rest(gateway) as http:
            for host in ("evil.example.org", "127.0.0.1.evil.org", "", "chat.example.org.evil.org"):
                answer = await http.get("/me", headers={"Host": host})
                assert answer.status_code == 403 and answer.json()["error"]["code"] == "HostRefused", host
            for host in (
                "localhost",
                f"127.0.0.1:{gateway.port}",
                "[::1]:80",
                "chat.example.org",
                "CHAT.example.org:443",
            ):
                assert (await http.get("/me", headers={"Host": host})).status_code == 200, host
        with pytest.raises(InvalidStatus) as refused:
            stream = sockets.create_connection(("127.0.0.1", gateway.port))
            await connect("ws://evil.example.org/socket.io/?EIO=4&transport=websocket", sock=stream)
        assert refused.value.response.status_code == 403


@played
async def test_a_page_from_elsewhere_may_not_call_unless_it_is_listed(embedded_site: Site) -> None:
    ann = embedded_site.person()
    friend = "https://app.example.org"
    with embedded_site.gateway(origins=Origins(origins=(friend,))) as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/socket.io/?EIO=4&transport=websocket"
        async with ann.rest(gateway) as http:
            for origin in ("https://evil.example.org", "null", "http://127.0.0.1:1", f"{friend}.evil.org", "http://["):
                answer = await http.get("/me", headers={"Origin": origin})
                assert answer.status_code == 403 and answer.json()["error"]["code"] == "OriginRefused", origin
                assert "access-control-allow-origin" not in answer.headers
                polled = await http.get("/socket.io/?EIO=4&transport=polling", headers={"Origin": origin})
                assert polled.status_code == 403
                with pytest.raises(InvalidStatus):
                    await connect(url, origin=origin)  # type: ignore[arg-type]  # a NewType of str
            own = await http.get("/me", headers={"Origin": gateway.address})
            assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
            listed = await http.get("/me", headers={"Origin": friend})
            assert listed.status_code == 200 and listed.headers["access-control-allow-origin"] == friend
            asked = {
                "Origin": friend,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization",
            }
            assert (await http.options("/rooms", headers=asked)).status_code == 200
        for origin in (gateway.address, friend):
            async with connect(url, origin=origin) as wire:  # type: ignore[arg-type]
                assert str(await wire.recv()).startswith("0")


@played
async def test_health_tells_nothing_but_ok(embedded_site: Site) -> None:
    with embedded_site.gateway() as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address) as http:
            answer = await http.get("/health")
            assert answer.text == "ok" and "server" not in answer.headers


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org"])
def test_a_public_address_is_refused_without_tls_or_a_proxy(host: str) -> None:
    with pytest.raises(InvalidInput, match="in the clear"):
        check_bind(host, behind_proxy=False, tls=False)
    check_bind(host, behind_proxy=True, tls=False)
    check_bind(host, behind_proxy=False, tls=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_neither(host: str) -> None:
    check_bind(host, behind_proxy=False, tls=False)


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "ftp://example.org", "*", "null"])
def test_an_origin_is_written_out_in_full(origin: str) -> None:
    with pytest.raises(InvalidInput):
        Origins(origins=(origin,))
