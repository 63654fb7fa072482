"""Schedules: each occurrence is published once, whoever publishes it, also across crashes and time zones."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal import Connection, InvalidInput, Policy
from pabal.errors import MessageUnknown
from pabal.message import replace
from pabal.queues.queue import schedules_of
from pabal.queues.schedules import LATE, QUEUE, make_schedule, occurrence_id
from pabal.store import State
from pabal.testing import ManualClock

STORES = ("memory", "sqlite", "file", "hybrid")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at("2026-03-02T08:59:00"))


@pytest.fixture(params=STORES)
def mq(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Connection]:
    place = "" if request.param == "memory" else f"{tmp_path}/store"
    with pabal.connect(f"{request.param}:{place}", clock=clock) as connection:
        yield connection


def take(mq: Connection, queue: str = "reports") -> list[str]:
    """Take what is there, as a consumer does that looks now and then."""
    found = []
    for delivery in mq.queue(queue).consume(wait=0):
        found.append(delivery.message.id)
        delivery.ack()
    return found


def pass_time(mq: Connection, clock: ManualClock, seconds: float, step: float = 30.0) -> list[str]:
    found = []
    while seconds > 0:
        clock.advance(min(step, seconds))
        seconds -= step
        found += take(mq)
    return found


def test_occurrences_come_once_by_cron_line_and_by_interval(mq: Connection, clock: ManualClock) -> None:
    made = mq.schedule("morning", cron="0 9 * * 1-5", queue="reports", body={"kind": "daily"}, timezone="UTC", type="r")
    assert made.next == at("2026-03-02T09:00:00")
    assert mq.schedule("morning", cron="0 9 * * 1-5", queue="reports", body={"kind": "daily"}, timezone="UTC", type="r")
    mq.schedule("often", every=timedelta(hours=12), queue="reports")
    assert [(each.name, each.next_at.isoformat()) for each in mq.schedules()] == [
        ("morning", "2026-03-02T09:00:00+00:00"),
        ("often", "2026-03-02T12:00:00+00:00"),
    ]
    assert take(mq) == [] and pass_time(mq, clock, 120) == ["morning.20260302T090000Z"]
    entry = mq.queue("reports").find("morning.20260302T090000Z")
    assert entry is not None and entry.state is State.DONE
    found = pass_time(mq, clock, 5 * 86400, step=1800)
    days = ["03", "04", "05", "06"]
    assert sorted(found) == sorted(
        [f"morning.202603{day}T090000Z" for day in days]
        + [f"often.202603{day}T{hour}0000Z" for day in ("02", *days, "07") for hour in ("00", "12")][1:-1]
    )
    assert mq.unschedule("often") and not mq.unschedule("often")
    assert [each.name for each in mq.schedules()] == ["morning"]
    # Its message carries what it is of, and `run` publishes one more.
    mq.run_schedule("morning")
    [delivery] = mq.queue("reports").lease()
    assert (delivery.body, delivery.message.type) == ({"kind": "daily"}, "r")
    assert delivery.message.headers == {"schedule": "morning"}
    with pytest.raises(MessageUnknown, match="there are morning"):
        mq.run_schedule("evening")


def test_what_was_missed_comes_once_or_is_skipped(mq: Connection, clock: ManualClock) -> None:
    mq.schedule("late", every=3600, queue="reports", catch_up="once")
    mq.schedule("never", every=3600, queue="reports", catch_up="skip")
    clock.advance(5.5 * 3600)
    assert take(mq) == ["late.20260302T140000Z"]
    clock.advance(1800 + 90)
    assert take(mq) == ["late.20260302T150000Z", "never.20260302T150000Z"]


def crash(ids: Iterable[str]) -> None:
    if list(ids):
        raise KeyboardInterrupt


def test_a_schedule_is_changed_and_removed_as_a_whole(mq: Connection, clock: ManualClock) -> None:
    mq.schedule("job", every=60, queue="reports", body=1)
    changed = mq.schedule("job", every=3600, queue="reports", body=2)
    assert mq.schedules() == [changed] and changed.body == 2
    # A crash between adding and removing leaves two: the younger counts, and the older ends by itself.
    schedules = schedules_of(mq.store, clock)
    schedules._cancel = crash  # type: ignore[method-assign]
    clock.advance(1)
    with pytest.raises(KeyboardInterrupt):
        schedules.add(pabal.Schedule("job", "reports", 3, every=1800))
    assert [each.body for each in mq.schedules()] == [3]
    clock.advance(3600)
    found = list(mq.queue("reports").consume(wait=0))
    assert [delivery.body for delivery in found] == [3] and len(mq.queue(QUEUE).browse(State.DELAYED)) == 1


@pytest.mark.parametrize("every", [1.0, 1.1, 2.7, 60.0, 3600.3, 86400.0 / 7])
def test_the_times_of_an_interval_rise_whatever_the_rounding(every: float) -> None:
    schedule = make_schedule("x", queue="reports", every=every)
    time = at("2026-03-02T08:59:00")
    for _ in range(2000):
        following = schedule.after(time)
        assert following is not None and time < following <= time + every * 1.001
        assert schedule.latest(following) == following
        assert len({occurrence_id("x", time), occurrence_id("x", following)}) == 2
        time = following
    due = replace(schedule, next=time).due(time + LATE)
    assert len(due) == int(LATE // every) + 1 and due == sorted(set(due))


def test_consumers_that_look_once_a_second_lose_no_second(mq: Connection, clock: ManualClock) -> None:
    first = mq.schedule("s", every=1, queue="reports").next
    found = pass_time(mq, clock, 33, step=1.1)
    assert len(found) >= 32 and found == [occurrence_id("s", first + n) for n in range(len(found))]


def test_a_cron_line_is_in_the_zone_of_the_machine_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in that of the consumer that publishes, which may be elsewhere."""
    zones = "/usr/share/zoneinfo"
    monkeypatch.setattr("pabal.queues.cron._LOCAL", f"{zones}/Asia/Seoul")
    clock = ManualClock(at("2026-03-01T12:00:00"))
    with pabal.connect("memory:", clock=clock) as mq:
        made = mq.schedule("z", cron="0 9 * * *", queue="reports")
        assert made.timezone == "Asia/Seoul" and made.next == at("2026-03-02T00:00:00")
        monkeypatch.setattr("pabal.queues.cron._LOCAL", f"{zones}/Europe/Berlin")
        found = pass_time(mq, clock, 2 * 86400, step=900)
        assert found == ["z.20260302T000000Z", "z.20260303T000000Z"]
        monkeypatch.setattr("pabal.queues.cron._LOCAL", "/etc/hostname")  # a zone without a name
        assert mq.schedule("y", cron="0 9 * * *", queue="reports").timezone == ""


