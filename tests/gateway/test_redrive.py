"""Redrive over HTTP to another queue, with a rate: counted before, done exactly, goes on where it was stopped."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal.gateway.signature import new_key, write_keys
from pabal.store import State
from tests.gateway.conftest import Running, gateway
from tests.gateway.http_client import Client, Failed
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
    queue = mq.queue(re.sub(r"\W", "-", request.node.name)[-60:].strip("-_"))
    queue.create()
    return queue


@pytest.fixture
def slow(mq: pabal.Connection, jobs: pabal.Queue) -> pabal.Queue:
    queue = mq.queue(f"{jobs.name}-slow")
    queue.create()
    return queue


def let_die(queue: pabal.Queue, count: int, reason: str = "SMTP 421") -> list[str]:
    ids = [each.id for each in queue.publish_many(range(count))]
    for delivery in queue.lease(count):
        delivery.bury(reason)
    return ids


def dead(queue: pabal.Queue) -> int:
    return queue.counts().get(State.DEAD, 0)


def test_all_that_match_are_counted_and_go_to_another_queue(api: Client, jobs: pabal.Queue, slow: pabal.Queue) -> None:
    matching, other = let_die(jobs, 4), let_die(jobs, 2, "disk full")
    selection = {"search": "smtp", "to": slow.name}
    counted = api("redrive", queue=jobs.name, body={**selection, "dry_run": True})
    assert set(counted["ids"]) == set(matching) and dead(jobs) == 6 and slow.counts().get(State.READY, 0) == 0
    done = api("redrive", queue=jobs.name, body={**selection, "before": counted["before"]})
    assert set(done["ids"]) == set(matching) and done["kept"] == {}
    assert {entry.id for entry in jobs.entries(State.DEAD)} == set(other)
    assert {delivery.message.id for delivery in slow.lease(10)} == set(matching)


def test_a_rate_makes_small_requests_that_go_on(api: Client, jobs: pabal.Queue, slow: pabal.Queue) -> None:
    ids = let_die(jobs, 7)
    for selection in ({"ids": ids[:4]}, {}):
        seen: list[str] = []
        requests, given = 0, {**selection, "to": slow.name, "rate": 1.5}  # three in a request
        while True:
            answer = api("redrive", queue=jobs.name, body=given)
            assert len(answer["ids"]) <= 3
            seen += answer["ids"]
            requests += 1
            if answer["next"] is None:
                break
            given |= {"after": answer["next"], "before": answer["before"]}
        assert set(seen) == set(ids[:4] if selection else ids[4:]) and requests <= 2
    assert dead(jobs) == 0 and slow.counts()[State.READY] == 7


def test_what_stays_dead_is_told(api: Client, jobs: pabal.Queue, slow: pabal.Queue) -> None:
    slow.configure(pabal.Policy(body_schema={"type": "string"}))
    [id] = let_die(jobs, 1)
    answer = api("redrive", queue=jobs.name, body={"ids": [id, "unknown"], "to": slow.name})
    assert answer["ids"] == [] and "does not fit the schema" in answer["kept"][id] and dead(jobs) == 1


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"to": "nowhere"}, 404),
        ({"to": "a\0b"}, 400),
        ({"rate": 0}, 400),
        ({"rate": 1e9}, 400),
        ({"ids": ["x"], "after": "y"}, 400),
    ],
)
def test_a_wrong_redrive_changes_nothing(
    api: Client, jobs: pabal.Queue, mq: pabal.Connection, given: dict[str, Any], status: int
) -> None:
    let_die(jobs, 2)
    names = mq.queues()
    with pytest.raises(Failed) as refused:
        api("redrive", queue=jobs.name, body=given)
    assert refused.value.status == status and dead(jobs) == 2 and mq.queues() == names


@pytest.mark.parametrize("kind", ["sqlite", "file", "hybrid"])
def test_a_gateway_that_is_killed_amid_a_redrive_loses_and_doubles_nothing(tmp_path: Path, kind: str) -> None:
    url = f"{kind}:{tmp_path}/store"
    with pabal.connect(url) as mq, gateway(url, tmp_path / "log") as running:
        jobs, slow = mq.queue("jobs"), mq.queue("slow")
        slow.create()
        ids = let_die(jobs, 120)
        client = Client(running)

        def ask() -> None:
            with suppress(Failed, OSError, HTTPException):
                client("redrive", queue="jobs", body={"to": "slow", "rate": 60})

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: slow.counts().get(State.READY, 0) >= 5)
        running.kill()
        asking.join()
        running.start()
        again = Client(running)("redrive", queue="jobs", body={"to": "slow"})
        assert again["next"] is None and again["kept"] == {} and dead(jobs) == 0
        found = [entry.id for entry in slow.entries(State.READY)]
        assert sorted(found) == sorted(ids)


def test_a_key_must_be_allowed_to_use_the_target(tmp_path: Path) -> None:
    manager = new_key("", ["orders-*"], ["manage", "look"])
    write_keys(tmp_path / "keys", [manager])
    url = f"sqlite:{tmp_path}/jobs.db"
    with pabal.connect(url) as mq:
        let_die(mq.queue("orders-1"), 1)
        mq.queue("secret").create()
        mq.queue("orders-2").create()
        with gateway(url, tmp_path / "log", "--keys", str(tmp_path / "keys")) as running:
            client = Client(running, key=manager.access_key, secret=manager.secret)
            with pytest.raises(Failed) as refused:
                client("redrive", queue="orders-1", body={"to": "secret"})
            assert refused.value.status == 403 and dead(mq.queue("orders-1")) == 1
            assert len(client("redrive", queue="orders-1", body={"to": "orders-2"})["ids"]) == 1


def moved(mq: pabal.Connection, queue: str, dlq: str, count: int) -> None:
    """Let messages of a queue fail, so that they are moved to a dead-letter queue."""
    source = mq.queue(queue)
    letters = pabal.DeadLetterPolicy(queue=dlq, move=True)
    source.configure(pabal.Policy(retry=pabal.RetryPolicy(limit=1), dead_letters=letters))
    source.publish_many(range(count))
    for delivery in source.lease(count):
        delivery.nack(reason="SMTP 421")


def test_moved_messages_are_counted_by_their_queues_and_go_back(
    api: Client, mq: pabal.Connection, jobs: pabal.Queue, slow: pabal.Queue
) -> None:
    dlq = mq.queue(f"{jobs.name}-dlq")
    moved(mq, jobs.name, dlq.name, 3)
    moved(mq, slow.name, dlq.name, 2)
    dlq.publish("sent here")
    counted = api("send_back", queue=dlq.name, body={"dry_run": True})
    assert counted["sources"] == {jobs.name: 3, slow.name: 2} and len(counted["ids"]) == 5
    with pytest.raises(Failed, match="name the queue"):
        api("send_back", queue=dlq.name, body={})
    first = counted["ids"][0]
    assert api("send_back", queue=dlq.name, body={"ids": [first], "to": jobs.name})["ids"] == [first]
    done = api("send_back", queue=dlq.name, body={"to": jobs.name, "before": counted["before"]})
    assert len(done["ids"]) == 2 and done["kept"] == {} and done["next"] is None
    assert jobs.counts()[State.READY] == 3 and dlq.counts()[State.READY] == 3
    assert api("send_back", queue=jobs.name, body={"dry_run": True})["ids"] == []  # they were moved to another queue


def test_thousands_go_back_in_slices(api: Client, mq: pabal.Connection, jobs: pabal.Queue) -> None:
    dlq = mq.queue(f"{jobs.name}-dlq")
    moved(mq, jobs.name, dlq.name, 1100)
    given: dict[str, Any] = {"to": jobs.name}
    sizes = []
    while True:
        answer = api("send_back", queue=dlq.name, body=given)
        sizes.append(len(answer["ids"]))
        if answer["next"] is None:
            break
        given |= {"after": answer["next"], "before": answer["before"]}
    assert sum(sizes) == 1100 and max(sizes) == 500
    assert jobs.counts()[State.READY] == 1100 and dlq.counts()[State.READY] == 0


def test_a_key_must_be_allowed_to_use_the_queue_that_they_go_back_to(tmp_path: Path) -> None:
    manager = new_key("", ["dlq"], ["manage", "look"])
    write_keys(tmp_path / "keys", [manager])
    url = f"sqlite:{tmp_path}/jobs.db"
    with pabal.connect(url) as mq:
        moved(mq, "secret", "dlq", 1)
        with gateway(url, tmp_path / "log", "--keys", str(tmp_path / "keys")) as running:
            client = Client(running, key=manager.access_key, secret=manager.secret)
            with pytest.raises(Failed) as refused:
                client("send_back", queue="dlq", body={"to": "secret"})
            assert refused.value.status == 403 and mq.queue("dlq").counts()[State.READY] == 1
