"""Who is online: per socket, by time to live, over all gateways, dead ones too."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2

from pabal.apps.chat.gateway.presence import (
    TTL,
    Belongs,
    Change,
    Empty,
    Entered,
    LocalSockets,
    Offline,
    Online,
    Presence,
    PresenceEvent,
)
from pabal.testing import ManualClock
from tests.apps.chat.gateways import Site, played, until


async def online(http: httpx2.AsyncClient, room: str, user: str) -> bool:
    members = (await http.get(f"/rooms/{room}/members")).json()["members"]
    return next(bool(member["online"]) for member in members if member["userId"] == user)


async def eventually(test: Callable[[], Any]) -> None:
    for _ in range(500):
        if await test():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


@played
async def test_who_comes_and_goes_is_told_to_the_rooms_on_every_gateway(site: Site) -> None:
    ann, bob, eve = site.person("ann"), site.person("bob"), site.person("eve")
    room, elsewhere = site.room(ann, bob), site.room(eve)
    with site.gateway() as one, site.gateway() as two:
        async with ann.socket(one, room) as a, eve.socket(one, elsewhere) as e, ann.rest(one) as http:
            async with bob.socket(two, room):
                await until(lambda: any(p["userId"] == bob.id and p["online"] for p in a.of("presence")))
                await eventually(lambda: online(http, room, bob.id))
                async with bob.socket(one, room):
                    pass
                assert await online(http, room, bob.id), "a socket that ends takes no other along"
            await until(lambda: [p["online"] for p in a.of("presence") if p["userId"] == bob.id] == [True, False])
            assert not await online(http, room, bob.id)
            assert not e.of("presence"), "who shares no room is told nothing"


@played
async def test_a_socket_that_is_silent_for_its_time_does_not_count_and_comes_back_by_a_heartbeat(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room, clock = site.room(ann, bob), ManualClock()
    with site.gateway(clock=clock, requests=10_000) as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b, ann.rest(gateway) as http:
            await eventually(lambda: online(http, room, bob.id))
            clock.advance(TTL + 1)
            await a.ask("heartbeat", {})
            await until(lambda: any(p["userId"] == bob.id and not p["online"] for p in a.of("presence")), "silence")
            assert not await online(http, room, bob.id)
            await b.ask("heartbeat", {})
            await eventually(lambda: online(http, room, bob.id))
            await until(lambda: a.of("presence")[-1]["online"])


@played
async def test_a_gateway_that_starts_knows_who_is_online_elsewhere(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway() as one:
        async with bob.socket(one, room), ann.rest(one) as http:
            await eventually(lambda: online(http, room, bob.id))
            with site.gateway() as two:
                async with ann.rest(two) as other:
                    await eventually(lambda: online(other, room, bob.id))


@played
async def test_the_users_of_a_gateway_that_stops_are_offline_at_once(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway() as one:
        async with ann.socket(one, room) as a, ann.rest(one) as http:
            with site.gateway() as two:
                async with bob.socket(two, room):
                    await eventually(lambda: online(http, room, bob.id))
            await until(lambda: any(p["userId"] == bob.id and not p["online"] for p in a.of("presence")))


@played
async def test_large_rooms_are_not_told_who_comes(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway(presence=1) as gateway:
        async with ann.socket(gateway, room) as a, ann.socket(gateway, room), bob.socket(gateway, room):
            async with ann.rest(gateway) as http:
                await eventually(lambda: online(http, room, bob.id))
            assert not a.of("presence")


# The map by itself


def test_a_gateway_that_died_goes_by_the_time_to_live() -> None:
    clock = ManualClock()
    presence = Presence(clock)
    presence.learn(Online("dead", ["ann"]))
    presence.learn(Entered("dead", "ann", "room"))
    presence.learn(Online("alive", ["ann", "bob"]))
    clock.advance(TTL - 1)
    presence.learn(Online("alive", ["bob"]))
    assert presence.tick() == [] and presence.is_online("ann")
    clock.advance(2)
    assert presence.tick() == [Change("ann", False, frozenset(["room"]))]
    assert not presence.is_online("ann") and presence.is_online("bob")


def test_what_is_read_late_counts_only_for_the_rest_of_its_time() -> None:
    clock = ManualClock()
    presence = Presence(clock)
    presence.learn(Online("one", ["ann"]), age=TTL - 5)
    assert presence.is_online("ann")
    clock.advance(6)
    assert not presence.is_online("ann")
    presence.learn(Online("one", ["bob"]), age=TTL * 10)
    assert not presence.is_online("bob")


def test_a_gateway_that_begins_anew_has_nobody() -> None:
    presence = Presence(ManualClock())
    presence.learn(Online("one", ["ann", "bob"]))
    presence.learn(Online("two", ["bob"]))
    assert presence.learn(Empty("one")) == [Change("ann", False, frozenset())]
    assert presence.is_online("bob") and not presence.is_online("ann")


def test_a_room_that_was_left_is_not_told_who_goes() -> None:
    presence = Presence(ManualClock())
    presence.learn(Online("one", ["ann"]))
    presence.learn(Entered("one", "ann", "left"))
    presence.learn(Entered("one", "ann", "kept"))
    presence.learn(Belongs("ann", "left", False))
    assert presence.learn(Offline("one", "ann")) == [Change("ann", False, frozenset(["kept"]))]


def test_a_dead_socket_is_not_kept_alive_by_its_sister() -> None:
    clock, told = ManualClock(), list[PresenceEvent]()
    local = LocalSockets("one", clock, told.append)
    local.heard("dead", "ann")
    local.heard("live", "ann")
    clock.advance(TTL / 2)
    local.heard("live", "ann")
    clock.advance(TTL / 2 + 1)
    local.tick()
    assert Offline("one", "ann") not in told
    local.gone("live")
    assert told[-1] == Offline("one", "ann"), "the dead one does not count, though its connection is open"


def test_who_is_online_is_repeated_before_the_time_is_over() -> None:
    clock, told = ManualClock(), list[PresenceEvent]()
    local = LocalSockets("one", clock, told.append)
    local.heard("a", "ann")
    for _ in range(3):
        clock.advance(TTL / 3)
        local.heard("a", "ann")
        local.tick()
    assert told == [Online("one", ["ann"])] * 4


def test_one_event_never_holds_more_users_than_a_record_can() -> None:
    clock, told = ManualClock(), list[PresenceEvent]()
    local = LocalSockets("one", clock, told.append)
    for number in range(12_000):
        local.heard(f"s{number}", f"u{number}")
    told.clear()
    clock.advance(TTL / 3)
    local.tick()
    assert [len(event.users) for event in told if isinstance(event, Online)] == [5000, 5000, 2000]
