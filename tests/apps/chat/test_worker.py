"""The worker stores every message once and tells all gateways, whoever dies or does not answer; on both sets."""

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from pabal.apps.chat.events import MESSAGES, PERSISTED, PERSISTOR, REJECTED, MessageCreated, encode
from pabal.apps.chat.ledger import Ledger, open_ledger
from pabal.clock import SystemClock
from pabal.connect import TopicConnection, connect_topics
from pabal.errors import Outage
from pabal.runtime.heartbeat import read_pulse
from pabal.topic_store import NewRecord
from pabal.topics.dead_records import dead_of
from tests.apps.chat.crew import DIES_STORED, DIES_TOLD, Crew, crew
from tests.apps.chat.place import People, Place, created, people, records, send, told
from tests.waiting import until

TRIES_TAKE = 4.0  # seconds within which a record that fails would have had all its tries


@pytest.fixture
def workers(place: Place, tmp_path: Path) -> Iterator[Crew]:
    with crew(place, tmp_path) as found:
        yield found


@pytest.fixture
def topics(place: Place) -> Iterator[TopicConnection]:
    with connect_topics(place.topics_url) as found:
        yield found


@pytest.fixture
def db(place: Place) -> Iterator[Ledger]:
    found = open_ledger(place.db_url)
    yield found
    found.close()


@pytest.fixture
def who(db: Ledger) -> People:
    return people(db)


def talk(who: People, count: int, sender: str = "") -> list[MessageCreated | NewRecord]:
    return [created(who.room, sender or who.ann, f"text {number}") for number in range(count)]


def stored(db: Ledger, room: str) -> list[str]:
    return [message.content for message in db.messages(room, after=0, limit=10_000)]


def sequences(topics: TopicConnection, room: str) -> list[int]:
    return [event.sequence or 0 for event in told(topics, PERSISTED, room)]


def texts(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]


# Storing and telling


def test_what_is_sent_is_stored_and_told_as_it_stands_in_its_row(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People
) -> None:
    send(place, talk(who, 250))
    workers.start()
    until(lambda: len(sequences(topics, who.room)) >= 250)
    assert sequences(topics, who.room) == list(range(1, 251))
    rows = db.messages(who.room, after=0, limit=1000)
    assert [row.content for row in rows] == texts(250)
    assert [(e.message_id, e.content, e.created_at) for e in told(topics, PERSISTED, who.room)] == [
        (row.id, row.content, row.created_at) for row in rows
    ]
    until(lambda: db.outbox(1) == [])


def test_a_message_that_is_sent_again_after_a_lost_answer_is_stored_and_told_once(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People
) -> None:
    events = talk(who, 3)
    workers.start()
    send(place, events)
    until(lambda: len(sequences(topics, who.room)) >= 3)
    send(place, [*events, *talk(who, 1, who.bob)])
    until(lambda: len(sequences(topics, who.room)) >= 4)
    assert sequences(topics, who.room) == [1, 2, 3, 4] and len(stored(db, who.room)) == 4


# Dying


def test_a_worker_killed_between_insert_and_publish_loses_no_broadcast(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People
) -> None:
    send(place, talk(who, 5))
    assert workers.start(DIES_STORED).wait(60) == -signal.SIGKILL
    left = len(db.outbox(10))
    assert left > 0 and stored(db, who.room) == texts(left)  # of Kafka, the first read may bring one alone
    assert sequences(topics, who.room) == []
    workers.start()
    until(lambda: len(sequences(topics, who.room)) >= 5)
    send(place, talk(who, 1, who.bob))  # comes after all that the dead one had read and not committed
    until(lambda: len(sequences(topics, who.room)) >= 6)
    assert sequences(topics, who.room) == [1, 2, 3, 4, 5, 6]
    assert stored(db, who.room) == [*texts(5), "text 0"]


