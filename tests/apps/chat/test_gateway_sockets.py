"""The events of Socket.IO, one rule after the other, with real clients."""

import asyncio
import json
import uuid

import pytest
from socketio.exceptions import ConnectionError

from pabal.apps.chat.events import PERSISTED
from pabal.topic_store import NewRecord
from tests.apps.chat.gateways import Client, Site, logged_in, played, raw, until


@played
async def test_a_message_is_accepted_then_persisted_and_seen_by_every_member(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b:
            sent = str(uuid.uuid4())
            assert await a.send(room, "안녕하세요 こんにちは", id=sent) == {"clientMsgId": sent, "status": "ACCEPTED"}
            await until(lambda: a.of("messagePersisted") and b.texts and a.texts)
            [message] = b.of("newMessage")
            assert message == a.of("newMessage")[0]
            assert message["content"] == "안녕하세요 こんにちは" and message["senderId"] == ann.id
            assert message["id"] == message["messageId"] and message["sequence"] == 1
            [told] = a.of("messagePersisted")
            same = ("roomId", "clientMsgId", "messageId", "sequence", "createdAt")
            assert told == {name: message[name] for name in same}
            assert not b.of("messagePersisted")


@played
async def test_a_token_is_needed_and_only_auth_counts(site: Site) -> None:
    ann = site.person()
    with site.gateway() as gateway:
        for auth in (None, {}, {"token": "x"}, {"token": 7}, {"token": ann.token + "x"}, ann.token, [ann.token]):
            client = Client()
            with pytest.raises(ConnectionError):
                await client.connect(gateway, auth)
            await client.close()


@played
async def test_an_invitation_is_no_login(site: Site) -> None:
    ann = site.person()
    token, _ = site.tokens.invitation(site.room(ann), str(uuid.uuid4()))
    with site.gateway() as gateway:
        client = Client()
        with pytest.raises(ConnectionError):
            await client.connect(gateway, {"token": token})
        await client.close()


@played
async def test_an_expired_token_ends_an_open_socket(site: Site) -> None:
    ann = site.person(lifetime=2.0)
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            await asyncio.wait_for(a.disconnected.wait(), 10)
            assert a.heard[-1][0] == "expired"


@played
async def test_who_is_no_member_gets_nothing_and_sends_nothing(site: Site) -> None:
    ann, eve = site.person("ann"), site.person("eve")
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a, eve.socket(gateway) as e:
            for event in ("joinRoom", "typing"):
                ack = await e.ask(event, {"roomId": room})
                assert ack["success"] is False and ack["error"]["code"] == "NotMember"
            failed = await e.send(room, "let me in")
            assert failed["status"] == "FAILED" and failed["error"]["code"] == "NotMember"
            unknown = await e.send(str(uuid.uuid4()), "nowhere")
            assert unknown["error"]["code"] == "NotMember"
            await a.send(room, "for members")
            await until(lambda: a.texts)
            assert a.texts == ["for members"] and not e.heard


@played
async def test_a_forged_system_message_is_refused(site: Site) -> None:
    ann = site.person()
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            ack = await a.send(room, '{"event":"left"}', type="SYSTEM")
            assert ack["status"] == "FAILED" and ack["error"]["issues"][0]["path"] == "type"


@played
async def test_every_wrong_field_is_named(site: Site) -> None:
    ann = site.person()
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            ack = await a.ask("sendMessage", {"roomId": "x", "clientMsgId": "", "type": "TEXT", "content": ""})
            assert ack["status"] == "FAILED" and ack["clientMsgId"] == ""
            assert [issue["path"] for issue in ack["error"]["issues"]] == ["roomId", "clientMsgId", "content"]
            bodies: tuple[object, ...] = (None, 7, [], "text", {})
            for body in bodies:
                assert (await a.ask("sendMessage", body))["error"]["code"] == "InvalidInput"
                assert (await a.ask("joinRoom", body))["error"]["code"] == "InvalidInput"
            long = await a.send(room, "x" * 5001)
            assert long["status"] == "FAILED"
            assert (await a.send(room, "한" * 5000))["status"] == "ACCEPTED"


@played
async def test_a_repeated_send_after_a_lost_ack_is_stored_once(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room, sent = site.room(ann, bob), str(uuid.uuid4())
    with site.gateway() as gateway:
        async with bob.socket(gateway, room) as b:
            async with ann.socket(gateway, room) as a:  # the connection ends before the ack is read
                await a.emit("sendMessage", {"roomId": room, "clientMsgId": sent, "type": "TEXT", "content": "once"})
            async with ann.socket(gateway, room, lastSequence=0) as a:
                assert (await a.send(room, "once", id=sent))["status"] == "ACCEPTED"
                assert (await a.send(room, "last"))["status"] == "ACCEPTED"
                await until(lambda: b.texts[-1:] == ["last"] and a.texts[-1:] == ["last"])
                assert b.texts == a.texts == ["once", "last"]


@played
async def test_leaving_a_room_ends_its_messages_for_this_socket_only(site: Site) -> None:
    ann = site.person()
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as one, ann.socket(gateway, room) as two:
            assert await one.ask("leaveRoom", {"roomId": room}) == {"success": True}
            await two.send(room, "still here")
            await until(lambda: two.texts and one.of("messagePersisted"))
            assert not one.texts


@played
async def test_heartbeat_and_typing(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b:
            assert await a.ask("heartbeat", {}) == {"success": True}
            for _ in range(5):
                assert await a.ask("typing", {"roomId": room}) == {"success": True}
            await until(lambda: b.of("typing"))
            await a.send(room, "typed")
            await until(lambda: b.texts)
            assert b.of("typing") == [{"roomId": room, "userId": ann.id}] and not a.of("typing")


@played
async def test_a_rejected_message_is_told_to_its_sender(site: Site) -> None:
    ann = site.person()
    room, sent = site.room(ann), str(uuid.uuid4())
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            await a.send(room, "a member")
            await until(lambda: a.texts)
            site.ledger.leave(room, ann.id)  # behind the gateway's back: it still takes her for a member
            assert (await a.send(room, "no member", id=sent))["status"] == "ACCEPTED"
            await until(lambda: a.of("messageRejected"))
            [told] = a.of("messageRejected")
            assert told["clientMsgId"] == sent and told["roomId"] == room and told["reason"]


@played
async def test_messages_of_one_sender_keep_their_order(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, bob)
    texts = [f"message {number}" for number in range(300)]
    with site.gateway(sends=10_000, burst=10_000) as gateway:
        async with ann.socket(gateway, room) as a, bob.socket(gateway, room) as b:
            acks = await asyncio.gather(*(a.send(room, text) for text in texts))
            assert {ack["status"] for ack in acks} == {"ACCEPTED"}
            await until(lambda: len(b.texts) == len(texts))
            assert b.texts == texts and b.sequences == list(range(1, len(texts) + 1))


@played
async def test_an_image_is_not_overtaken_by_texts_that_were_sent_after_it(embedded_site: Site) -> None:
    ann = embedded_site.person()
    room, image = embedded_site.room(ann), "a" * 64
    place = embedded_site.folder / "images" / "aa" / f"{image}.by-{ann.id}"
    place.parent.mkdir(parents=True)
    place.touch()
    with embedded_site.gateway() as gateway:
        async with ann.socket(gateway, room) as a:
            for number in range(40):
                kind, content = ("IMAGE", image) if number % 4 == 0 else ("TEXT", str(number))
                body = {"roomId": room, "clientMsgId": str(uuid.UUID(int=number)), "type": kind, "content": content}
                await a.emit("sendMessage", body)
            await a.until_texts(40)
            assert [uuid.UUID(message["clientMsgId"]).int for message in a.of("newMessage")] == list(range(40))


@played
async def test_one_id_in_two_letter_cases_is_one_message(embedded_site: Site) -> None:
    ann = embedded_site.person()
    room, sent = embedded_site.room(ann), str(uuid.uuid4())
    with embedded_site.gateway() as gateway:
        async with ann.socket(gateway, room.upper()) as a:
            for id in (sent, sent.upper()):
                assert await a.send(room.upper(), "once", id=id) == {"clientMsgId": sent, "status": "ACCEPTED"}
            await a.send(room, "last")
            await until(lambda: a.texts[-1:] == ["last"])
            assert a.texts == ["once", "last"]


@played
async def test_half_a_character_is_refused_and_the_socket_stays(embedded_site: Site) -> None:
    ann = embedded_site.person()
    room = embedded_site.room(ann)
    with embedded_site.gateway() as gateway:
        async with raw(gateway) as wire:
            await logged_in(wire, ann.token)
            for number, (where, body) in enumerate(
                (
                    ("content", {"roomId": room, "clientMsgId": str(uuid.uuid4()), "content": "x\ud83dy"}),
                    ("content", {"roomId": "x", "clientMsgId": str(uuid.uuid4()), "content": "x\ud83dy"}),
                    ("clientMsgId", {"roomId": room, "clientMsgId": "\udc00", "content": "x"}),
                )
            ):
                await wire.send(f"42{number}" + json.dumps(["sendMessage", body]))
                [ack] = json.loads(str(await wire.recv())[3:])
                assert ack["status"] == "FAILED" and "half of a character" in json.dumps(ack["error"]), where
            await wire.send('429["heartbeat",{}]')
            assert str(await wire.recv()) == '439[{"success":true}]'


@played
async def test_a_stored_message_of_a_worker_that_gives_no_sequence_is_shown_once(embedded_site: Site) -> None:
    ann, bob = embedded_site.person("ann"), embedded_site.person("bob")
    room = embedded_site.room(ann, bob)
    event = {
        "messageId": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "roomId": room,
        "senderId": ann.id,
        "clientMsgId": str(uuid.uuid4()),
        "messageType": "TEXT",
        "content": "from elsewhere",
        "createdAt": "2026-02-10T12:00:00.250Z",
    }
    with embedded_site.gateway() as gateway:
        async with bob.socket(gateway, room) as b, ann.socket(gateway, room) as a:
            record = NewRecord(json.dumps(event).encode(), room)
            embedded_site.topics.driver.append(PERSISTED, [record, record])
            await a.send(room, "last")
            await until(lambda: b.texts[-1:] == ["last"])
            assert b.texts == ["from elsewhere", "last"] and b.of("newMessage")[0]["sequence"] is None
