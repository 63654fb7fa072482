"""The ledger keeps the promises of its contract, on SQLite and on PostgreSQL."""

import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from pabal.apps.chat.errors import EmailTaken, NotMember, RoomUnknown, UserUnknown
from pabal.apps.chat.events import Kind, MessageCreated, read_persisted
from pabal.apps.chat.ledger import Ledger, Rejected, Stored, open_ledger
from pabal.errors import InvalidInput, InvalidUrl, MessageUnknown, Outage, StoreClosed
from pabal.testing import ManualClock
from tests.apps.chat.place import People, created, people
from tests.topics.breaking import break_handles

NOBODY = str(uuid.uuid4())
T = TypeVar("T")


def store(ledger: Ledger, *events: MessageCreated) -> list[Stored]:
    answers = ledger.persist(events)
    assert all(isinstance(answer, Stored) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, Stored)]


def patiently(ask: Callable[[], T]) -> T:
    """Repeat what a busy machine made an Outage of, as the contract says one may."""
    while True:
        with suppress(Outage):
            return ask()


def say(ledger: Ledger, who: People, count: int, sender: str | None = None) -> list[Stored]:
    return store(ledger, *(created(who.room, sender or who.ann, f"text {n}") for n in range(count)))


# Users


def test_an_email_is_taken_whatever_the_case_of_its_letters(ledger: Ledger) -> None:
    made = ledger.add_user("Ann@Example.org", "hash")
    assert ledger.user_by_email("ann@example.ORG") == made and made.email == "Ann@Example.org"
    with pytest.raises(EmailTaken):
        ledger.add_user("ann@example.org", "other")
    assert ledger.user_by_email("ann@example.org") == made
    assert ledger.user_by_email("bob@example.org") is None


def test_one_of_many_who_register_an_email_at_once_gets_it(ledger: Ledger) -> None:
    def register(number: int) -> bool:
        try:
            ledger.add_user("same@example.org", f"hash {number}")
        except EmailTaken:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(register, range(8))) == [False] * 7 + [True]


# Rooms


def test_the_creator_of_a_room_is_its_member(ledger: Ledger) -> None:
    who = people(ledger)
    room = ledger.room(who.room)
    assert room is not None and (room.name, room.open, room.last_sequence) == ("one", False, 0)
    assert (room.last_message_id, room.last_message_at) == (None, None)
    assert ledger.is_member(who.room, who.ann) and not ledger.is_member(who.room, who.eve)
    wide = ledger.create_room("two", who.ann, open=True)
    assert wide.open and ledger.room(wide.id) == wide
    assert ledger.room(NOBODY) is None
    with pytest.raises(UserUnknown):
        ledger.create_room("three", NOBODY)


def test_joining_and_leaving_say_whether_anything_changed(ledger: Ledger) -> None:
    who = people(ledger)
    assert ledger.join(who.room, who.eve) is True and ledger.join(who.room, who.eve) is False
    assert ledger.leave(who.room, who.eve) is True and ledger.leave(who.room, who.eve) is False
    with pytest.raises(RoomUnknown):
        ledger.join(NOBODY, who.eve)
    with pytest.raises(UserUnknown):
        ledger.join(who.room, NOBODY)


def test_members_come_page_by_page(ledger: Ledger) -> None:
    who = people(ledger)
    ledger.join(who.room, who.eve)
    first = ledger.members(who.room, limit=2)
    rest = ledger.members(who.room, after=first[-1].user_id, limit=2)
    assert [m.user_id for m in (*first, *rest)] == sorted([who.ann, who.bob, who.eve])
    assert {m.email for m in (*first, *rest)} == {f"{name}@example.org" for name in ("ann", "bob", "eve")}


