"""What a socket missed and what is live meet without a gap and without a double, on any gateway."""

import asyncio
import threading
from contextlib import AsyncExitStack

from pabal.apps.chat.events import PERSISTED
from pabal.topic_store import NewRecord
from tests.apps.chat.gateways import Client, Site, Switched, played, until


@played
async def test_a_client_that_comes_back_gets_exactly_what_it_missed(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            for number in range(5):
                await a.send(room, f"{number}")
            await until(lambda: len(a.texts) == 5)
            async with bob.socket(gateway, room, lastSequence=2) as b:
                await until(lambda: len(b.texts) == 3)
                await a.send(room, "live")
                await until(lambda: "live" in b.texts)
                assert b.texts == ["2", "3", "4", "live"]


@played
async def test_without_a_last_sequence_only_what_is_live_comes(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            await a.send(room, "before")
            await until(lambda: a.texts)
            async with bob.socket(gateway) as b:
                assert await b.ask("joinRoom", {"roomId": room}) == {"success": True, "lastSequence": 1}
                await a.send(room, "after")
                await until(lambda: b.texts)
                assert b.texts == ["after"]


@played
async def test_reconnecting_in_a_burst_leaves_no_gap_and_no_double_at_the_seam(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room, count = site.room(ann, bob), 600
    with site.gateway(sends=10_000, burst=10_000) as one, site.gateway(sends=10_000, burst=10_000) as two:
        async with ann.socket(one, room) as a:

            async def burst() -> None:
                for start in range(0, count, 20):
                    await asyncio.gather(*(a.send(room, f"{number}") for number in range(start, start + 20)))

            sending = asyncio.create_task(burst())
            have: list[int] = []
            rounds = 0
            while len(have) < count:
                last, left = have[-1] if have else 0, count - len(have)
                async with bob.socket((one, two)[rounds % 2], room, lastSequence=last) as b:
                    await b.until_texts(min(20, left))
                have += b.sequences
                rounds += 1
            await sending
            assert rounds > 3, "the burst was over too soon to show anything"
            assert have == list(range(1, count + 1))


@played
async def test_a_message_that_is_broadcast_while_the_missed_ones_are_read_is_not_lost(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room, ledger = site.room(ann, bob), Switched(site.ledger)
    read, go_on = threading.Event(), threading.Event()

    def dawdle() -> None:
        read.set()
        assert go_on.wait(30)

    with site.gateway(ledger=ledger) as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway) as b:
            await a.send(room, "missed")
            await a.until_texts(1)
            ledger.after["messages"] = dawdle
            assert (await b.ask("joinRoom", {"roomId": room, "lastSequence": 0}))["success"]
            await asyncio.to_thread(read.wait)
            await a.send(room, "in between")
            await a.until_texts(2)
            go_on.set()
            await b.until_texts(2)
            await a.send(room, "live")
            await b.until_texts(3)
            assert b.texts == ["missed", "in between", "live"]


@played
async def test_many_who_join_in_a_burst_see_each_message_once_and_in_order(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room, count = site.room(ann, bob), 300
    with site.gateway(sends=10_000, burst=10_000, sockets_per_user=100) as gateway:
        async with ann.socket(gateway, room) as a:
            sending = asyncio.create_task(_send_all(a, room, count))
            async with AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(bob.socket(gateway, room, lastSequence=0)) for _ in range(10)
                ]
                await sending
                for client in clients:
                    await client.until_texts(count)
                    assert client.sequences == list(range(1, count + 1))


async def _send_all(client: Client, room: str, count: int) -> None:
    for start in range(0, count, 10):
        await asyncio.gather(*(client.send(room, f"{number}") for number in range(start, start + 10)))


@played
async def test_joining_again_gives_again_what_is_asked_for_and_nothing_twice(site: Site) -> None:
    ann = site.person()
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room, lastSequence=0) as a:
            for number in range(3):
                await a.send(room, f"{number}")
            await until(lambda: len(a.texts) == 3)
            assert (await a.ask("joinRoom", {"roomId": room, "lastSequence": 1}))["success"]
            await until(lambda: len(a.texts) == 5)
            await a.send(room, "live")
            await until(lambda: "live" in a.texts)
            assert a.texts == ["0", "1", "2", "1", "2", "live"]


@played
async def test_a_sequence_from_the_future_is_taken_as_the_newest(site: Site) -> None:
    ann = site.person()
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room, lastSequence=10_000) as a:
            await a.send(room, "first")
            await until(lambda: a.texts)
            assert a.sequences == [1]


@played
async def test_a_long_absence_is_caught_up_page_by_page(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room, count = site.room(ann, bob), 650
    with site.gateway(sends=10_000, burst=10_000) as gateway:
        async with ann.socket(gateway, room) as a:
            await asyncio.gather(*(a.send(room, f"{number}") for number in range(count)))
            await until(lambda: len(a.texts) == count)
        async with bob.socket(gateway, room, lastSequence=0) as b:
            await until(lambda: len(b.texts) >= count)
            assert b.sequences == list(range(1, count + 1))


@played
async def test_what_a_worker_publishes_twice_is_told_once(site: Site) -> None:
    ann = site.person()
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            await a.send(room, "one")
            await a.send(room, "two")
            await until(lambda: len(a.texts) == 2)
            found = [
                record
                for number, bounds in enumerate(site.topics.driver.bounds(PERSISTED))
                for record in site.topics.driver.read(PERSISTED, number, max(bounds.first, bounds.next - 50), 100)
                if record.key == room
            ]
            site.topics.driver.append(PERSISTED, [NewRecord(record.value, room) for record in found])
            await a.send(room, "three")
            await until(lambda: "three" in a.texts)
            assert a.texts == ["one", "two", "three"]


@played
async def test_two_gateways_both_broadcast(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway() as one, site.gateway() as two:
        async with (
            ann.socket(one, room) as a,
            ann.socket(two, room) as other,
            bob.socket(two, room) as b,
        ):
            await a.send(room, "from one")
            await until(lambda: b.texts and a.texts and other.of("messagePersisted"))
            await b.send(room, "from two")
            await until(lambda: len(a.texts) == len(b.texts) == 2)
            assert a.texts == b.texts == ["from one", "from two"]


@played
async def test_catching_up_waits_for_a_database_that_went_away(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    ledger = Switched(site.ledger)
    with site.gateway() as first, site.gateway(ledger=ledger) as second:
        async with ann.socket(first, room) as a:
            await a.send(room, "missed")
            await until(lambda: a.texts)
            async with bob.socket(second) as b:
                ledger.down_for = {"messages"}
                assert (await b.ask("joinRoom", {"roomId": room, "lastSequence": 0}))["success"]
                await a.send(room, "live")
                await until(lambda: len(a.texts) == 2)
                ledger.down_for = set()
                await until(lambda: len(b.texts) == 2)
                assert b.texts == ["missed", "live"]


@played
async def test_a_room_whose_messages_are_all_deleted_can_be_joined_from_its_beginning(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            await a.send(room, "old")
            await until(lambda: a.texts)
            assert site.ledger.expire(room, before=4e9).messages
            async with bob.socket(gateway) as b:
                assert (await b.ask("joinRoom", {"roomId": room, "lastSequence": 0}))["success"]
                await a.send(room, "new")
                await until(lambda: b.texts == ["new"])
