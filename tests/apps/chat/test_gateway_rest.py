"""The REST side, one rule after the other."""

import asyncio
import json
import uuid
from typing import Any

import httpx2
import pytest

from tests.apps.chat.gateways import Site, played, until

NOBODY = str(uuid.uuid4())


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def issues(answer: httpx2.Response) -> list[str]:
    assert code(answer) == (400, "InvalidInput"), answer.text
    return [issue["path"] for issue in answer.json()["error"]["issues"]]


@played
async def test_register_login_and_me(site: Site) -> None:
    email = f"Ann.{uuid.uuid4().hex[:8]}@Example.org"
    with site.gateway() as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address) as http:
            account = {"email": email, "password": "비밀번호 123"}
            made = await http.post("/auth/register", json=account)
            assert made.status_code == 201 and made.json()["email"] == email
            assert set(made.json()) == {"id", "email", "name"}
            assert code(await http.post("/auth/register", json={**account, "email": email.upper()})) == (
                409,
                "EmailTaken",
            )
            login = await http.post("/auth/login", json={**account, "email": email.lower()})
            assert login.status_code == 200 and set(login.json()) == {"accessToken", "expiresAt", "user"}
            assert login.json()["user"] == made.json() and login.headers["cache-control"] == "no-store"
            wrong = await http.post("/auth/login", json={**account, "password": "another one"})
            nobody = await http.post("/auth/login", json={**account, "email": "nobody@example.org"})
            assert wrong.json() == nobody.json() and code(wrong) == (401, "WrongCredentials")
            token = {"Authorization": f"Bearer {login.json()['accessToken']}"}
            assert (await http.get("/me", headers=token)).json() == made.json()
        assert site.ledger.user_by_email(email).password_hash.startswith("$argon2id$")  # type: ignore[union-attr]


@played
async def test_what_is_wrong_with_a_body_is_named_field_by_field(site: Site) -> None:
    ann = site.person()
    with site.gateway() as gateway:
        async with ann.rest(gateway) as http:
            assert issues(await http.post("/auth/register", json={"email": "x", "password": "short"})) == [
                "email",
                "password",
            ]
            assert issues(await http.post("/auth/register", json={"email": "a@b", "password": "x" * 101})) == [
                "password"
            ]
            assert issues(await http.post("/auth/login", json={})) == ["email", "password"]
            for name in ("", "   ", "x" * 101, 7, None, "a\x00b", "a\u202eb", "a\u200bb"):
                assert issues(await http.post("/rooms", json={"name": name})) == ["name"]
            blank = (await http.post("/rooms", json={"name": "   "})).json()["error"]["message"]
            assert blank == "name: a name of 1 to 100 characters that can be seen is expected"
            assert issues(await http.post("/rooms", json={"name": "x", "open": "yes"})) == ["open"]
            for data in (b"{", b"\xff", b'"\\ud800"', b"[" * 60_000):
                assert code(await http.post("/rooms", content=data)) == (400, "InvalidInput")
            assert code(await http.post("/rooms", json=[])) == (400, "InvalidInput")
            large = await http.post("/rooms", content=json.dumps({"name": "x" * 70_000}))
            assert code(large) == (413, "TooLarge")

            async def chunks() -> Any:
                for _ in range(20):
                    yield b" " * 10_000

            assert code(await http.post("/rooms", content=chunks())) == (413, "TooLarge")


@played
async def test_every_endpoint_but_a_few_needs_a_token(site: Site) -> None:
    room = site.room(site.person())
    image = "0" * 64
    paths = {
        "GET": ["/me", "/sessions", "/rooms", f"/rooms/{room}/members", f"/rooms/{room}/messages", f"/images/{image}"],
        "POST": ["/rooms", f"/rooms/{room}/join", f"/rooms/{room}/leave", f"/rooms/{room}/read", "/images"],
    }
    invitation, _ = site.tokens.invitation(room, str(uuid.uuid4()))
    with site.gateway() as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address) as http:
            for method, found in paths.items():
                for path in found:
                    for header in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {invitation}"}):
                        answer = await http.request(method, path, headers=header)
                        assert code(answer) == (401, "NotAuthenticated"), path
                        assert answer.headers["www-authenticate"] == "Bearer"
            assert (await http.get("/health")).text == "ok"
            assert code(await http.delete("/me")) == (405, "MethodRefused")
            assert (await http.get("/no/such/path")).status_code == 404


@played
async def test_a_path_names_a_room_by_a_uuid(site: Site) -> None:
    ann = site.person()
    with site.gateway() as gateway:
        async with ann.rest(gateway) as http:
            for name in ("x", "../..", f"{NOBODY}0", NOBODY.replace("-", "")):
                for path in ("members", "messages"):
                    answer = await http.get(f"/rooms/{name}/{path}")
                    assert answer.status_code in (400, 404), name
            assert issues(await http.get("/rooms/x/members")) == ["roomId"]
            for method, path in (("GET", "members"), ("GET", "messages"), ("POST", "join"), ("POST", "leave")):
                for name in (NOBODY, NOBODY.upper()):
                    answer = await http.request(method, f"/rooms/{name}/{path}")
                    assert code(answer) == (404, "RoomUnknown"), path