def test_a_worker_killed_between_publish_and_removal_tells_twice_and_in_order(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People
) -> None:
    send(place, talk(who, 5))
    assert workers.start(DIES_TOLD).wait(60) == -signal.SIGKILL
    before = sequences(topics, who.room)
    assert before == list(range(1, len(before) + 1)) and len(db.outbox(10)) >= len(before) > 0
    workers.start()
    until(lambda: len(stored(db, who.room)) == 5 and db.outbox(1) == [])
    after = sequences(topics, who.room)
    assert list(dict.fromkeys(after)) == [1, 2, 3, 4, 5] and len(after) == 5 + len(before)
    assert stored(db, who.room) == texts(5)


def test_workers_that_are_killed_in_a_burst_store_all_once_and_in_order(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People
) -> None:
    rooms = [who.room, *(db.create_room(f"room {number}", who.ann).id for number in range(5))]
    first, second = workers.start(), workers.start()
    for number in range(20):
        send(place, [created(room, who.ann, f"text {number * 10 + n}") for n in range(10) for room in rooms])
        if number == 5:
            until(lambda: all(stored(db, room) for room in rooms))  # both are in the middle of it
            first.kill()
        if number == 9:
            workers.start()
        if number == 14:
            until(lambda: all(len(stored(db, room)) > 60 for room in rooms))
            second.kill()
    until(lambda: all(len(stored(db, room)) >= 200 for room in rooms) and db.outbox(1) == [])
    for room in rooms:
        assert stored(db, room) == texts(200)
        assert list(dict.fromkeys(sequences(topics, room))) == list(range(1, 201))


def test_a_worker_that_is_told_to_stop_finishes_and_leaves_the_group(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People
) -> None:
    first = workers.start()
    beat = workers.heartbeat("worker-0")
    send(place, talk(who, 20))
    until(lambda: len(sequences(topics, who.room)) >= 20)
    until(lambda: read_pulse(beat, SystemClock()).state == "ok")
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert not beat.exists() and db.outbox(1) == []
    assert all(share.owner == "" for share in topics.driver.groups(MESSAGES)[PERSISTOR])


# Records that are no good


def test_a_refused_record_goes_to_the_dlq_at_once_with_its_reason(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People
) -> None:
    bad = [NewRecord(b"no json", who.room), NewRecord(b'{"roomId": 7}', who.room)]
    stranger = created(who.room, who.eve, "let me in")
    lost = created(str(uuid.uuid4()), who.ann, "where")
    send(place, [*talk(who, 2), *bad, stranger, NewRecord(encode(lost), who.room), *talk(who, 1, who.bob)])
    workers.start()
    until(lambda: len(sequences(topics, who.room)) >= 3 and len(records(topics, REJECTED, who.room)) >= 4)
    dead = records(topics, REJECTED, who.room)
    assert [record.value for record in dead] == [*(record.value for record in bad), encode(stranger), encode(lost)]
    reasons = [dead_of(record) for record in dead]
    assert {(found.group, found.code, found.attempts) for found in reasons} == {(PERSISTOR, "VALIDATION_ERROR", 1)}
    assert "malformed" in reasons[0].reason and "$.roomId" in reasons[1].reason
    assert [found.reason for found in reasons[2:]] == [
        "the sender is not a member of the room",
        "there is no such room",
    ]
    assert stored(db, who.room) == ["text 0", "text 1", "text 0"]


def test_a_record_that_the_database_will_not_take_holds_up_nobody_for_long(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People
) -> None:
    other = db.create_room("other", who.ann).id
    poison(place)
    events = talk(who, 10)
    events.insert(4, created(who.room, who.ann, "poison"))
    send(place, [*events, *(created(other, who.ann, f"text {n}") for n in range(10))])
    workers.start()
    until(lambda: len(stored(db, who.room)) >= 10 and len(stored(db, other)) >= 10)
    until(lambda: records(topics, REJECTED, who.room))
    assert stored(db, who.room) == stored(db, other) == texts(10)
    [dead] = records(topics, REJECTED, who.room)
    reason = dead_of(dead)
    assert (reason.code, reason.attempts) == ("HANDLER_ERROR", 5) and "will not have it" in reason.reason
    until(lambda: sequences(topics, who.room) == list(range(1, 11)))


