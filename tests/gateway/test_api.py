"""The HTTP interface, called by a client that is made from its OpenAPI document; compared with the command line."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

import pabal
import pabal.aio
from pabal.gateway.api import types
from pabal.gateway.api.calls import CALLS, Calls
from pabal.gateway.api.people import People
from pabal.gateway.api.topics import TopicDesk
from pabal.gateway.signature import new_key, write_keys
from pabal.store import State
from pabal.testing import ManualClock
from tests.cli.command import Pabal
from tests.gateway.conftest import Running, gateway
from tests.gateway.http_client import Client, Failed, ask
from tests.gateway.places import ask_in_team, make_kingdom, make_team
from tests.waiting import until


@pytest.fixture(scope="module")
def api(served: Running) -> Client:
    return Client(served)


@pytest.fixture
def mq(place: Path) -> Iterator[pabal.Connection]:
    with pabal.connect(f"sqlite:{place}/jobs.db") as mq:
        yield mq


@pytest.fixture
def jobs(mq: pabal.Connection, request: pytest.FixtureRequest) -> pabal.Queue:
    queue = mq.queue(re.sub(r"\W", "-", request.node.name)[-60:].strip("-"))
    queue.create(pabal.Policy(retry=pabal.RetryPolicy(limit=1)))
    return queue


def bury(queue: pabal.Queue, *reasons: str) -> list[str]:
    """Publish messages that fail for these reasons; return their ids."""
    ids = []
    for number, reason in enumerate(reasons):
        ids.append(queue.publish({"number": number}).id)
        [delivery] = queue.lease()
        delivery.nack(reason=reason)
    return ids


def test_a_message_goes_through_its_life(api: Client, jobs: pabal.Queue) -> None:
    published = api("publish", queue=jobs.name, body={"messages": [{"body": {"temp": 36.5}, "type": "reading"}]})
    [message] = published["messages"]
    assert message == {"id": message["id"], "duplicate": False, "dead": False}
    [leased] = api("lease", queue=jobs.name, wait=10, visibility=60)["messages"]
    assert (leased["id"], leased["body"], leased["type"], leased["attempt"]) == (
        message["id"],
        {"temp": 36.5},
        "reading",
        1,
    )
    assert api("extend", queue=jobs.name, body={"receipts": [leased["receipt"]], "seconds": 90}) == {"settled": 1}
    assert api("ack", queue=jobs.name, body={"receipts": [leased["receipt"]]}) == {"settled": 1}
    assert api("show_queue", queue=jobs.name)["done"] == 1


def test_every_field_arrives_and_bytes_too(api: Client, jobs: pabal.Queue) -> None:
    fields: dict[str, Any] = {
        "id": "m1",
        "type": "t",
        "version": 2,
        "sender": "s",
        "attributes": {"a": [1]},
        "headers": {"traceparent": "00-1"},
        "priority": 7,
        "group": "g",
        "dedup_key": "d",
        "thread_id": "th",
        "trace_id": "tr",
        "reply_to": "r",
        "unique": "u",
    }
    data = b64encode(b"\x00\xff").decode()
    sent = {**fields, "body": data, "body_encoding": "base64", "ttl": 600, "delay": 0}
    api("publish", queue=jobs.name, body={"messages": [sent]})
    [delivery] = jobs.lease()
    assert delivery.body == b"\x00\xff" and delivery.message.expires_at is not None
    assert {name: getattr(delivery.message, name) for name in fields} == fields
    shown = api("show_message", queue=jobs.name, id="m1")
    assert (shown["body"], shown["body_encoding"], shown["state"]) == (data, "base64", "inflight")
    again = api("publish", queue=jobs.name, body={"messages": [{"body": 1, "id": "m1"}]})
    assert again["messages"] == [{"id": "m1", "duplicate": True, "dead": False}]


def test_failing_burying_and_stale_receipts(api: Client, jobs: pabal.Queue) -> None:
    jobs.update_policy(retry=pabal.RetryPolicy(limit=5, initial=0.0))
    api("publish", queue=jobs.name, body={"messages": [{"body": n} for n in range(3)]})
    first, second, third = api("lease", queue=jobs.name, limit=3)["messages"]
    api("nack", queue=jobs.name, body={"receipts": [first["receipt"]], "reason": "not now", "delay": 600})
    api("bury", queue=jobs.name, body={"receipts": [second["receipt"]], "reason": "never"})
    assert api("show_message", queue=jobs.name, id=first["id"])["failure"]["reason"] == "not now"
    assert api("show_message", queue=jobs.name, id=second["id"])["state"] == "dead"
    stale = [first["receipt"], second["receipt"]]
    with pytest.raises(Failed) as refused:
        api("ack", queue=jobs.name, body={"receipts": [*stale, third["receipt"]]})
    assert (refused.value.status, refused.value.error["code"]) == (409, "LeaseLost")
    assert set(refused.value.error["receipts"]) == set(stale)
    assert api("show_message", queue=jobs.name, id=third["id"])["state"] == "done"  # the others are settled


def test_a_long_poll_returns_on_arrival(api: Client, jobs: pabal.Queue) -> None:
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.extend(api("lease", queue=jobs.name, wait=50)["messages"]))
    asking.start()
    jobs.publish("here")
    asking.join(40)
    assert [each["body"] for each in found] == ["here"]


def test_a_client_that_goes_away_takes_nothing(served: Running, api: Client, jobs: pabal.Queue) -> None:
    parts = urlsplit(served.address)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        head = f"POST /queues/{jobs.name}/lease?wait=50 HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        connection.sendall(f"{head}authorization: {api.authorization}\r\ncontent-length: 0\r\n\r\n".encode())
    jobs.publish("for another")
    [delivery] = jobs.lease(wait=30)
    assert delivery.attempt == 1
    delivery.ack()


def test_lists_pages_and_searches(api: Client, jobs: pabal.Queue) -> None:
    jobs.publish_many(
        [{"number": number, "text": "마지막 needle" if number == 777 else "hay"} for number in range(1200)]
    )
    seen, after = [], ""
    while True:
        page = api("list_messages", queue=jobs.name, limit=500, after=after)
        seen += [each["body"]["number"] for each in page["messages"]]
        after = page["next"]
        if after is None:
            break
    assert seen == list(range(1200))
    found, requests = [], 0
    cursor: str | None = ""
    while cursor is not None:
        page = api("list_messages", queue=jobs.name, search="마지막 NEEDLE", after=cursor)
        found += page["messages"]
        cursor, requests = page["next"], requests + 1
    assert [each["body"]["number"] for each in found] == [777] and requests == 3
    for wrong in ("99999999999999999999~0x1p0~x", "x", "1~1~\0"):
        with pytest.raises(Failed) as refused:
            api("list_messages", queue=jobs.name, after=wrong)
        assert refused.value.status == 400


@pytest.mark.parametrize("text", ["m-77", "invoice.paid", "x-tenant: blue", "SMTP 421", "RETRY_LIMIT", "attr-value"])
def test_a_search_looks_in_ids_types_headers_failures_and_attributes(api: Client, jobs: pabal.Queue, text: str) -> None:
    options: dict[str, Any] = {"type": "invoice.paid", "headers": {"X-Tenant": "Blue"}}
    jobs.publish("other")
    jobs.lease()[0].bury("no reason")
    jobs.publish({}, id="m-77", attributes={"a": "attr-value"}, **options)
    jobs.lease()[0].nack(reason="SMTP 421 busy")
    page = api("list_messages", queue=jobs.name, state="dead", search=text)
    assert [each["id"] for each in page["messages"]] == ["m-77"]


@pytest.mark.parametrize("text", ['"order": 1000', '"order":1000', "김민아", "\\uae40", '[{"sku": "a-1"}, {"sku"'])
@pytest.mark.parametrize("sent", ["text", "json"])
def test_a_search_finds_json_in_text_as_it_was_sent_and_decoded(
    api: Client, jobs: pabal.Queue, text: str, sent: str
) -> None:
    body = {"order": 1000, "name": "김민아", "items": [{"sku": "A-1"}, {"sku": "B-7"}]}
    jobs.publish(json.dumps(body) if sent == "text" else body, id="wanted")
    jobs.publish_many(['{"order": 999}', "{no json", "[" * 100_000, '{"a": "\\ud800"}', "김민", {"order": 7}])
    found = [each["id"] for each in api("list_messages", queue=jobs.name, search=text)["messages"]]
    assert found == (["wanted"] if sent == "text" or not text.startswith("\\u") else [])


def test_large_bodies_are_not_put_into_lists(api: Client, jobs: pabal.Queue) -> None:
    jobs.publish({"text": "x" * 100_000}, id="large")
    [listed] = api("list_messages", queue=jobs.name)["messages"]
    assert listed["body"] is None and listed["body_bytes"] == 100_011 and len(listed["body_text"]) == 2000
    assert api("show_message", queue=jobs.name, id="large")["body"] == {"text": "x" * 100_000}
    assert api("show_message", queue=jobs.name, id="large", most=1000)["body"] is None


def test_dead_messages_are_counted_then_redriven(api: Client, jobs: pabal.Queue) -> None:
    ids = bury(jobs, "SMTP 421", "disk full", "SMTP 421")
    counted = api("redrive", queue=jobs.name, body={"search": "smtp", "dry_run": True})
    assert set(counted["ids"]) == {ids[0], ids[2]} and jobs.counts()[State.DEAD] == 3
    assert set(api("redrive", queue=jobs.name, body={"search": "smtp"})["ids"]) == {ids[0], ids[2]}
    assert jobs.counts()[State.DEAD] == 1 and jobs.counts()[State.READY] == 2
    assert api("redrive", queue=jobs.name, body={"ids": [ids[0], "unknown"]})["ids"] == []
    assert api("redrive", queue=jobs.name, body={"ids": [ids[1]]})["ids"] == [ids[1]]


def test_reasons_are_counted_by_slices(api: Client, jobs: pabal.Queue) -> None:
    jobs.publish_many(range(700))
    for number, delivery in enumerate(jobs.lease(700)):
        delivery.bury("SMTP 421" if number % 3 else "x" * 900)
    counted: dict[str, int] = {}
    requests = 0
    after: str | None = ""
    while after is not None:
        page = api("list_reasons", queue=jobs.name, after=after)
        for each in page["reasons"]:
            assert each["code"] == "NACKED"
            counted[each["reason"]] = counted.get(each["reason"], 0) + each["messages"]
        after, requests = page["next"], requests + 1
    assert counted == {"SMTP 421": 466, "x" * 500: 234} and requests == 2


def test_a_redrive_of_thousands_goes_by_slices(api: Client, jobs: pabal.Queue) -> None:
    jobs.publish_many(range(1100))
    deliveries = jobs.lease(1100)
    for delivery in deliveries:
        delivery.bury("all at once")
    done, slices = 0, 0
    after: str | None = ""
    while after is not None:
        acted = api("redrive", queue=jobs.name, body={"after": after})
        done, slices, after = done + len(acted["ids"]), slices + 1, acted["next"]
    assert (done, slices) == (1100, 3) and jobs.counts()[State.READY] == 1100


def test_what_dies_again_or_comes_later_is_not_part_of_the_selection(api: Client, jobs: pabal.Queue) -> None:
    jobs.publish_many(range(600))
    for delivery in jobs.lease(600):
        delivery.bury("poison")
    done = 0
    selection: dict[str, Any] = {"after": ""}
    while selection["after"] is not None:
        acted = api("redrive", queue=jobs.name, body=selection)
        done += len(acted["ids"])
        selection = {"after": acted["next"], "before": acted["before"]}
        for delivery in jobs.lease(600):
            delivery.bury("poison again")
    assert done == 600 and jobs.counts()[State.DEAD] == 600
    counted = api("show_queue", queue=jobs.name)
    later = bury(jobs, "after the count")
    removed = api("remove", queue=jobs.name, body={"state": "dead", "before": counted["at"]})["ids"]
    assert len(removed) == 500 and not set(removed) & set(later)


@pytest.mark.parametrize("verb", ["redrive", "remove"])
def test_chosen_ids_that_died_again_after_the_time_are_left_alone(api: Client, jobs: pabal.Queue, verb: str) -> None:
    [id] = bury(jobs, "seen")
    given: dict[str, Any] = {"ids": [id], "before": api("show_queue", queue=jobs.name)["at"]}
    given |= {"state": "dead"} if verb == "remove" else {}
    counted = datetime.fromisoformat(given["before"]).timestamp()
    until(lambda: time.time() > counted + 0.002)  # times are in milliseconds
    jobs.revive([id])  # another viewer
    for delivery in jobs.lease():
        delivery.bury("not seen")
    assert api(verb, queue=jobs.name, body=given)["ids"] == []
    assert jobs.counts()[State.DEAD] == 1
    del given["before"]
    assert api(verb, queue=jobs.name, body=given)["ids"] == [id]


def test_the_time_of_a_count_is_exact(tmp_path: Path) -> None:
    clock = ManualClock(1_800_000_000.0007)

    async def act() -> None:
        async with pabal.aio.connect(f"sqlite:{tmp_path}/jobs.db", clock=clock) as mq:
            calls = Calls(mq, clock, TopicDesk(""), People(tuple, "me"))
            jobs = mq.blocking.queue("jobs")
            jobs.create(pabal.Policy(retry=pabal.RetryPolicy(limit=1)))
            [id] = bury(jobs, "just now")
            counted = await calls.show_queue("jobs")
            assert counted["dead"] == 1
            given = msgspec.convert({"before": counted["at"], "dry_run": True}, types.Redrive)
            found = await calls.redrive("jobs", given)
            assert found["ids"] == [id]
            again = msgspec.convert({"before": found["before"]}, types.Redrive)
            assert (await calls.redrive("jobs", again))["ids"] == [id]

    asyncio.run(act())


@pytest.mark.parametrize(
    "when",
    ["2026-01-01T00:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"],
    ids=["without zone", "first", "last"],
)
def test_a_time_that_means_no_instant_is_refused(api: Client, jobs: pabal.Queue, when: str) -> None:
    given = {"before": when, "dry_run": True}
    for verb, body in (("redrive", given), ("remove", {"state": "dead", **given})):
        with pytest.raises(Failed) as refused:
            api(verb, queue=jobs.name, body=body)
        assert refused.value.status == 400 and "before" in refused.value.error["message"]


def test_a_time_needs_its_zone(api: Client, jobs: pabal.Queue) -> None:
    when = "2026-01-01T00:00:00"
    with pytest.raises(Failed) as refused:
        api("publish", queue=jobs.name, body={"messages": [{"body": 1, "at": when}]})
    assert refused.value.status == 400
    with pytest.raises(Failed) as refused:
        api("list_records", topic="nowhere", at=when)
    assert refused.value.status == 400


def test_a_removal_tells_only_what_it_removed(api: Client, jobs: pabal.Queue) -> None:
    ids = [jobs.publish(number).id for number in range(3)]
    [taken] = jobs.lease()
    given = {"state": "ready", "ids": [ids[0], ids[1], ids[1]]}
    assert api("remove", queue=jobs.name, body=given)["ids"] == [ids[1]]
    taken.ack()
    for wrong in ({"ids": [ids[2]], "search": "x"}, {"ids": ["a\0b"]}, {"after": "1~1~\0"}):
        with pytest.raises(Failed) as refused:
            api("remove", queue=jobs.name, body={"state": "ready", **wrong})
        assert refused.value.status == 400
    assert jobs.counts()[State.READY] == 1


def test_no_receipt_is_settled_if_one_is_malformed(api: Client, jobs: pabal.Queue, mq: pabal.Connection) -> None:
    jobs.publish(1)
    [delivery] = jobs.lease()
    for bad in ("nonsense", f"other/{delivery.message.id}/x"):
        with pytest.raises(Failed) as refused:
            api("ack", queue=jobs.name, body={"receipts": [str(delivery.receipt), bad]})
        assert refused.value.status == 400 and jobs.counts()[State.INFLIGHT] == 1


def test_removing_takes_what_was_asked_and_nothing_else(api: Client, jobs: pabal.Queue) -> None:
    ids = bury(jobs, "one", "two")
    ready = jobs.publish("waits").id
    held = jobs.publish("held", priority=9).id
    jobs.lease()
    assert api("remove", queue=jobs.name, body={"state": "dead", "ids": [ids[0], ready, held]})["ids"] == [ids[0]]
    assert {str(state): count for state, count in jobs.counts().items() if count} == {
        "dead": 1,
        "ready": 1,
        "inflight": 1,
    }
    assert api("remove", queue=jobs.name, body={"state": "ready", "search": "waits"})["ids"] == [ready]
    with pytest.raises(Failed) as refused:
        api("remove", queue=jobs.name, body={"state": "inflight"})
    assert refused.value.status == 400 and jobs.counts()[State.INFLIGHT] == 1
    assert api("cancel", queue=jobs.name, body={"ids": [held], "inflight": True})["ids"] == [held]


def test_queues_are_made_configured_paused_and_deleted(api: Client, mq: pabal.Connection) -> None:
    assert api("create_queue", queue="made.by.http") == {"created": True}
    assert api("create_queue", queue="made.by.http") == {"created": False}
    policy = {**api("show_queue", queue="made.by.http")["policy"], "visibilityTimeoutSec": 77}
    assert api("set_policy", queue="made.by.http", body=policy)["policy"]["visibilityTimeoutSec"] == 77
    assert mq.queue("made.by.http").policy.visibility == 77
    assert api("pause_queue", queue="made.by.http")["paused"] is True
    assert api("resume_queue", queue="made.by.http")["paused"] is False
    mq.queue("made.by.http").publish("keeps it")
    with pytest.raises(Failed) as refused:
        api("delete_queue", queue="made.by.http")
    assert (refused.value.status, refused.value.error["code"]) == (409, "QueueNotEmpty")
    assert api("delete_queue", queue="made.by.http", force=True) == {"removed": 1}
    with pytest.raises(Failed) as refused:
        api("show_queue", queue="made.by.http")
    assert (refused.value.status, refused.value.error["code"]) == (404, "QueueUnknown")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/queues/jobs/messages", {"messages": [{"boddy": 1}]}, 400, "body"),
        ("POST", "/queues/jobs/messages", {"messages": []}, 400, "length >= 1"),
        ("POST", "/queues/jobs/messages", {"messages": [{"body": 1, "priority": 1000}]}, 400, "priority"),
        ("POST", "/queues/jobs/messages", {"messages": [{"body": "?", "body_encoding": "base64"}]}, 400, "base64"),
        ("POST", "/queues/a b/messages", {"messages": [{"body": 1}]}, 400, ""),
        ("POST", "/queues/jobs/lease?limit=0", None, 400, "limit"),
        ("POST", "/queues/jobs/lease?wait=51", None, 400, "wait"),
        ("POST", "/queues/jobs/lease?wat=1", None, 400, "wat"),
        ("POST", "/queues/jobs/ack", {"receipts": ["nonsense"]}, 400, "receipt"),
        ("POST", "/events", {}, 405, "GET"),
        ("POST", "/queues/jobs/ack", {"receipts": "jobs/1/2"}, 400, "array"),
        ("GET", "/queues/nobody", None, 404, "no queue"),
        ("GET", "/queues/nobody/messages", None, 404, "no queue"),
        ("GET", "/queues?x=1", None, 400, "no query"),
        ("GET", "/queues/jobs/nothing", None, 404, "openapi"),
        ("PATCH", "/queues/jobs", None, 405, "only GET"),
        ("GET", "/queues/..%2f..%2fetc/messages", None, 400, ""),
        ("GET", "/ui/../app.py", None, 404, ""),
        ("GET", "/ui/..%2fapp.py", None, 404, ""),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(
    api: Client, method: str, path: str, body: object, status: int, words: str
) -> None:
    answered = ask(api.address, method, path.replace(" ", "%20"), body, authorization=api.authorization)
    assert answered.status == status, answered
    assert words in answered.document["error"]["message"], answered.document


def test_bodies_that_are_no_json_and_forms_of_other_pages_are_refused(api: Client) -> None:
    path, own = "/queues/jobs/messages", {"authorization": api.authorization}
    assert ask(api.address, "POST", path, b"{", **own).status == 400
    good = {"messages": [{"body": 1}]}
    assert ask(api.address, "POST", path, good, content_type="text/plain", **own).status == 415
    deep = b"[" * 5000 + b"]" * 5000
    answered = ask(api.address, "POST", path, deep, **own)
    assert (answered.status, answered.document["error"]["code"]) == (400, "TooDeep")
    assert ask(api.address, "POST", path, good, origin="https://evil.example", **own).status == 403
    assert ask(api.address, "POST", path, good, host="evil.example", **own).status == 403


def test_nobody_without_the_token_sees_or_does_anything(served: Running, api: Client) -> None:
    for call in CALLS:
        path = call.path.format(queue="jobs", id="x", topic="events", partition=0, offset=0)
        for authorization in ("", "Bearer wrong", "Basic bG9jYWw6d3Jvbmc="):
            answered = ask(served.address, call.method, path, authorization=authorization, cookie="pabal-1=local.9.00")
            assert answered.status == 401, (call.method, path, authorization)
    assert ask(served.address, "GET", "/events").status == 401
    # The page and the description of the interface hold no data.
    assert ask(served.address, "GET", "/").status == 200 and ask(served.address, "GET", "/openapi.json").status == 200
    assert ask(served.address, "GET", "/session").document["signed_in"] is False


def test_the_token_of_the_url_becomes_a_cookie(served: Running) -> None:
    query = urlsplit(served.dashboard).query
    answered = ask(served.address, "GET", f"/?{query}")
    cookie = answered.headers["set-cookie"]
    assert answered.status == 303 and answered.headers["location"] == "/"
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and parse_qs(query)["token"][0] not in cookie
    kept = cookie.partition(";")[0]
    assert ask(served.address, "GET", "/queues", cookie=kept).status == 200
    # Browsers send the cookies of all programs on this machine.
    assert ask(served.address, "GET", "/queues", cookie=f'prefs={{"a":"b"}}; path=/x; {kept}; z').status == 200
    wrong = kept[:-1] + ("0" if kept[-1] != "0" else "1")
    assert ask(served.address, "GET", "/queues", cookie=wrong).status == 401
    assert ask(served.address, "GET", "/queues", cookie=f"{wrong}; {kept}").status == 200


def test_a_gateway_that_only_shows_changes_nothing(tmp_path: Path) -> None:
    with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log", "--read-only") as running:
        client = Client(running)
        assert client("list_queues") == {"queues": []}
        for call in CALLS:
            if call.right != "look":
                path = call.path.format(queue="jobs", topic="events")
                answered = ask(running.address, call.method, path, {}, authorization=client.authorization)
                assert (answered.status, answered.document["error"]["code"]) == (403, "ReadOnly"), call
        session = ask(running.address, "GET", "/session", authorization=client.authorization).document
        assert session["rights"] == ["look"] and session["read_only"] is True


def test_keys_have_rights_and_queues(tmp_path: Path) -> None:
    sender, looker = new_key("shop", ["orders-*"], ["send"]), new_key("eye", ["orders-*"], ["look"])
    manager = new_key("", ["orders-*"], ["manage", "look"])
    write_keys(tmp_path / "keys", [sender, looker, manager])
    url = f"sqlite:{tmp_path}/jobs.db"
    with pabal.connect(url) as mq:
        mq.queue("orders-1").publish(1)
        mq.queue("secret").publish(2)
        mq.queue("secret").lease()
        mq.schedule("hidden", every=60, queue="secret")
    with gateway(url, tmp_path / "log", "--keys", str(tmp_path / "keys")) as running:
        assert "token" not in running.dashboard
        sends = Client(running, key=sender.access_key, secret=sender.secret)
        looks = Client(running, key=looker.access_key, secret=looker.secret)
        manages = Client(running, key=manager.access_key, secret=manager.secret)
        assert len(sends("publish", queue="orders-1", body={"messages": [{"body": 3}]})["messages"]) == 1
        assert [each["queue"] for each in looks("list_queues")["queues"]] == ["orders-1"]
        assert not [each for each in looks("list_consumers")["consumers"] if each["holds"]]
        assert looks("list_schedules") == {"schedules": []}
        for client, call, values in (
            (sends, "list_queues", {}),
            (sends, "publish", {"queue": "secret", "body": {"messages": [{"body": 1}]}}),
            (looks, "show_queue", {"queue": "secret"}),
            (looks, "pause_queue", {"queue": "orders-1"}),
            (sends, "publish", {"queue": "orders-1", "body": {"messages": [{"body": 1, "reply_to": "secret"}]}}),
            (sends, "publish", {"queue": "orders-1", "body": {"messages": [{"body": 1, "sender": "boss"}]}}),
            (manages, "set_policy", {"queue": "orders-1", "body": {"dlq": {"queue": "secret"}}}),
        ):
            with pytest.raises(Failed) as refused:
                client(call, **values)
            assert (refused.value.status, refused.value.error["code"]) == (403, "NotAllowed")
        with pytest.raises(Failed) as refused:
            looks("show_queue", queue="orders-x")
        assert refused.value.status == 404 and "secret" not in str(refused.value.error)
        with pabal.connect(url) as mq:
            sent = [each.message for each in mq.queue("orders-1").entries(State.READY) if each.message]
            assert [message.sender for message in sent] == ["", "shop"]
        wrong = {"key": looker.access_key, "secret": sender.secret}
        assert ask(running.address, "POST", "/session", wrong).status == 401
        signed = ask(running.address, "POST", "/session", {"key": looker.access_key, "secret": looker.secret})
        cookie = signed.headers["set-cookie"].partition(";")[0]
        assert ask(running.address, "GET", "/queues", cookie=cookie).status == 200
        assert "Max-Age=0" in ask(running.address, "DELETE", "/session", cookie=cookie).headers["set-cookie"]


def test_answers_are_as_the_document_says_and_no_call_is_left_out(api: Client, place: Path, jobs: pabal.Queue) -> None:
    name, team = jobs.name, make_team(place)
    asked = ask_in_team(team, "Go on?")
    make_kingdom(place)
    bury(jobs, "why")
    jobs.publish("x", id="known")
    calls: dict[str, Any] = {
        "list_queues": api("list_queues"),
        "show_queue": api("show_queue", queue=name),
        "create_queue": api("create_queue", queue=name),
        "set_policy": api("set_policy", queue=name, body={}),
        "pause_queue": api("pause_queue", queue=name),
        "resume_queue": api("resume_queue", queue=name),
        "publish": api("publish", queue=name, body={"messages": [{"body": None}]}),
        "list_messages": api("list_messages", queue=name, state="dead"),
        "list_reasons": api("list_reasons", queue=name),
        "show_message": api("show_message", queue=name, id="known"),
        "download_body": api("download_body", queue=name, id="known"),
        "lease": api("lease", queue=name, limit=2),
        "list_consumers": api("list_consumers"),
        "list_schedules": api("list_schedules"),
        "redrive": api("redrive", queue=name, body={}),
        "send_back": api("send_back", queue=name, body={"dry_run": True}),
        "remove": api("remove", queue=name, body={"state": "done"}),
        "cancel": api("cancel", queue=name, body={"ids": ["nobody"]}),
        "list_needs": until(lambda: (found := api("list_needs"))["needs"] and found),
        "list_teams": api("list_teams"),
        "list_kingdoms": api("list_kingdoms"),
        "answer_need": api("answer_need", body={"place": str(team), "id": asked.id, "text": "yes"}),
    }
    with pabal.connect_topics(f"sqlite:{place}/jobs.db") as topics:
        topics.topic("events").create(1)
        topics.topic("events").append("x")
    calls["list_topics"] = api("list_topics")
    calls["show_topic"] = api("show_topic", topic="events")
    calls["list_records"] = api("list_records", topic="events", newest=True)
    calls["show_record"] = api("show_record", topic="events", partition=0, offset=0)
    calls["list_dead_records"] = api("list_dead_records", topic="events")
    calls["replay_dead_records"] = api("replay_dead_records", topic="events", body={})
    receipts = [each["receipt"] for each in calls["lease"]["messages"]]
    calls["extend"] = api("extend", queue=name, body={"receipts": receipts, "seconds": 60})
    calls["nack"] = api("nack", queue=name, body={"receipts": receipts[:1]})
    calls["bury"] = api("bury", queue=name, body={"receipts": receipts[1:2]})
    [last] = api("lease", queue=name)["messages"]
    calls["ack"] = api("ack", queue=name, body={"receipts": [last["receipt"]]})
    calls["delete_queue"] = api("delete_queue", queue=name, force=True)
    assert calls.keys() == api.operations == {call.act.__name__ for call in CALLS}
    for call in CALLS:
        msgspec.convert(calls[call.act.__name__], call.answer, strict=True)


def test_http_and_the_command_line_say_the_same(api: Client, place: Path, jobs: pabal.Queue) -> None:
    bury(jobs, "why")
    jobs.publish({"text": "한국어"}, id="seen", type="t")
    command = Pabal(f"sqlite:{place}/jobs.db", place)
    [printed] = command("status", jobs.name, "--json").documents
    shown = api("show_queue", queue=jobs.name)
    for key in printed.keys() - {"store", "oldest_ready_seconds"}:
        assert shown[key] == printed[key], key
    [peeked] = command("peek", jobs.name, "--state", "dead", "--json").documents
    [listed] = api("list_messages", queue=jobs.name, state="dead")["messages"]
    assert peeked.items() <= listed.items()
    [found] = command("show", "seen", "--json").documents
    assert found.items() <= api("show_message", queue=jobs.name, id="seen").items()
    assert command("consumers", "--json").documents == api("list_consumers")["consumers"]
    assert json.loads(command.ok("policy", "show", jobs.name, "--json")) == shown["policy"]


def test_the_stream_has_the_figures_and_ends_with_the_gateway(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    with gateway(url, tmp_path / "log") as running, pabal.connect(url) as mq:
        client = Client(running)
        parts = urlsplit(running.address)
        with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
            head = f"GET /events HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: {client.authorization}\r\n\r\n"
            connection.sendall(head.encode())
            mq.queue("jobs").publish(1)
            seen = b""

            def published() -> bool:
                nonlocal seen
                seen += connection.recv(65536)
                return b'"queue":"jobs"' in seen and b'"published":1' in seen

            until(published)
            assert b"text/event-stream" in seen
            assert running.stop() == 0
            while connection.recv(65536):
                pass
