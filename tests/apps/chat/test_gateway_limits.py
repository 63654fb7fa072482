"""Nobody gets more than its share: rates, sizes, sockets, long polls, logins."""

import asyncio
import json
import time
from collections.abc import Callable

import httpx2
import pytest
from socketio.exceptions import ConnectionError
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from pabal.apps.chat.gateway.limits import Buckets, with_limits
from pabal.errors import InvalidInput
from pabal.testing import ManualClock
from tests.apps.chat.gateways import Client, Site, logged_in, played, raw, until
from tests.steps import growth


async def closed(wire: ClientConnection) -> None:
    with pytest.raises(ConnectionClosed):
        while True:
            await asyncio.wait_for(wire.recv(), 10)


@played
async def test_a_user_sends_so_many_at_once_and_then_so_many_a_second(site: Site) -> None:
    ann, clock = site.person(), ManualClock()
    room = site.room(ann)
    with site.gateway(clock=clock, sends=2, burst=5) as gateway:
        async with ann.socket(gateway, room) as one, ann.socket(gateway, room) as two:
            acks = [await (one, two)[number % 2].send(room, "x") for number in range(7)]
            assert [ack["status"] for ack in acks] == ["ACCEPTED"] * 5 + ["FAILED"] * 2
            assert acks[-1]["error"]["code"] == "TooOften"
            clock.advance(1)
            acks = [await one.send(room, "y") for _ in range(3)]
            assert [ack["status"] for ack in acks] == ["ACCEPTED"] * 2 + ["FAILED"]


@played
async def test_other_events_have_a_rate_too(site: Site) -> None:
    ann, clock = site.person(), ManualClock()
    with site.gateway(clock=clock, events=1) as gateway:
        async with ann.socket(gateway) as a:
            acks = [await a.ask("heartbeat", {}) for _ in range(6)]
            assert [ack["success"] for ack in acks] == [True] * 4 + [False] * 2


@played
async def test_a_user_has_so_many_sockets_and_a_gateway_too(site: Site) -> None:
    ann, bob, eve = site.person("ann"), site.person("bob"), site.person("eve")
    with site.gateway(sockets_per_user=2, sockets=4) as gateway:
        async with ann.socket(gateway), ann.socket(gateway):
            third = Client()
            with pytest.raises(ConnectionError):
                await third.connect(gateway, {"token": ann.token})
            await third.close()
            await until(lambda: len(gateway.gateway.server.eio.sockets) == 2, "the end of the third")
            async with bob.socket(gateway), bob.socket(gateway):
                full = Client()
                with pytest.raises(ConnectionError):
                    await full.connect(gateway, {"token": eve.token})
                await full.close()
        async with ann.socket(gateway):
            pass


@played
async def test_a_frame_that_is_too_large_ends_the_connection(site: Site) -> None:
    ann = site.person()
    with site.gateway() as gateway:
        async with raw(gateway) as wire:
            await logged_in(wire, ann.token)
            await wire.send("42" + json.dumps(["sendMessage", {"content": "x" * 70_000}]))
            await closed(wire)


@played
async def test_an_event_before_login_is_not_heard_and_who_never_logs_in_is_cut_off(site: Site) -> None:
    ann, clock = site.person(), ManualClock()
    room = site.room(ann)
    with site.gateway(clock=clock) as gateway:
        async with raw(gateway) as wire:
            assert str(await wire.recv()).startswith("0")
            body = {"roomId": room, "clientMsgId": "7d9a6f0e-30a6-4b7e-8d1c-000000000001", "content": "hi"}
            await wire.send("420" + json.dumps(["sendMessage", body]))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wire.recv(), 0.5)
            await until(lambda: gateway.gateway._housekeeping._unauthenticated, "seen not to be logged in")
            clock.advance(11)
            await closed(wire)
        assert site.ledger.messages(room) == []