def poison(place: Place) -> None:
    """Let the database refuse one text, though it is sound."""
    if place.kind == "embedded":
        trigger = (
            "create trigger no_poison before insert on chat_messages when new.content = 'poison' "
            "begin select raise(abort, 'will not have it'); end"
        )
        # In a process of its own: a second SQLite library in this one would let go of the locks of the first.
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(sys.argv[2])"
        subprocess.run([sys.executable, "-c", code, place.db_url.removeprefix("sqlite:"), trigger], check=True)
        return
    url, _, schema = place.db_url.partition("?schema=")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"create function {schema}.refuse() returns trigger language plpgsql as "
            "$$ begin raise 'will not have it'; end $$; "
            f"create trigger no_poison before insert on {schema}.messages for each row "
            f"when (new.content = 'poison') execute function {schema}.refuse()"
        )


# Outages


@contextmanager
def outage(place: Place, request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the server, or have another process hold the lock that every writer of the file needs."""
    if place.kind == "servers":
        server = request.getfixturevalue("postgres")
        server.stop()
        try:
            yield
        finally:
            server.start()
        return
    hold = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60); "
        "db.execute('begin immediate'); print('held', flush=True); sys.stdin.read()"
    )
    path = place.db_url.removeprefix("sqlite:")
    holder = subprocess.Popen([sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    try:
        yield
    finally:
        holder.communicate(timeout=60)


def test_an_outage_of_the_database_is_never_a_try(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People, request: pytest.FixtureRequest
) -> None:
    workers.start()
    send(place, talk(who, 5))
    until(lambda: len(sequences(topics, who.room)) >= 5)
    with outage(place, request):
        send(place, [created(who.room, who.bob, f"text {number}") for number in range(5, 30)])
        start = time.monotonic()
        with pytest.raises(Outage):
            db.persist([created(who.room, who.ann, "now")])
        assert time.monotonic() - start < 8.0
        until(lambda: workers.log().count("chat-persistor waits at") >= 2)
        time.sleep(TRIES_TAKE)
        assert records(topics, REJECTED, who.room) == []
    until(lambda: len(sequences(topics, who.room)) >= 30)
    assert stored(db, who.room) == texts(30) and sequences(topics, who.room) == list(range(1, 31))
    assert records(topics, REJECTED, who.room) == []


def test_a_worker_that_starts_while_the_database_is_down_waits_for_it(
    place: Place, workers: Crew, topics: TopicConnection, db: Ledger, who: People, request: pytest.FixtureRequest
) -> None:
    with outage(place, request):
        send(place, talk(who, 5))
        worker = workers.start()
        until(lambda: "waits" in workers.log())
        assert worker.poll() is None
    until(lambda: len(sequences(topics, who.room)) >= 5)
    assert stored(db, who.room) == texts(5) and records(topics, REJECTED, who.room) == []


def test_a_database_file_whose_folder_cannot_be_used_is_an_outage_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file where a folder should be")
    ledger = open_ledger(f"sqlite:{tmp_path / 'folder' / 'chat.db'}")
    with pytest.raises(Outage):
        ledger.health()
    with pytest.raises(Outage):
        people(ledger)
    (tmp_path / "folder").unlink()
    who = people(ledger)
    assert ledger.is_member(who.room, who.ann)
    ledger.close()


def test_a_worker_goes_on_when_kafka_was_restarted(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    from tests.services.kafka import running

    request.getfixturevalue("kafka")  # says why there can be no server here
    postgres = request.getfixturevalue("postgres")
    with (
        running() as kafka,  # its own: other tests keep clients of the shared one
        postgres.schema() as schema,
        crew(place := Place("servers", kafka.url, f"{postgres.url}?schema={schema}"), tmp_path) as workers,
    ):
        db = open_ledger(place.db_url)
        who = people(db)
        workers.start()
        send(place, talk(who, 5))
        until(lambda: len(stored(db, who.room)) >= 5)
        kafka.kill()
        kafka.start()
        send(place, [created(who.room, who.ann, f"text {number}") for number in range(5, 10)])
        with connect_topics(place.topics_url) as topics:
            until(lambda: len(set(sequences(topics, who.room))) >= 10)
            assert list(dict.fromkeys(sequences(topics, who.room))) == list(range(1, 11))
        assert stored(db, who.room) == texts(10)
        db.close()