def test_rooms_come_by_activity_page_by_page(ledger: Ledger, clock: ManualClock) -> None:
    clock.step_wall(time.time() - clock.now() - 3600)  # messages have the time of the server, if there is one
    who = people(ledger)
    made = [who.room]
    for number in range(4):
        clock.advance(1)
        made.append(ledger.create_room(f"room {number}", who.ann).id)
    clock.advance(1)
    last = store(ledger, created(made[1], who.ann, "newest"))[0]
    first = ledger.rooms_of(who.ann, limit=2)
    rest = ledger.rooms_of(who.ann, before=first[-1].cursor, limit=10)
    assert [view.room.id for view in (*first, *rest)] == [made[1], made[4], made[3], made[2], made[0]]
    assert first[0].last_message == last and first[1].last_message is None
    assert [view.room.id for view in ledger.rooms_of(who.bob)] == [who.room]
    with pytest.raises(InvalidInput):
        ledger.rooms_of(who.ann, before="yesterday")


# Messages


def test_messages_get_their_places_in_order(ledger: Ledger, clock: ManualClock) -> None:
    who = people(ledger)
    made = say(ledger, who, 3) + say(ledger, who, 2, who.bob)
    assert [m.sequence for m in made] == [1, 2, 3, 4, 5]
    assert [m.content for m in made] == ["text 0", "text 1", "text 2", "text 0", "text 1"]
    assert ledger.messages(who.room) == made
    room = ledger.room(who.room)
    assert room is not None
    assert (room.last_sequence, room.last_message_id, room.last_message_at) == (5, made[4].id, made[4].created_at)


def test_without_a_cursor_come_the_newest_and_always_in_order(ledger: Ledger) -> None:
    who = people(ledger)
    made = say(ledger, who, 10)
    assert ledger.messages(who.room, limit=3) == made[7:]
    assert ledger.messages(who.room, before=8, limit=3) == made[4:7]
    assert ledger.messages(who.room, after=2, limit=3) == made[2:5]
    assert ledger.messages(who.room, after=2, before=5, limit=10) == made[2:4]
    assert ledger.messages(who.room, after=0) == made
    assert ledger.messages(who.room, after=10) == [] and ledger.messages(NOBODY) == []
    assert ledger.sequence_of(who.room, made[3].id) == 4
    assert ledger.sequence_of(NOBODY, made[3].id) is None and ledger.sequence_of(who.room, "no id") is None


def test_two_messages_in_one_millisecond_keep_their_order(ledger: Ledger) -> None:
    who = people(ledger)
    made = say(ledger, who, 500)  # the clock stands still
    assert len({m.created_at for m in made}) < 10
    ids = [m.id for m in made]
    assert ids == sorted(set(ids))


def test_ids_and_times_rise_though_the_clocks_of_workers_disagree(db_url: str) -> None:
    ahead, behind = ManualClock(), ManualClock()
    ahead.step_wall(3600)
    first, second = open_ledger(db_url, clock=ahead), open_ledger(db_url, clock=behind)
    try:
        who = people(first)
        made: list[Stored] = []
        for ledger in (first, second, second, first, second):
            made += say(ledger, who, 2)
        elsewhere = second.create_room("elsewhere", who.ann)
        [other] = store(second, created(elsewhere.id, who.ann))
    finally:
        first.close()
        second.close()
    assert [m.sequence for m in made] == list(range(1, 11))
    assert [m.id for m in made] == sorted({m.id for m in made})
    assert [m.created_at for m in made] == sorted(m.created_at for m in made)
    # A room that no fast clock has touched has the right time. With a server there is one clock, the server's.
    server = db_url.startswith("postgresql")
    assert (other.created_at < made[0].created_at - timedelta(minutes=59)) is not server
    assert abs(other.created_at.timestamp() - (time.time() if server else behind.now())) < 600