@pytest.mark.parametrize(
    ("zone", "line", "start", "expected"),
    [
        # The hour that is skipped in spring, and the one that comes twice in autumn.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00", ["20260329T010000Z", "20260330T003000Z"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00", ["20261025T003000Z", "20261026T013000Z"]),
        ("Asia/Seoul", "0 9 * * 1-5", "2026-03-27T12:00:00", ["20260330T000000Z"]),
    ],
)
def test_time_zones_are_those_of_the_cron_line(zone: str, line: str, start: str, expected: list[str]) -> None:
    clock = ManualClock(at(start))
    with pabal.connect("memory:", clock=clock) as mq:
        mq.schedule("z", cron=line, queue="reports", timezone=zone)
        found = pass_time(mq, clock, 3 * 86400, step=900)
    assert [id.removeprefix("z.") for id in found][: len(expected)] == expected


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "give cron"),
        ({"cron": "* * * * *", "every": 1}, "not both"),
        ({"every": 0.5}, "every must be"),
        ({"every": 60, "timezone": "UTC"}, "belongs to a cron line"),
        ({"cron": "0 9 * *"}, "five fields"),
        ({"cron": "61 9 * * *"}, "61"),
        ({"cron": "0 0 31 2 *"}, "Bad day-of-month"),
        ({"cron": "0 9 * * *", "timezone": "Mars/Base"}, "no time zone"),
        ({"every": 60, "catch_up": "twice"}, "once or skip"),
        ({"every": 60, "body": b"x"}, "found bytes"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pabal.connect("memory:") as mq, pytest.raises(InvalidInput, match=said):
        mq.schedule("x", queue="reports", **wrong)


def test_a_schema_that_refuses_the_body_stops_no_schedule(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    with pabal.connect("memory:", clock=clock) as mq:
        mq.schedule("job", every=60, queue="reports", body={"n": 1})
        schema: dict[str, Any] = {"type": "object", "required": ["m"]}
        mq.queue("reports").configure(Policy(body_schema=schema, on_invalid="refuse"))
        clock.advance(61)
        assert take(mq) == [] and "nothing is published" in caplog.text
        mq.queue("reports").configure(Policy())
        clock.advance(60)
        assert len(take(mq)) == 1
        with pytest.raises(InvalidInput):
            mq.queue("reports").configure(Policy(body_schema=schema, on_invalid="refuse"))
            mq.schedule("other", every=60, queue="reports", body={"n": 1})


def test_without_the_cron_library_cron_lines_are_left_to_others(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pabal.connect("memory:", clock=clock) as mq, pabal.connect("memory:shared", clock=clock) as shared:
        shared.schedule("line", cron="* * * * *", queue="reports", timezone="UTC")
        shared.schedule("span", every=60, queue="reports")
        with monkeypatch.context() as without:
            without.setattr("pabal.queues.cron.available", lambda: False)
            clock.advance(61)
            with pabal.connect("memory:shared", clock=clock) as poor:
                assert [id.partition(".")[0] for id in take(poor)] == ["span"]
        assert [id.partition(".")[0] for id in take(shared)] == ["line"] and mq.schedules() == []


def test_a_schedule_that_cannot_be_published_stops_nobody_and_is_tried_again(
    mq: Connection, clock: ManualClock
) -> None:
    mq.schedule("large", every=60, queue="reports", body="x" * 2000)
    mq.queue("reports").configure(Policy(max_bytes=100))
    mq.queue("other").publish("work")
    clock.advance(70)
    [delivery] = mq.queue("other").lease()
    delivery.ack()
    assert take(mq) == [] and [each.name for each in mq.schedules()] == ["large"]
    mq.queue("reports").configure(Policy())
    clock.advance(20)
    assert len(take(mq)) == 1 and [each.name for each in mq.schedules()] == ["large"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("wrong", [{"every": 1e-9}, {"every": -60.0}, {}, {"every": 60.0, "cron": "* * * * *"}])
def test_a_schedule_that_another_program_wrote_is_checked(
    mq: Connection, clock: ManualClock, wrong: dict[str, Any]
) -> None:
    """Times that are nanoseconds apart would keep every consumer busy for ever."""
    mq.schedule("good", every=60, queue="reports")
    body = {"name": "bad", "queue": "reports", "next": clock.now() - 30, **wrong}
    bad = mq.queue(QUEUE).publish(body, target="cron" if "cron" in wrong else None)
    clock.advance(60)
    assert [id.partition(".")[0] for id in take(mq)] == ["good"]
    entry = mq.queue(QUEUE).find(bad.id)
    assert entry is not None and entry.state is State.DEAD


def test_schedules_that_are_due_together_are_read_once(tmp_path: Path, clock: ManualClock) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/store", clock=clock) as mq:
        for n in range(20):
            mq.schedule(f"s{n}", every=3600, queue="reports")
        browsed: list[object] = []
        browse, mq.store.browse = mq.store.browse, lambda *a, **b: browsed.append(a) or browse(*a, **b)  # type: ignore
        clock.advance(3600)
        assert len(take(mq)) == 20 and len(browsed) <= 24


def test_a_clock_that_was_ahead_for_a_while_silences_no_schedule(mq: Connection, clock: ManualClock) -> None:
    first = mq.schedule("hourly", every=3600, queue="reports", body=1).next
    clock.step_wall(365 * 86400)
    assert len(take(mq)) == 1  # the occurrence of that moment
    clock.step_wall(-365 * 86400)
    # It is seen within a minute, in which the first one falls here.
    found = pass_time(mq, clock, first + 3 * 3600 - clock.now() + 60, step=60)
    assert found == [occurrence_id("hourly", first + n * 3600) for n in range(1, 4)]
    [schedule] = mq.schedules()
    assert (schedule.body, schedule.next) == (1, first + 4 * 3600)
    # Nobody has to look for it to come back: adding it again, as programs do when they start, is enough.
    clock.advance(2)
    clock.step_wall(365 * 86400)
    assert len(take(mq)) == 1
    clock.step_wall(-365 * 86400)
    assert mq.schedule("hourly", every=3600, queue="reports", body=1).next == first + 4 * 3600


def test_a_clock_that_was_ahead_for_less_than_an_hour_silences_no_interval(mq: Connection, clock: ManualClock) -> None:
    mq.schedule("often", every=10, queue="reports")
    clock.step_wall(3500)
    assert len(take(mq)) == 1
    clock.step_wall(-3500)
    pass_time(mq, clock, 70, step=10)
    first = clock.now() // 10 * 10 + 10
    assert pass_time(mq, clock, 60, step=10) == [occurrence_id("often", first + n * 10) for n in range(6)]


def test_no_cron_line_is_set_back_in_the_hour_that_comes_twice(clock: ManualClock) -> None:
    clock.step_wall(at("2026-10-24T23:50:00") - clock.now())
    with pabal.connect("memory:", clock=clock) as mq:
        mq.schedule("night", cron="30 2 * * *", queue="reports", timezone="Europe/Berlin")
        assert pass_time(mq, clock, 3 * 3600, step=60) == ["night.20261025T003000Z"]
        assert [each.set_back for each in mq.schedules()] == [0]


@pytest.mark.parametrize("step", ["publish", "cancel"])
@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        ("remove", []),
        ("change", [("other", 0)]),
        ("remove and change", [("other", 0)]),
        ("remove and add", [("first", 0)]),
        ("set back", [("first", 1)]),
        ("add", [("first", 1)]),
    ],
)
def test_what_others_do_to_a_schedule_while_it_is_set_back_counts(
    mq: Connection, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, step: str, meanwhile: str, left: list[Any]
) -> None:
    here, there = (schedules_of(mq.store, clock) for _ in range(2))
    first, other = (make_schedule("s", queue="reports", every=3600, body=body) for body in ("first", "other"))
    clock.step_wall(86400)
    here.add(first)
    clock.step_wall(-86400)
    usual = getattr(mq.store, step)

    def before(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(mq.store, step, usual)
        if "remove" in meanwhile:
            assert there.remove("s")
        if meanwhile == "set back":
            there.tend()
        elif meanwhile != "remove":
            there.add(other if "change" in meanwhile else first)
        return usual(*args, **more)

    monkeypatch.setattr(mq.store, step, before)
    here.tend()
    assert getattr(mq.store, step) == usual
    found = mq.schedules()
    assert [(each.body, each.set_back) for each in found] == left
    assert all(each.next <= clock.now() + 3600 for each in found)
    assert len(mq.queue(QUEUE).browse(State.DELAYED)) == len(left)
