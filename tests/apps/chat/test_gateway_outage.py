"""While the database is down a gateway takes messages in; what needs the database says so."""

import asyncio
import uuid
from pathlib import Path

from pabal.testing import ManualClock
from tests.apps.chat.gateways import Client, Site, Switched, played, until
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer
from tests.topics.breaking import break_handles


@played
async def test_messages_are_taken_in_with_memberships_from_memory_though_they_are_old(site: Site) -> None:
    ann, eve = site.person("ann"), site.person("eve")
    room, ledger, clock = site.room(ann), Switched(site.ledger), ManualClock()
    with site.gateway(ledger=ledger, clock=clock) as gateway:
        async with ann.socket(gateway, room) as a, eve.socket(gateway) as e:
            assert (await e.send(room, "no"))["error"]["code"] == "NotMember"
            ledger.down = True
            clock.advance(3600)  # long after the memory of it should have been refreshed
            assert (await a.send(room, "while it is down"))["status"] == "ACCEPTED"
            assert (await e.send(room, "no"))["error"]["code"] == "NotMember"
            await until(lambda: a.texts)
            assert a.texts == ["while it is down"]


@played
async def test_a_membership_that_nobody_knows_cannot_be_guessed(site: Site) -> None:
    ann = site.person()
    room, ledger = site.room(ann), Switched(site.ledger)
    ledger.down = True
    with site.gateway(ledger=ledger) as gateway:
        async with ann.socket(gateway) as a:
            failed = await a.send(room, "who am I")
            assert failed["status"] == "FAILED" and failed["error"]["code"] == "Unavailable"
            assert (await a.ask("joinRoom", {"roomId": room}))["error"]["code"] == "Unavailable"
            ledger.down = False
            await asyncio.sleep(1.1)  # an outage is remembered for a second
            assert (await a.send(room, "now I know"))["status"] == "ACCEPTED"


@played
async def test_rest_answers_503_and_when_to_come_again(site: Site) -> None:
    ann = site.person()
    room, ledger = site.room(ann), Switched(site.ledger)
    with site.gateway(ledger=ledger) as gateway:
        async with ann.rest(gateway) as http:
            ledger.down = True
            for path in ("/rooms", f"/rooms/{room}/messages", f"/rooms/{room}/members"):
                answer = await http.get(path)
                assert answer.status_code == 503 and answer.headers["retry-after"] == "1", path
                assert answer.json()["error"]["code"] == "Unavailable"
            login = {"email": ann.email, "password": "whatever"}
            assert (await http.post("/auth/login", json=login)).status_code == 503
            assert (await http.get("/health")).text == "ok"
            ledger.down = False
            assert (await http.get("/rooms")).status_code == 200


@played
async def test_a_membership_is_asked_for_once_and_kept_for_half_a_minute(site: Site) -> None:
    ann = site.person()
    room, ledger, clock = site.room(ann), Switched(site.ledger), ManualClock()
    with site.gateway(ledger=ledger, clock=clock) as gateway:
        async with ann.socket(gateway) as a:
            await asyncio.gather(*(a.send(room, f"{number}") for number in range(10)))
            assert ledger.asked("memberships") == 1
            clock.advance(29)
            await a.send(room, "remembered")
            assert ledger.asked("memberships") == 1
            clock.advance(2)
            await a.send(room, "asked again")
            await until(lambda: ledger.asked("memberships") == 2)  # in the background


@played
async def test_a_database_that_hangs_delays_no_send(embedded_site: Site) -> None:
    ann, bob, eve = (embedded_site.person(name) for name in ("ann", "bob", "eve"))
    room, ledger, clock = embedded_site.room(ann, bob), Switched(embedded_site.ledger), ManualClock()
    with embedded_site.gateway(ledger=ledger, clock=clock) as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b, eve.socket(gateway) as e:
            ledger.hangs = True
            for _ in range(20):  # ten minutes: what is known of members gets old, and no question returns
                clock.advance(30)
                acks = await asyncio.gather(a.send(room, "x"), b.send(room, "y"), a.ask("typing", {"roomId": room}))
                assert [ack.get("status", ack.get("success")) for ack in acks] == ["ACCEPTED", "ACCEPTED", True]
            assert (await e.send(room, "who am I"))["error"]["code"] == "Unavailable"
            async with ann.rest(gateway) as http:  # what needs the database fails at once when all threads wait
                waiting = [asyncio.create_task(http.get("/rooms")) for _ in range(8)]
                await until(lambda: ledger.asked("rooms_of") == 8)
                clock.advance(4)
                assert (await http.get("/rooms")).status_code == 503
                ledger.released.set()
                assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
            await until(lambda: len(a.texts) == 40)