def test_a_duplicate_changes_nothing(ledger: Ledger, clock: ManualClock) -> None:
    who = people(ledger)
    event = created(who.room, who.ann, "first")
    [made] = store(ledger, event)
    say(ledger, who, 1, who.bob)
    before = (ledger.room(who.room), ledger.messages(who.room), ledger.outbox(10), ledger.rooms_of(who.ann))
    clock.advance(60)
    again = created(who.room, who.ann, "another text", client=event.client_msg_id)
    assert store(ledger, event) == [made] and store(ledger, again, event) == [made, made]
    assert (ledger.room(who.room), ledger.messages(who.room), ledger.outbox(10), ledger.rooms_of(who.ann)) == before
    [theirs] = store(ledger, created(who.room, who.bob, client=event.client_msg_id))  # another sender's is another
    assert theirs.sequence == 3


def test_a_duplicate_within_one_batch_is_stored_once(ledger: Ledger) -> None:
    who = people(ledger)
    event = created(who.room, who.ann)
    answers = store(ledger, event, created(who.room, who.bob), event)
    assert [answer.sequence for answer in answers] == [1, 2, 1] and answers[0] == answers[2]
    assert len(ledger.messages(who.room)) == len(ledger.outbox(10)) == 2


def test_a_message_of_one_who_has_left_meanwhile_is_still_a_duplicate(ledger: Ledger) -> None:
    who = people(ledger)
    event = created(who.room, who.bob)
    [made] = store(ledger, event)
    ledger.leave(who.room, who.bob)
    assert store(ledger, event) == [made]


def test_who_is_no_member_stores_nothing_and_the_others_of_the_batch_do(ledger: Ledger) -> None:
    who = people(ledger)
    events = [created(who.room, who.ann), created(who.room, who.eve), created(NOBODY, who.ann)]
    events += [created(who.room, NOBODY), created(who.room, who.bob)]
    answers = ledger.persist(events)
    assert [isinstance(answer, Stored) for answer in answers] == [True, False, False, False, True]
    assert answers[1] == Rejected(events[1], "the sender is not a member of the room")
    assert answers[2] == Rejected(events[2], "there is no such room")
    assert [m.sender_id for m in ledger.messages(who.room)] == [who.ann, who.bob]
    assert [m.sequence for m in ledger.messages(who.room)] == [1, 2]


def test_a_system_message_needs_no_membership_but_a_user(ledger: Ledger) -> None:
    who = people(ledger)
    ledger.leave(who.room, who.bob)
    events = [created(who.room, sender, "left", kind=Kind.SYSTEM) for sender in (who.bob, NOBODY)]
    left, nobody = ledger.persist(events)
    assert isinstance(left, Stored) and left.type is Kind.SYSTEM
    assert nobody == Rejected(events[1], "there is no such user")


def test_every_stored_message_is_in_the_outbox_until_it_is_sent(ledger: Ledger) -> None:
    who = people(ledger)
    made = say(ledger, who, 5)
    rows = ledger.outbox(10)
    events = [read_persisted(row.event) for row in rows]
    assert [(e.message_id, e.sequence, e.created_at) for e in events] == [
        (m.id, m.sequence, m.created_at) for m in made
    ]
    assert {row.room_id for row in rows} == {who.room}
    ledger.sent([row.number for row in rows[:2]])
    assert ledger.outbox(2) == rows[2:4]
    ledger.sent([row.number for row in rows])  # another worker may have sent them
    ledger.sent([])
    assert ledger.outbox(10) == []


def test_after_never_misses_a_message_while_many_write(db_url: str) -> None:
    """Readers follow with `after` while writers commit at once: each sees 1, 2, 3, … without a gap."""
    ledgers = [open_ledger(db_url) for _ in range(4)]
    who = people(ledgers[0])
    other = ledgers[0].create_room("other", who.ann).id
    count, done = 25, threading.Event()

    def write(number: int) -> None:
        for n in range(count):
            rooms = (who.room, other) if number % 2 else (other, who.room)  # in either order: no circle of locks
            events = [created(room, who.ann, f"{number}.{n}") for room in rooms]
            patiently(partial(store, ledgers[number], *events))

    def follow(number: int) -> list[int]:
        seen: list[int] = []
        while True:
            last = done.is_set()
            after = seen[-1] if seen else 0
            found = patiently(partial(ledgers[number].messages, who.room, after=after, limit=7))
            seen += [m.sequence for m in found]
            if last and not found:
                return seen

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(follow, number) for number in range(4)]
        writers = [pool.submit(write, number) for number in range(4)]
        try:
            for writer in writers:
                writer.result()
        finally:
            done.set()
        seen = [reader.result() for reader in readers]
    rows = [read_persisted(row.event) for row in ledgers[0].outbox(1000)]
    for ledger in ledgers:
        ledger.close()
    assert seen == [list(range(1, 4 * count + 1))] * 4
    assert [event.sequence for event in rows if event.room_id == who.room] == list(range(1, 4 * count + 1))