@played
@pytest.mark.parametrize(
    "packet",
    [
        "",
        "x",
        "\u00b2",
        "42{",
        "42",
        "42[5]",
        "42[{}]",
        "4z",
        '451-["sendMessage",{"_placeholder":true,"num":0}]',
        "42" + "[" * 500,
    ],
)
async def test_what_is_no_packet_ends_the_connection_and_fills_no_log(
    site: Site, packet: str, caplog: pytest.LogCaptureFixture
) -> None:
    ann = site.person()
    with site.gateway() as gateway:
        async with raw(gateway) as wire:
            await logged_in(wire, ann.token)
            await wire.send(packet)
            await closed(wire)
        async with ann.socket(gateway) as a:
            assert (await a.ask("heartbeat", {}))["success"]
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


@played
@pytest.mark.parametrize("event", ['["disconnect","left"]', '["connect",{},{"token":"x"}]', '["connect"]'])
async def test_who_emits_an_event_of_the_server_itself_is_cut_off_and_forgotten(site: Site, event: str) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway(sockets_per_user=1) as gateway:
        async with raw(gateway) as wire, ann.socket(gateway, room) as a:
            await logged_in(wire, bob.token)
            await wire.send("42" + json.dumps(["joinRoom", {"roomId": room}]))
            await wire.send(f"42{event}")
            await closed(wire)
            assert (await a.send(room, "not for who feigned to be gone"))["status"] == "ACCEPTED"
            async with bob.socket(gateway, room, lastSequence=0) as b:  # the place of the first one is free
                await b.until_texts(1)


@played
async def test_an_unknown_event_or_namespace_does_no_harm(site: Site) -> None:
    ann = site.person()
    with site.gateway() as gateway:
        async with raw(gateway) as wire:
            await logged_in(wire, ann.token)
            await wire.send("40/admin," + json.dumps({"token": ann.token}))
            assert str(await wire.recv()).startswith("44/admin")
            await wire.send('421["noSuchEvent",{}]')
            await wire.send('422["heartbeat",{},1,2,3]')
            assert str(await wire.recv()) == '432[{"success":true}]'


@played
async def test_long_polling_works_but_so_many_wait_and_no_more(site: Site) -> None:
    ann = site.person()
    room = site.room(ann)
    with site.gateway(polls=1) as gateway:
        client = Client()
        await client.connect(gateway, {"token": ann.token}, "polling")
        assert (await client.ask("joinRoom", {"roomId": room, "lastSequence": 0}))["success"]
        assert (await client.send(room, "by polling"))["status"] == "ACCEPTED"
        await until(lambda: client.texts)
        async with httpx2.AsyncClient(base_url=gateway.address) as http:
            refused = 0
            for _ in range(20):
                answer = await http.get("/socket.io/?EIO=4&transport=polling")
                refused += answer.status_code == 503 and answer.json()["error"]["code"] == "TooManyPolls"
            assert refused
    await client.close()


@played
async def test_a_client_that_never_reads_is_cut_off(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway(waiting=300, sends=10_000, burst=10_000) as gateway:  # ann herself has 30 under way
        async with raw(gateway) as wire, ann.socket(gateway, room) as a:
            await logged_in(wire, bob.token)
            await wire.send("42" + json.dumps(["joinRoom", {"roomId": room}]))
            await until(lambda: gateway.gateway.server.count_in(f"room:{room}") == 2, "both in the room")
            wire.transport.pause_reading()
            end = time.monotonic() + 120
            while gateway.gateway.server.count_in(f"room:{room}") == 2:
                await asyncio.gather(*(a.send(room, "x" * 5000, patience=60.0) for _ in range(10)))
                assert time.monotonic() < end
            wire.transport.abort()
            await a.send(room, "still here")


@played
async def test_so_many_logins_a_minute_from_one_address_and_for_one_account(embedded_site: Site) -> None:
    with embedded_site.gateway(logins=100, logins_per_address=6, logins_per_email=3) as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address) as http:

            async def log_in(name: str) -> int:
                body = {"email": f"{name}@example.org", "password": "wrong one"}
                return (await http.post("/auth/login", json=body)).status_code

            assert [await log_in("ann") for _ in range(4)] == [401, 401, 401, 429]
            assert [await log_in(f"other{number}") for number in range(4)] == [401, 401, 429, 429]