@played
async def test_a_closed_room_needs_an_invitation_and_an_open_one_does_not(site: Site) -> None:
    ann, bob, eve = site.person("ann"), site.person("bob"), site.person("eve")
    with site.gateway() as gateway:
        async with ann.rest(gateway) as a, bob.rest(gateway) as b, eve.rest(gateway) as e:
            room = (await a.post("/rooms", json={"name": "closed"})).json()
            other = (await a.post("/rooms", json={"name": "other"})).json()["id"]
            assert room["open"] is False and room["lastMessage"] is None and room["unread"] == 0
            join = f"/rooms/{room['id']}/join"
            assert code(await b.post(join, json={})) == (403, "InvitationNeeded")
            assert code(await b.post(f"/rooms/{room['id']}/invitations")) == (403, "NotMember")
            wrong = (await a.post(f"/rooms/{other}/invitations")).json()["invitation"]
            for token in (wrong, "x", bob.token, ann.token):
                assert code(await b.post(join, json={"invitation": token})) == (403, "InvitationNeeded")
            made = await a.post(f"/rooms/{room['id']}/invitations")
            assert made.status_code == 201 and set(made.json()) == {"id", "invitation", "expiresAt"}
            joined = await b.post(join, json={"invitation": made.json()["invitation"]})
            assert joined.status_code == 200 and joined.json()["id"] == room["id"]
            assert code(await b.post(join, json={})) == (409, "AlreadyMember")
            public = (await a.post("/rooms", json={"name": "open", "open": True})).json()["id"]
            assert (await e.post(f"/rooms/{public}/join")).status_code == 200


