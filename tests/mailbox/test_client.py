"""A client's end: asks, waits, gives up in time, and says what became of it."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal import errors
from pabal.clock import SystemClock
from pabal.errors import NoAnswer, QueueFull, Refused, StoreClosed, StoreError, StoreMissing, Uncertain
from pabal.mailbox.client import Mailbox
from pabal.mailbox.store import MailboxStore
from pabal.message import Message
from pabal.policy.policy import Policy
from pabal.store import Draft
from pabal.testing.store_place import Child, in_threads
from tests.mailbox.room import Room
from tests.openers import OPENERS
from tests.waiting import until


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path / "ipc", OPENERS["sqlite"].open(tmp_path, SystemClock()))
    yield made
    made.close()


@pytest.fixture
def busy(room: Room) -> Room:
    return room.serve()


def test_an_answer_is_returned_and_its_file_not_left(busy: Room) -> None:
    with closing(busy.client("me")) as mailbox:
        for n in range(50):
            assert mailbox.ask("publish", {"queue": "jobs", "message": n})["messageId"]
    until(lambda: busy.files("processing") == [])  # the manager removes a request after it has answered it
    assert busy.files("responses/me") == busy.files("requests") == []
    assert os.listdir(busy.root / "responses" / "me") == [".spare"]
    spare = {"answer-1", "answer-2", "request-1", "request-2"}
    assert set(os.listdir(busy.root / "responses" / "me" / ".spare")) <= spare


def test_a_shorter_answer_or_request_has_nothing_of_a_longer_one(busy: Room) -> None:
    with closing(busy.client("me")) as mailbox:
        for size in (5000, 5, 9000, 1, 0, 300):
            mailbox.ask("publish", {"queue": "jobs", "message": {"t": "x" * size}})
            found = mailbox.ask("consume", {"queue": "jobs"})
            assert found["message"]["payload"] == {"t": "x" * size}
            assert mailbox.ask("health")["status"] == "ok"


def test_a_no_is_raised_with_its_code_and_its_error(busy: Room) -> None:
    with closing(busy.client()) as mailbox, pytest.raises(Refused) as told:
        mailbox.ask("ack", {"messageKey": "msg:jobs:nobody", "leaseId": "x"})
    assert (told.value.code, told.value.kind) == ("MESSAGE_NOT_FOUND", "MessageUnknown")


def test_where_no_manager_is_the_request_is_withdrawn(room: Room) -> None:
    with closing(room.client(timeout=0.05)) as mailbox:
        started = time.monotonic()
        with pytest.raises(NoAnswer, match="pabal up") as told:
            mailbox.ask("health")
        assert told.value.withdrawn and time.monotonic() - started < 5  # the default is longer
    assert room.files("requests") == []


def test_where_the_manager_died_over_it_the_outcome_is_not_known(room: Room) -> None:
    store = MailboxStore(room.client(timeout=0.2))
    thread = threading.Timer(0.05, lambda: list(room.server._inbox.collect()))
    thread.start()
    with pytest.raises(Uncertain) as told:
        store.publish([Draft("jobs", Message(id="m-1", body=1)), Draft("jobs", Message(id="m-2", body=1))])
    thread.join()
    assert told.value.ids == ("m-1", "m-2")
    store.close()


def test_asking_again_under_the_same_id_is_safe(busy: Room) -> None:
    with closing(busy.client()) as mailbox:
        asked = {"queue": "jobs", "message": 1}
        first = mailbox.ask("publish", asked, request_id="mine")
        assert mailbox.ask("publish", asked, request_id="mine")["messageId"] == first["messageId"]
        assert mailbox.ask("status", {"queue": "jobs"})["metrics"]["ready"] == 1


def test_a_client_whose_folder_was_cleaned_away_is_answered_at_once(
    busy: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pabal.mailbox.client.SLOW_POLL", 3600.0)  # it would not find the answer by looking
    mailbox = busy.client("idle")
    mailbox.ask("health")
    for remake in (False, True):
        shutil.rmtree(busy.root / "responses" / "idle")
        if remake:  # by the manager, for another client of the same name
            (busy.root / "responses" / "idle").mkdir(mode=0o700)
        for _ in range(3):
            mailbox.ask("health")
    mailbox.close()


def test_many_threads_share_one_client(busy: Room) -> None:
    with closing(busy.client()) as mailbox:
        found: list[int] = []

        def ask(number: int) -> None:
            for n in range(20):
                asked = {"queue": "jobs", "message": [number, n], "messageId": f"m-{number}-{n}"}
                assert mailbox.ask("publish", asked)["messageId"] == f"m-{number}-{n}"
                found.append(n)

        in_threads(*[partial(ask, number) for number in range(8)])
        assert len(found) == 160 and mailbox.ask("status", {"queue": "jobs"})["metrics"]["ready"] == 160


def test_a_forked_child_asks_for_itself(busy: Room) -> None:
    with closing(busy.client()) as mailbox:
        mailbox.ask("health")

        def ask() -> Any:
            return [mailbox.ask("publish", {"queue": "jobs", "message": n})["messageId"] for n in range(10)]

        children = [Child(ask) for _ in range(3)]
        ids = [*ask(), *(id for child in children for id in child.result())]
        assert len(set(ids)) == 40


def test_where_there_is_no_mailbox_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="pabal up"):
        Mailbox(tmp_path / "nowhere", "me")
    with pytest.raises(StoreMissing):
        pabal.connect(f"mailbox:{tmp_path}/nowhere", create=False)
    assert not (tmp_path / "nowhere").exists()


# The library over a mailbox


def test_the_library_works_as_over_any_store(busy: Room) -> None:
    with pabal.connect(f"mailbox:{busy.root}", consumer="worker-1") as mq:
        jobs = mq.queue("jobs")
        assert not jobs.publish({"n": 1}, priority=5, dedup_key="k").duplicate
        assert jobs.publish({"n": 1}, dedup_key="k").duplicate
        for delivery in jobs.consume(wait=0.01):
            with delivery:
                assert delivery.body == {"n": 1}
        assert (busy.root / "responses" / "worker-1").is_dir()
        facts = mq.store.facts()
        assert facts["mailbox"] == str(busy.root) and facts["client"] == "worker-1" and len(facts) > 4


def test_a_consumer_that_sleeps_is_woken(busy: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pabal.mailbox.client", "pabal.queues.waiter"):
        monkeypatch.setattr(f"{module}.SLOW_POLL", 3600.0)  # it would not find the message by looking
    got: list[Any] = []

    def consume() -> None:
        with pabal.connect(f"mailbox:{busy.root}", consumer="sleeper") as mq:
            for delivery in mq.queue("jobs").consume(wait=30):
                got.append(delivery.body)
                delivery.ack()
                return

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.3)  # until it sleeps: nothing can be seen of that from outside
    with pabal.connect(f"mailbox:{busy.root}", consumer="publisher") as mq:
        mq.queue("jobs").publish("wake up")
    thread.join()
    assert got == ["wake up"]


def test_a_bell_rings_after_the_manager_was_restarted(busy: Room) -> None:
    store = MailboxStore(busy.client())
    with closing(store.watch(["jobs"])) as watch:
        busy.restart()
        busy.serve()
        while watch.wait(0.05):
            pass
        busy.connection.queue("jobs").publish(1)
        assert watch.wait(5)
    store.close()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("QueueFull", QueueFull),
        ("StoreFull", errors.StoreFull),
        ("Uncertain", Uncertain),
        ("InvalidName", errors.InvalidName),
        ("DecodeError", StoreError),
        ("Refused", StoreError),
        ("NotAnError", StoreError),
        ("", StoreError),
    ],
)
def test_the_managers_errors_are_raised_as_its_store_raised_them(
    busy: Room, monkeypatch: pytest.MonkeyPatch, kind: str, expected: type[Exception]
) -> None:
    mailbox = busy.client()

    def refuse(*args: Any, **more: Any) -> Any:
        raise Refused("INTERNAL_ERROR", "so it is", kind=kind, ids=("a",))

    monkeypatch.setattr(mailbox, "ask_raw", refuse)
    with pytest.raises(expected, match="so it is") as told:
        MailboxStore(mailbox).queues()
    assert type(told.value) is expected
    if isinstance(told.value, Uncertain):
        assert told.value.ids == ("a",)


def test_a_full_queue_says_so_over_the_mailbox(busy: Room) -> None:
    with pabal.connect(f"mailbox:{busy.root}") as mq:
        jobs = mq.queue("jobs")
        jobs.configure(Policy(max_waiting=1))
        jobs.publish(1)
        with pytest.raises(QueueFull):
            jobs.publish(2)


def test_a_closed_client_says_so(busy: Room) -> None:
    with pabal.connect(f"mailbox:{busy.root}") as mq:
        jobs = mq.queue("jobs")
    with pytest.raises(StoreClosed):
        jobs.publish(1)


def test_a_thousand_messages_are_one_request(busy: Room) -> None:
    with pabal.connect(f"mailbox:{busy.root}") as mq:
        answers = mq.queue("jobs").publish_many(range(1000))
        assert len({answer.id for answer in answers}) == 1000
        assert [entry.message.body for entry in mq.queue("jobs").entries(pabal.State.READY) if entry.message] == list(
            range(1000)
        )
    assert sum(each.command == "store.publish" for each in busy.answered) == 1