@played
async def test_who_would_wait_long_for_a_login_is_refused(embedded_site: Site) -> None:
    with embedded_site.gateway(passwords=2, logins=100) as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address) as http:
            body = {"email": "nobody@example.org", "password": "wrong one"}
            answers = await asyncio.gather(*(http.post("/auth/login", json=body) for _ in range(20)))
            assert {answer.status_code for answer in answers} == {401, 503}
            [refused, *_] = [answer for answer in answers if answer.status_code == 503]
            assert refused.json()["error"]["code"] == "TooBusy" and refused.headers["retry-after"] == "2"


@played
async def test_so_many_logins_a_minute_for_one_email(site: Site) -> None:
    with site.gateway(logins=3) as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address) as http:
            body = {"email": "nobody@example.org", "password": "wrong one"}
            codes = [(await http.post("/auth/login", json=body)).status_code for _ in range(4)]
            assert codes == [401, 401, 401, 429]
            late = await http.post("/auth/login", json=body)
            assert late.json()["error"]["code"] == "TooOften" and int(late.headers["retry-after"]) >= 1
            other = {"email": "somebody.else@example.org", "password": "wrong one"}
            assert (await http.post("/auth/login", json=other)).status_code == 401


@played
async def test_so_many_registrations_a_minute_and_so_many_rooms(site: Site) -> None:
    ann = site.person()
    with site.gateway(registrations=1, rooms=2) as gateway:
        async with ann.rest(gateway) as http:
            codes = [
                (
                    await http.post("/auth/register", json={"email": f"{ann.id}{n}@x.org", "password": "secret"})
                ).status_code
                for n in range(2)
            ]
            assert codes == [201, 429]
            made = [await http.post("/rooms", json={"name": "r"}) for _ in range(3)]
            assert [answer.status_code for answer in made] == [201, 201, 409]
            assert made[2].json()["error"]["code"] == "TooManyRooms"


@played
async def test_requests_of_a_user_have_a_rate(site: Site) -> None:
    ann, clock = site.person(), ManualClock()
    with site.gateway(clock=clock, requests=1) as gateway:
        async with ann.rest(gateway) as http:
            assert [(await http.get("/me")).status_code for _ in range(5)] == [200] * 4 + [429]


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    clock = ManualClock()
    bucket = Buckets(2, 3, clock)
    assert [bucket.take("a") for _ in range(3)] == [0, 0, 0]
    assert bucket.take("a") == pytest.approx(0.5) and bucket.take("b") == 0
    clock.advance(0.5)
    assert bucket.take("a") == 0 and bucket.take("a") > 0
    for number in range(30_000):
        clock.advance(2)
        bucket.take(number)
    assert len(bucket._left) < 20_000, "full buckets are forgotten"


@pytest.mark.parametrize("changes", [{"rooms": 0}, {"content": 5001}, {"no_such": 1}])
def test_a_limit_that_makes_no_sense_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        with_limits(changes)


@played
@pytest.mark.parametrize("body", ["0", "4" * 70_000])
async def test_a_post_that_cannot_be_read_is_answered_and_ends_the_connection(embedded_site: Site, body: str) -> None:
    with embedded_site.gateway() as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address, timeout=5) as http:
            opened = await http.get("/socket.io/?EIO=4&transport=polling")
            there = f"/socket.io/?EIO=4&transport=polling&sid={json.loads(opened.text[1:])['sid']}"
            assert (await http.post(there, content=body)).status_code == 400
            assert (await http.get(there)).status_code == 400
        await until(lambda: not gateway.gateway.server.eio.sockets)


def test_many_keys_are_not_looked_at_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger chooses the emails of failed logins, and so the keys."""
    monkeypatch.setattr("pabal.apps.chat.gateway.limits._MANY", 20)

    def take_all(keys: int) -> Callable[[], None]:
        bucket = Buckets(0.01, 3, ManualClock())

        def work() -> None:
            for key in range(keys):
                bucket.take(key)

        return work

    assert growth(take_all, 200) < 6