@played
async def test_joining_and_leaving_are_announced_by_the_server(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room = site.room(ann, open=True)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a, bob.rest(gateway) as b:
            assert (await b.post(f"/rooms/{room}/join")).status_code == 200
            assert (await b.post(f"/rooms/{room}/leave")).json() == {"success": True}
            assert code(await b.post(f"/rooms/{room}/leave")) == (403, "NotMember")
            assert code(await b.get(f"/rooms/{room}/messages")) == (403, "NotMember")
            await until(lambda: len(a.texts) == 2)
            assert {message["type"] for message in a.of("newMessage")} == {"SYSTEM"}
            assert [json.loads(text) for text in a.texts] == [
                {"event": word, "userId": bob.id, "name": bob.email.partition("@")[0]} for word in ("joined", "left")
            ]


@played
async def test_messages_come_in_pages_in_both_directions(site: Site) -> None:
    ann, eve = site.person("ann"), site.person("eve")
    room = site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as socket, ann.rest(gateway) as http, eve.rest(gateway) as stranger:
            for number in range(1, 11):
                await socket.send(room, f"{number}")
            await until(lambda: len(socket.texts) == 10)
            path = f"/rooms/{room}/messages"

            async def page(**query: Any) -> tuple[list[str], bool, str | None]:
                answer = (await http.get(path, params=query)).json()
                return [message["content"] for message in answer["messages"]], answer["hasMore"], answer["next"]

            texts, more, edge = await page(limit=4)
            assert texts == ["7", "8", "9", "10"] and more, "no cursor: the newest, in order"
            texts, more, edge = await page(limit=4, before=edge)
            assert texts == ["3", "4", "5", "6"] and more
            texts, more, edge = await page(limit=4, before=edge)
            assert texts == ["1", "2"] and not more and edge is None
            texts, more, edge = await page(limit=6, after=0)
            assert texts == ["1", "2", "3", "4", "5", "6"] and more
            texts, more, edge = await page(limit=6, after=edge)
            assert texts == ["7", "8", "9", "10"] and not more and edge is None
            assert (await page(before=3))[0] == ["1", "2"] and (await page(after=8))[0] == ["9", "10"]
            assert (await page(after=10)) == ([], False, None)
            message = (await http.get(path, params={"limit": 1})).json()["messages"][0]
            assert message == socket.of("newMessage")[-1]
            for query in ({"limit": 0}, {"limit": 101}, {"limit": "x"}):
                assert issues(await http.get(path, params=query)) == ["limit"]
            for cursor in ("x", "-1", "01ARZ3NDEKTSV4RRFFQ69G5FAU", "9" * 26):
                assert issues(await http.get(path, params={"before": cursor})) == ["before"], cursor
            assert issues(await http.get(path, params={"before": 1, "after": 1})) == ["after"]
            assert code(await stranger.get(path)) == (403, "NotMember")
            assert code(await stranger.get(f"/rooms/{room}/members")) == (403, "NotMember")


@played
async def test_a_read_mark_counts_what_is_unread_and_never_moves_back(site: Site) -> None:
    ann, bob = site.person("ann"), site.person("bob")
    room, elsewhere = site.room(ann, bob), site.room(bob)
    with site.gateway() as gateway:
        async with ann.socket(gateway, room) as a, bob.rest(gateway) as http:
            for number in range(4):
                await a.send(room, f"{number}")
            await until(lambda: len(a.texts) == 4)
            ids = [message["id"] for message in a.of("newMessage")]

            async def mine() -> dict[str, Any]:
                rooms = (await http.get("/rooms")).json()["rooms"]
                return next(found for found in rooms if found["id"] == room)

            assert (await mine())["unread"] == 4 and (await mine())["lastMessage"]["content"] == "3"
            read = f"/rooms/{room}/read"
            assert (await http.post(read, json={"lastReadMessageId": ids[2]})).json() == {"lastReadSequence": 3}
            assert (await http.post(read, json={"lastReadMessageId": ids[0]})).json() == {"lastReadSequence": 3}
            assert (await mine())["unread"] == 1 and (await mine())["lastReadSequence"] == 3
            assert issues(await http.post(read, json={"lastReadMessageId": "x"})) == ["lastReadMessageId"]
            unknown = {"lastReadMessageId": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
            assert code(await http.post(read, json=unknown)) == (404, "MessageUnknown")
            foreign = {"lastReadMessageId": ids[0]}
            assert code(await http.post(f"/rooms/{elsewhere}/read", json=foreign)) == (404, "MessageUnknown")


@played
async def test_rooms_and_members_come_in_pages(site: Site) -> None:
    ann = site.person()
    others = [site.person(f"p{number}") for number in range(4)]
    rooms = [site.room(ann, *others) for _ in range(5)]
    with site.gateway() as gateway:
        async with ann.rest(gateway) as http:
            found: list[str] = []
            query: dict[str, Any] = {"limit": 2}
            while True:
                page = (await http.get("/rooms", params=query)).json()
                found += [room["id"] for room in page["rooms"]]
                if not page["hasMore"]:
                    assert page["next"] is None
                    break
                query["before"] = page["next"]
            assert sorted(found) == sorted(rooms)
            assert issues(await http.get("/rooms", params={"before": "nonsense"})) == ["before"]
            members: list[str] = []
            query = {"limit": 2}
            while True:
                page = (await http.get(f"/rooms/{rooms[0]}/members", params=query)).json()
                members += [member["email"] for member in page["members"]]
                if not page["hasMore"]:
                    break
                query["after"] = page["next"]
            assert sorted(members) == sorted([ann.email, *(other.email for other in others)])
            for after in ("nonsense", "\x00"):
                assert issues(await http.get(f"/rooms/{rooms[0]}/members", params={"after": after})) == ["after"]


@played
async def test_a_room_with_news_comes_first(site: Site) -> None:
    ann = site.person()
    first, second = site.room(ann), site.room(ann)
    with site.gateway() as gateway:
        async with ann.socket(gateway, first) as a, ann.rest(gateway) as http:
            await asyncio.sleep(0.01)
            await a.send(first, "news")
            await until(lambda: a.texts)
            assert [room["id"] for room in (await http.get("/rooms")).json()["rooms"]] == [first, second]


@played
async def test_the_page_is_served_with_its_headers_and_asked_for_anew(site: Site) -> None:
    with site.gateway() as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address) as http:
            page = await http.get("/")
            assert page.status_code == 200 and "text/html" in page.headers["content-type"]
            assert page.headers["cache-control"] == "no-cache"
            assert page.headers["content-security-policy"].startswith("default-src 'self';")
            assert page.headers["x-content-type-options"] == "nosniff"
            again = await http.get("/", headers={"If-None-Match": page.headers["etag"]})
            assert again.status_code == 304
            for path in ("/../app.py", "/%2e%2e/events.py", "/..%2fevents.py"):
                assert (await http.get(path)).status_code in (403, 404)


@pytest.mark.parametrize("site", ["embedded"], indirect=True)
@played
async def test_a_register_that_is_repeated_at_once_makes_one_user(site: Site) -> None:
    with site.gateway() as gateway:
        async with httpx2.AsyncClient(base_url=gateway.address, timeout=30) as http:
            account = {"email": "same@example.org", "password": "long enough"}
            answers = await asyncio.gather(*(http.post("/auth/register", json=account) for _ in range(4)))
            assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]


@played
async def test_who_hangs_up_in_the_middle_of_a_body_leaves_nothing_in_the_log(
    embedded_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with embedded_site.gateway() as gateway:
        _, wire = await asyncio.open_connection("127.0.0.1", gateway.port)
        wire.write(b"POST /auth/register HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        await wire.drain()
        await asyncio.sleep(0.2)  # until it waits for the rest
        wire.close()
        await asyncio.sleep(0.2)
        async with httpx2.AsyncClient(base_url=gateway.address) as http:
            assert (await http.get("/health")).text == "ok"
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]