@played
async def test_who_joins_or_leaves_is_known_at_once_on_every_gateway(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, open=True)
    with site.gateway() as one, site.gateway() as two:
        async with ann.socket(two, room) as a, bob.socket(two) as b, bob.rest(one) as http:
            assert (await b.send(room, "too early"))["error"]["code"] == "NotMember"
            assert (await http.post(f"/rooms/{room}/join", json={})).status_code == 200
            accepted = False
            for _ in range(200):
                accepted = (await b.send(room, "in"))["status"] == "ACCEPTED"
                if accepted:
                    break
                await asyncio.sleep(0.02)
            assert accepted and (await b.ask("joinRoom", {"roomId": room}))["success"]
            assert (await http.post(f"/rooms/{room}/leave", json={})).status_code == 200
            await until(lambda: any('"left"' in text for text in a.texts))
            for _ in range(200):
                if (await b.send(room, "out"))["status"] == "FAILED":
                    break
                await asyncio.sleep(0.02)
            heard = len(b.texts)
            sent = str(uuid.uuid4())
            await a.send(room, "for those who stayed", id=sent)
            await until(lambda: a.texts[-1] == "for those who stayed")
            assert len(b.texts) == heard


@played
async def test_a_database_server_that_stops_and_starts_costs_no_message(
    servers_site: Site, postgres: PostgresServer
) -> None:
    ann, bob = servers_site.person("ann"), servers_site.person("bob")
    room = servers_site.room(ann, bob)
    with servers_site.worker(), servers_site.gateway() as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b, ann.rest(gateway) as http:
            await a.send(room, "before")
            await b.until_texts(1)
            await asyncio.to_thread(postgres.stop)
            try:
                acks = [await a.send(room, f"while it is down {number}") for number in range(5)]
                assert {ack["status"] for ack in acks} == {"ACCEPTED"}
                assert (await http.get("/rooms")).status_code == 503
            finally:
                await asyncio.to_thread(postgres.start)
            await b.until_texts(6)
            assert b.texts == ["before", *(f"while it is down {number}" for number in range(5))]
            assert (await http.get("/rooms")).status_code == 200


@played
async def test_a_kafka_server_that_stops_and_starts_costs_no_message(servers_site: Site, kafka: KafkaServer) -> None:
    ann, bob = servers_site.person("ann"), servers_site.person("bob")
    room = servers_site.room(ann, bob)
    with servers_site.worker(), servers_site.gateway() as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b:
            await a.send(room, "before")
            await b.until_texts(1)
            await asyncio.to_thread(kafka.stop)
            sending = asyncio.create_task(_until_accepted(a, room, "in between"))
            await asyncio.sleep(1)
            kafka.start()  # in this thread: the kernel ends the server together with the thread that started it
            await sending
            await a.send(room, "after")
            await b.until_texts(3)
            assert b.texts == ["before", "in between", "after"]


async def _until_accepted(client: Client, room: str, content: str) -> None:
    """Send as a good client does: again and again, under the same id, until it is accepted."""
    sent = str(uuid.uuid4())
    while (await client.send(room, content, id=sent, patience=60))["status"] != "ACCEPTED":
        await asyncio.sleep(0.2)


@played
async def test_an_io_error_of_the_topics_costs_one_answer_and_no_restart(embedded_site: Site) -> None:
    ann, bob = embedded_site.person("ann"), embedded_site.person("bob")
    room = embedded_site.room(ann, bob)
    with embedded_site.gateway() as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b:
            await a.send(room, "before")
            await b.until_texts(1)
            break_handles(Path(embedded_site.topics_url.removeprefix("sqlite:")))  # the gateway's and the worker's
            await _until_accepted(a, room, "after")
            await b.until_texts(2)
            assert b.texts == ["before", "after"]
