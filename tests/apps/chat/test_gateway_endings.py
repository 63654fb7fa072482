"""Sockets hear nothing more when their session ends, or when their user is no member any more, on every gateway."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from pabal.apps.chat.events import PRESENCE
from pabal.apps.chat.gateway.ledger_calls import LedgerCalls, Memberships
from pabal.errors import Outage
from pabal.testing import ManualClock
from tests.apps.chat.gateways import Client, Person, Site, Switched, played, until
from tests.apps.chat.test_gateway_accounts import NEW, OLD, registered

LATER = 31.0  # seconds after which a gateway asks the ledger again


class Silent:
    """Topics that take no announcement: what one gateway knows, the others do not hear."""

    def __init__(self, topics: Any) -> None:
        self._topics = topics

    @property
    def driver(self) -> "Silent":
        return self

    def append(self, topic: str, records: Any) -> Any:
        if topic == PRESENCE:
            raise Outage("the presence topic takes nothing")
        return self._topics.driver.append(topic, records)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topics.driver, name)


async def until_ended(*sockets: Client) -> None:
    for socket in sockets:
        await until(socket.disconnected.is_set, "the end of a socket")
        assert socket.heard[-1][0] == "expired"


@played
async def test_each_way_to_end_a_session_ends_its_sockets_on_all_gateways(site: Site) -> None:
    with site.gateway() as one, site.gateway() as two:
        async with registered(one) as (http, ann):
            account = {"email": ann.email, "password": OLD}

            async def login() -> Person:
                token = (await http.post("/auth/login", json=account)).json()["accessToken"]
                return Person(ann.id, ann.email, token)

            async def logout(person: Person) -> None:
                async with person.rest(one) as rest:
                    assert (await rest.post("/auth/logout")).status_code == 200

            async def revoke(person: Person) -> None:
                [newest, *_] = (await http.get("/sessions")).json()["sessions"]
                assert (await http.post(f"/sessions/{newest['id']}/end")).status_code == 200

            async def new_password(person: Person) -> None:
                change = {"password": OLD, "newPassword": NEW}
                assert (await http.post("/me/password", json=change)).status_code == 200

            async with ann.socket(one) as mine:
                for end in (logout, revoke, new_password):
                    person = await login()
                    async with person.socket(one) as here, person.socket(two) as there:
                        await end(person)
                        await until_ended(here, there)
                assert (await mine.ask("heartbeat", {}))["success"]  # the session that ended the others goes on


@played
async def test_sockets_of_the_same_gateway_end_though_no_announcement_gets_out(embedded_site: Site) -> None:
    with embedded_site.gateway(topics=Silent(embedded_site.topics)) as gateway:
        async with registered(gateway) as (http, ann), ann.socket(gateway) as socket:
            assert (await http.post("/auth/logout")).status_code == 200
            await until_ended(socket)


@played
async def test_a_session_that_ended_without_a_word_ends_its_quiet_socket(site: Site) -> None:
    ann, clock = site.person(), ManualClock()
    with site.gateway(clock=clock) as gateway:
        async with ann.socket(gateway) as socket:
            [session] = site.ledger.sessions_of(ann.id)
            assert site.ledger.end_session(ann.id, session.id)
            clock.advance(LATER)
            await until_ended(socket)


@played
async def test_a_socket_that_was_let_in_during_an_outage_ends_when_its_session_turns_out_to_be_over(
    embedded_site: Site,
) -> None:
    ann, ledger, clock = embedded_site.person(), Switched(embedded_site.ledger), ManualClock()
    [session] = embedded_site.ledger.sessions_of(ann.id)
    embedded_site.ledger.end_session(ann.id, session.id)
    with embedded_site.gateway(ledger=ledger, clock=clock) as gateway:
        ledger.down = True
        async with ann.socket(gateway) as socket:
            assert (await socket.ask("heartbeat", {}))["success"]
            ledger.down = False
            clock.advance(LATER)
            await until_ended(socket)


@played
async def test_the_oldest_session_ends_when_a_user_has_too_many(embedded_site: Site) -> None:
    with embedded_site.gateway() as gateway:
        async with registered(gateway) as (http, ann), ann.socket(gateway) as oldest:
            for _ in range(49):
                embedded_site.ledger.open_session(ann.id, lifetime=60, address="", agent="")
            assert not oldest.disconnected.is_set()
            account = {"email": ann.email, "password": OLD}
            assert (await http.post("/auth/login", json=account)).status_code == 200
            await until_ended(oldest)


@played
async def test_a_socket_cannot_be_renewed_with_the_token_of_a_session_that_ended(embedded_site: Site) -> None:
    with embedded_site.gateway() as gateway:
        async with registered(gateway) as (http, ann), ann.socket(gateway) as socket:
            second = await http.post("/auth/login", json={"email": ann.email, "password": OLD})
            token = second.json()["accessToken"]
            assert (await http.post("/auth/logout", headers={"Authorization": f"Bearer {token}"})).status_code == 200
            refused = await socket.ask("renew", {"token": token})
            assert refused["error"]["code"] == "NotAuthenticated"
            assert (await http.post("/auth/logout")).status_code == 200
            await until_ended(socket)


@played
async def test_what_is_learned_while_the_ledger_is_asked_counts_more_than_its_answer(embedded_site: Site) -> None:
    ann, ledger, clock = embedded_site.person("ann"), Switched(embedded_site.ledger), ManualClock()
    room = embedded_site.room(ann)
    asked, go_on = threading.Event(), threading.Event()

    def dawdle() -> None:
        asked.set()
        assert go_on.wait(30)

    calls = LedgerCalls(ledger, clock)  # type: ignore[arg-type]  # it has the methods of a ledger
    memberships = Memberships(calls, clock)
    asks: list[Coroutine[Any, Any, Any]] = [memberships.has(room, ann.id), memberships.recheck([(room, ann.id)])]
    for ask in asks:
        asked.clear()
        go_on.clear()
        ledger.after["memberships"] = dawdle  # the ledger said yes, and the answer is on its way
        waiting = asyncio.create_task(ask)
        await asyncio.to_thread(asked.wait, 30)
        memberships.learn(room, ann.id, False)
        go_on.set()
        with suppress(Outage):  # the machine was busy, and the first answer took too long
            assert await waiting in (False, [(room, ann.id)])
        assert not await memberships.has(room, ann.id)
    calls.close()


@played
async def test_a_member_who_was_removed_or_left_hears_nothing_more_on_any_gateway(site: Site) -> None:
    ann, bob, eve = (site.person(name) for name in ("ann", "bob", "eve"))
    room = site.room(ann, bob, eve)
    with site.gateway() as one, site.gateway() as two:
        async with (
            ann.rest(one) as a,
            eve.rest(one) as e,
            ann.socket(one, room) as a1,
            ann.socket(two, room) as a2,
            bob.socket(one, room) as b1,
            bob.socket(two, room) as b2,
            eve.socket(one, room) as e1,
            eve.socket(two, room) as e2,
        ):
            assert (await a.post(f"/rooms/{room}/members/{bob.id}/remove")).status_code == 200
            assert (await e.post(f"/rooms/{room}/leave")).status_code == 200
            gone = {"roomId": room, "member": False}
            for socket in (b1, b2, e1, e2):
                await until(lambda socket=socket: gone in socket.of("membership"))
            assert (await a1.send(room, "among us"))["status"] == "ACCEPTED"
            await until(lambda: "among us" in a1.texts and "among us" in a2.texts)
            for socket in (b1, b2, e1, e2):
                assert (await socket.ask("heartbeat", {}))["success"]  # all that was sent before has come
                assert "among us" not in socket.texts


@played
async def test_a_member_who_was_removed_without_a_word_stops_hearing_the_room(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room, clock = site.room(ann, bob), ManualClock()
    with site.gateway(clock=clock) as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b:
            await a.send(room, "for both")
            await b.until_texts(1)
            site.ledger.remove_member(room, ann.id, bob.id)
            clock.advance(LATER)
            await until(lambda: {"roomId": room, "member": False} in b.of("membership"))
            await a.send(room, "for one")
            await a.until_texts(2)
            assert (await b.ask("heartbeat", {}))["success"]
            assert b.texts == ["for both"] and (await b.send(room, "no"))["error"]["code"] == "NotMember"