# Reading


def test_a_read_mark_never_moves_backwards(ledger: Ledger) -> None:
    who = people(ledger)
    made = say(ledger, who, 5)
    assert ledger.mark_read(who.room, who.bob, made[3].id) == 4
    assert ledger.mark_read(who.room, who.bob, made[1].id) == 4
    assert [(v.last_read_sequence, v.unread) for v in ledger.rooms_of(who.bob)] == [(4, 1)]
    assert ledger.mark_read(who.room, who.bob, made[4].id) == 5


def test_a_read_mark_must_be_a_message_of_the_room_and_the_reader_a_member(ledger: Ledger) -> None:
    who = people(ledger)
    [made] = say(ledger, who, 1)
    elsewhere = ledger.create_room("two", who.bob)
    with pytest.raises(MessageUnknown):
        ledger.mark_read(elsewhere.id, who.bob, made.id)
    with pytest.raises(MessageUnknown):
        ledger.mark_read(who.room, who.bob, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(NotMember):
        ledger.mark_read(who.room, who.eve, made.id)


def test_unread_counts_what_came_since_and_not_what_one_said_oneself(ledger: Ledger) -> None:
    who = people(ledger)

    def unread(user: str) -> int:
        return ledger.rooms_of(user)[0].unread

    say(ledger, who, 3)
    assert (unread(who.ann), unread(who.bob)) == (0, 3)
    say(ledger, who, 1, who.bob)  # he has not read the three: his own answer does not hide them
    assert (unread(who.ann), unread(who.bob)) == (1, 4)
    ledger.join(who.room, who.eve)  # history is not unread
    assert unread(who.eve) == 0
    say(ledger, who, 2, who.eve)
    assert (unread(who.eve), unread(who.ann)) == (0, 3)


# The database


def test_the_database_is_opened_by_its_url_and_refuses_the_rest(db_url: str) -> None:
    first = open_ledger(db_url)
    who = people(first)
    first.close()
    again = open_ledger(db_url)
    again.health()
    assert again.is_member(who.room, who.ann)
    again.close()
    with pytest.raises(StoreClosed):
        again.room(who.room)
    for wrong in ("mysql://x", "sqlite://host/x.db", "sqlite:", "chat.db"):
        with pytest.raises(InvalidUrl):
            open_ledger(wrong)


def test_a_server_that_takes_a_call_and_never_answers_is_an_outage_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        ledger = open_ledger(f"postgresql://test@127.0.0.1:{silent.getsockname()[1]}/postgres")
        with pytest.raises(Outage):
            ledger.health()
        assert time.monotonic() - start < 20.0
        ledger.close()


def test_an_io_error_of_a_database_file_is_one_outage_and_the_next_call_opens_it_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "chat.db"
    ledger = open_ledger(f"sqlite:{path}")
    made = ledger.add_user("ann@example.org", "hash")
    assert "opened anew" not in caplog.text
    break_handles(path)
    with pytest.raises(Outage):
        ledger.add_user("bob@example.org", "hash")
    ledger.add_user("eve@example.org", "hash")
    assert ledger.user_by_email("ann@example.org") == made
    assert caplog.text.count("opened anew") == 1
    ledger.close()
