"""Names, sessions, passwords, invitations, owners and search, as clients of a gateway meet them."""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from tests.apps.chat.gateways import Person, RunningGateway, Site, Switched, played, until

OLD, NEW = "long enough", "longer than that"


@asynccontextmanager
async def registered(gateway: RunningGateway, name: str = "") -> AsyncIterator[tuple[httpx2.AsyncClient, Person]]:
    """Register a user by REST, and log in."""
    email = f"ann-{uuid.uuid4().hex[:8]}@example.org"
    account = {"email": email, "password": OLD, **({"name": name} if name else {})}
    async with httpx2.AsyncClient(base_url=gateway.address, timeout=30) as http:
        made = await http.post("/auth/register", json=account)
        assert made.status_code == 201, made.text
        login = (await http.post("/auth/login", json=account)).json()
        http.headers["Authorization"] = f"Bearer {login['accessToken']}"
        yield http, Person(login["user"]["id"], email, login["accessToken"])


def error(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@played
async def test_a_name_is_chosen_and_nobody_else_can_look_like_it(embedded_site: Site) -> None:
    with embedded_site.gateway() as gateway:
        async with registered(gateway, "The Boss") as (http, boss):
            assert (await http.get("/me")).json() == {"id": boss.id, "email": boss.email, "name": "The Boss"}
            other = {"email": "other@example.org", "password": OLD, "name": "Тhe B0ss"}
            assert error(await http.post("/auth/register", json=other)) == (409, "UserNameTaken")
            for name in ("x\u202ey", "x\u200by", "  ", "me@there"):
                refused = await http.post("/auth/register", json={**other, "name": name})
                assert refused.json()["error"]["issues"][0]["path"] == "name", name
            assert (await http.post("/me/name", json={"name": "민아"})).json()["name"] == "민아"
            assert (await http.post("/auth/register", json=other)).status_code == 201
            embedded_site.ledger.registration_open(False)
            late = {**other, "email": "late@example.org", "name": "late"}
            assert error(await http.post("/auth/register", json=late)) == (403, "RegistrationClosed")


@played
async def test_a_session_ends_everywhere_when_its_user_signs_out(site: Site) -> None:
    with site.gateway() as one, site.gateway() as two:
        async with registered(one) as (http, ann):
            [session] = (await http.get("/sessions")).json()["sessions"]
            assert session["current"] and session["address"] == "127.0.0.1" and "python" in session["agent"]
            async with ann.socket(two) as socket, ann.rest(two) as elsewhere:
                assert (await elsewhere.get("/me")).status_code == 200
                assert (await http.post("/auth/logout")).json() == {"success": True}
                assert error(await http.get("/me")) == (401, "NotAuthenticated")
                await until(lambda: socket.disconnected.is_set())
                assert socket.heard[-1][0] == "expired"
                assert error(await elsewhere.get("/me")) == (401, "NotAuthenticated")


@played
async def test_a_token_is_renewed_while_it_is_used_and_a_new_password_ends_the_others(embedded_site: Site) -> None:
    with embedded_site.gateway() as gateway:
        async with registered(gateway) as (http, ann), ann.socket(gateway) as socket:
            renewed = (await http.post("/auth/renew")).json()
            assert renewed["user"]["id"] == ann.id
            assert (await socket.ask("renew", {"token": renewed["accessToken"]})) == {"success": True}
            stranger = embedded_site.person("eve")
            assert not (await socket.ask("renew", {"token": stranger.token}))["success"]
            body = {"email": ann.email, "password": OLD}
            second = (await http.post("/auth/login", json=body)).json()["accessToken"]
            change = {"password": "wrong one", "newPassword": NEW}
            assert error(await http.post("/me/password", json=change)) == (403, "WrongPassword")
            assert (await http.post("/me/password", json={**change, "password": OLD})).status_code == 200
            assert (await http.get("/me")).status_code == 200  # the session that changed it goes on
            headers = {"Authorization": f"Bearer {second}"}
            assert error(await http.get("/me", headers=headers)) == (401, "NotAuthenticated")
            assert error(await http.post("/auth/login", json=body)) == (401, "WrongCredentials")
            third = (await http.post("/auth/login", json={**body, "password": NEW})).json()["accessToken"]
            [other] = [one for one in (await http.get("/sessions")).json()["sessions"] if not one["current"]]
            assert (await http.post(f"/sessions/{other['id']}/end")).status_code == 200
            assert error(await http.post(f"/sessions/{other['id']}/end")) == (404, "SessionUnknown")
            answer = await http.get("/me", headers={"Authorization": f"Bearer {third}"})
            assert error(answer) == (401, "NotAuthenticated")


@played
async def test_a_session_that_nobody_knows_counts_while_the_database_is_down(embedded_site: Site) -> None:
    ledger = Switched(embedded_site.ledger)
    with embedded_site.gateway() as gateway, embedded_site.gateway(ledger=ledger) as other:
        async with registered(gateway) as (_, ann):
            ledger.down = True
            async with ann.socket(other) as socket:
                assert (await socket.ask("heartbeat", {}))["success"]


@played
async def test_an_invitation_shows_its_room_and_can_be_revoked(embedded_site: Site) -> None:
    ann, bob = embedded_site.person("ann"), embedded_site.person("bob")
    with embedded_site.gateway() as gateway:
        async with ann.rest(gateway) as a, bob.rest(gateway) as b:
            room = (await a.post("/rooms", json={"name": " kitchen "})).json()
            assert room["name"] == "kitchen" and room["ownerId"] == ann.id
            made = (await a.post(f"/rooms/{room['id']}/invitations")).json()
            body = {"invitation": made["invitation"]}
            seen = (await b.post("/invitations/look", json=body)).json()
            assert seen["roomName"] == "kitchen" and seen["inviterId"] == ann.id and seen["inviterName"]
            assert [one["id"] for one in (await a.get(f"/rooms/{room['id']}/invitations")).json()["invitations"]] == [
                made["id"]
            ]
            revoke = f"/rooms/{room['id']}/invitations/{made['id']}/revoke"
            assert error(await b.post(revoke)) == (403, "NotMember")
            assert (await a.post(revoke)).status_code == 200
            assert error(await a.post(revoke)) == (404, "InvitationUnknown")
            assert error(await b.post("/invitations/look", json=body)) == (404, "InvitationUnknown")
            assert error(await b.post(f"/rooms/{room['id']}/join", json=body)) == (403, "InvitationNeeded")


@played
async def test_an_owner_renames_the_room_and_removes_a_member(embedded_site: Site) -> None:
    ann, bob = embedded_site.person("ann"), embedded_site.person("bob")
    room = embedded_site.room(ann, bob)
    with embedded_site.gateway() as gateway:
        async with (
            ann.rest(gateway) as a,
            bob.rest(gateway) as b,
            ann.socket(gateway, room) as one,
            bob.socket(gateway, room) as two,
        ):
            await two.send(room, "still here")
            await one.until_texts(1)
            assert error(await b.post(f"/rooms/{room}/rename", json={"name": "mine"})) == (403, "NotOwner")
            assert (await a.post(f"/rooms/{room}/rename", json={"name": "ours"})).status_code == 200
            await until(lambda: two.of("roomRenamed") == [{"roomId": room, "name": "ours"}])
            assert error(await b.post(f"/rooms/{room}/members/{ann.id}/remove")) == (403, "NotOwner")
            assert (await a.post(f"/rooms/{room}/members/{bob.id}/remove")).status_code == 200
            await until(lambda: two.of("membership") == [{"roomId": room, "member": False}])
            assert (await two.send(room, "no more"))["error"]["code"] == "NotMember"
            await one.until_texts(3)
            told = [json.loads(text) for text in one.texts[1:]]
            assert [(found["event"], found["userId"]) for found in told] == [("renamed", ann.id), ("removed", bob.id)]
            [known] = (await a.get(f"/rooms/{room}/users?ids={bob.id}")).json()["users"]
            assert known["name"] == told[1]["name"] and known["member"] is False


@played
async def test_who_was_removed_stays_out_until_the_owner_invites_again(embedded_site: Site) -> None:
    ann, bob = embedded_site.person("ann"), embedded_site.person("bob")
    with embedded_site.gateway() as gateway:
        async with ann.rest(gateway) as a, bob.rest(gateway) as b:
            for open in (False, True):
                room = (await a.post("/rooms", json={"name": "kitchen", "open": open})).json()["id"]
                link = (await a.post(f"/rooms/{room}/invitations")).json()
                assert (await b.post(f"/rooms/{room}/join", json=link)).status_code == 200
                assert (await a.post(f"/rooms/{room}/members/{bob.id}/remove")).status_code == 200
                assert error(await b.post(f"/rooms/{room}/join", json=link)) == (403, "RemovedFromRoom")
                link = (await a.post(f"/rooms/{room}/invitations")).json()
                assert (await b.post(f"/rooms/{room}/join", json=link)).status_code == 200


@played
async def test_the_devices_of_a_user_agree(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(bob, open=True)
    with site.gateway() as one, site.gateway() as two:
        async with ann.rest(one) as http, ann.socket(two) as device, bob.socket(one, room) as b:
            await b.send(room, "first")
            await b.until_texts(1)
            assert (await http.post(f"/rooms/{room}/join")).status_code == 200
            await until(lambda: device.of("membership") == [{"roomId": room, "member": True}])
            await b.until_texts(2)
            last: dict[str, Any] = b.of("newMessage")[-1]
            assert (await http.post(f"/rooms/{room}/read", json={"lastReadMessageId": last["id"]})).status_code == 200
            await until(lambda: {"roomId": room, "lastReadSequence": last["sequence"]} in device.of("read"))
            assert (await http.post(f"/rooms/{room}/leave")).status_code == 200
            await until(lambda: device.of("membership")[1:] == [{"roomId": room, "member": False}])


@played
async def test_search_is_for_members_and_comes_in_pages(embedded_site: Site) -> None:
    ann, eve = embedded_site.person("ann"), embedded_site.person("eve")
    room = embedded_site.room(ann)
    with embedded_site.gateway() as gateway:
        async with ann.rest(gateway) as http, eve.rest(gateway) as other, ann.socket(gateway, room) as socket:
            for number in range(5):
                await socket.send(room, f"회의 {number}")
            await socket.send(room, "점심")
            await socket.until_texts(6)
            first = (await http.get(f"/rooms/{room}/search", params={"q": "회의", "limit": 3})).json()
            assert [message["sequence"] for message in first["messages"]] == [5, 4, 3] and first["hasMore"]
            params = {"q": "회의", "before": first["next"]}
            rest = (await http.get(f"/rooms/{room}/search", params=params)).json()
            assert [message["sequence"] for message in rest["messages"]] == [2, 1] and rest["next"] is None
            assert error(await http.get(f"/rooms/{room}/search")) == (400, "InvalidInput")
            assert error(await other.get(f"/rooms/{room}/search", params={"q": "회의"})) == (403, "NotMember")
