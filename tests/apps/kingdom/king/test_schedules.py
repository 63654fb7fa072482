"""Schedules: once for each occurrence, across restarts, in their own time zone; held or missed ones come once."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pabal.apps.kingdom.king.schedules import find, read_sent
from pabal.apps.kingdom.manifests import FOLDER, Table, load
from pabal.apps.kingdom.status import report
from pabal.errors import InvalidConfig, MessageUnknown
from pabal.queues import cron
from pabal.testing import ManualClock
from tests.apps.kingdom.king.test_dispatch import resources, stamped
from tests.apps.kingdom.realm import Realm, everywhere

MONDAY = datetime(2026, 2, 9, 21, 59, 30, tzinfo=UTC).timestamp()
DAILY = {"name": "daily-test", "cron": "0 22 * * 1-5", "task_type": "daily-test-generation", "timezone": "UTC"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=MONDAY)


def scheduled(realm: Realm, **fields: Any) -> None:
    realm.general("gen-test", subscribes=[], schedules=[{**DAILY, **fields}])


def test_a_schedule_makes_a_task_of_low_priority_and_says_so(realm: Realm, clock: ManualClock) -> None:
    scheduled(realm, payload={"description": "x"})
    realm.run_kingdom()
    assert realm.tasks() == []
    clock.advance(31)
    realm.run_kingdom()
    [task] = realm.tasks()
    assert (task["event_id"], task["target_general"], task["priority"]) == ("schedule-daily-test", "gen-test", "low")
    assert (task["type"], task["repo"], task["payload"]) == ("daily-test-generation", None, {"description": "x"})
    [notice] = realm.notices()
    assert notice["content"] == "[start] schedule.daily-test-generation"
    assert read_sent(realm.home) == {"gen-test:daily-test": "2026-02-09T22:00:00.000Z"}


@everywhere
def test_an_occurrence_comes_once_across_restarts_and_a_crash_before_the_record(
    realm: Realm, clock: ManualClock
) -> None:
    scheduled(realm)
    realm.run_kingdom()
    record = (realm.root / "state/king/schedule-sent.json").read_bytes()
    clock.advance(31)
    realm.run_kingdom()
    (realm.root / "state/king/schedule-sent.json").write_bytes(record)  # as if killed before it was written
    realm.run_kingdom()
    realm.run_kingdom()
    assert len(realm.tasks()) == 1 and len(realm.notices()) == 1


def test_the_next_occurrence_comes_too(realm: Realm, clock: ManualClock) -> None:
    scheduled(realm)
    realm.run_kingdom()
    for _ in range(2):
        clock.advance(86400)
        realm.run_kingdom()
    assert len(realm.tasks()) == 2


def test_what_was_missed_while_down_comes_once(realm: Realm, clock: ManualClock) -> None:
    scheduled(realm)
    realm.run_kingdom()
    clock.advance(3.5 * 86400)
    realm.run_kingdom()
    realm.run_kingdom()
    assert len(realm.tasks()) == 1


def test_what_was_missed_is_skipped_if_asked_for(realm: Realm, clock: ManualClock) -> None:
    scheduled(realm, catch_up="skip")
    realm.run_kingdom()
    clock.advance(3600)
    realm.run_kingdom()
    assert realm.tasks() == []
    clock.advance(23 * 3600 + 45)
    realm.run_kingdom()
    assert len(realm.tasks()) == 1


def test_a_held_schedule_is_deferred_not_dropped(realm: Realm, clock: ManualClock) -> None:
    scheduled(realm)
    realm.run_kingdom()
    clock.advance(31)
    resources(realm, health="yellow", timestamp=stamped(clock))
    realm.run_kingdom()
    assert realm.tasks() == []
    assert "schedule gen-test:daily-test: held: yellow, needs high" in report(realm.home).problems
    resources(realm, health="green", timestamp=stamped(clock))
    realm.run_kingdom()
    assert len(realm.tasks()) == 1


def test_the_time_zone_of_a_schedule_counts(realm: Realm, clock: ManualClock) -> None:
    scheduled(realm, cron="0 7 * * *", timezone="Asia/Seoul")  # 22:00 UTC
    realm.run_kingdom()
    clock.advance(31)
    realm.run_kingdom()
    assert len(realm.tasks()) == 1


@pytest.mark.parametrize(
    ("line", "at", "expected"),
    [
        ("0,30 9-17/4 * * *", "2026-02-09T13:10", "2026-02-09T13:00"),
        ("0 12 * * 0", "2026-02-09T00:00", "2026-02-08T12:00"),
        ("0 12 * * 7", "2026-02-09T00:00", "2026-02-08T12:00"),
        ("0 12 * * SUN", "2026-02-09T00:00", "2026-02-08T12:00"),
        ("0 22 * * 1-5", "2026-02-08T12:00", "2026-02-06T22:00"),
        ("*/15 * * * *", "2026-02-09T10:44", "2026-02-09T10:30"),
    ],
)
def test_real_cron_lines_are_understood(line: str, at: str, expected: str) -> None:
    now = datetime.fromisoformat(f"{at}Z").timestamp()
    assert cron.last(line, "UTC", now) == datetime.fromisoformat(f"{expected}Z").timestamp()


def test_a_line_in_the_hour_that_does_not_exist_comes_all_the_same() -> None:
    """In New York 02:30 is skipped on 8 March 2026."""
    day = datetime(2026, 3, 8, 12, tzinfo=UTC).timestamp()
    found = cron.last("30 2 * * *", "America/New_York", day)
    assert found is not None and day - found < 86400


@pytest.mark.parametrize(
    "fields", [{"cron": "61 * * * *"}, {"cron": "often"}, {"cron": "0 0 31 2 *"}, {"timezone": "Mars/Olympus"}]
)
def test_a_bad_line_is_named_and_all_else_works(realm: Realm, clock: ManualClock, fields: dict[str, str]) -> None:
    bad = {**DAILY, "name": "bad", **fields}
    realm.general("gen-test", subscribes=["github.pr.*"], schedules=[bad, DAILY])
    realm.event()
    realm.run_kingdom()
    clock.advance(31)
    realm.run_kingdom()
    assert {task["event_id"] for task in realm.tasks()} == {"evt-1", "schedule-daily-test"}
    [problem] = [problem for problem in report(realm.home).problems if "schedule skipped" in problem]
    assert problem.startswith("gen-test.yaml: schedule skipped: bad: ")


def test_a_damaged_record_is_begun_anew_and_told(realm: Realm, clock: ManualClock) -> None:
    scheduled(realm)
    (realm.root / "state/king/schedule-sent.json").write_text("[")
    realm.run_kingdom()
    clock.advance(31)
    realm.run_kingdom()
    assert len(realm.tasks()) == 1 and realm.journal("system.warning")


def test_a_schedule_is_found_by_either_name(realm: Realm) -> None:
    scheduled(realm)
    table = Table(load(realm.root / FOLDER))
    assert find(table, "daily-test") == find(table, "gen-test:daily-test")
    with pytest.raises(MessageUnknown, match="gen-test:daily-test"):
        find(table, "weekly")


def test_a_cron_line_that_never_comes_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="never comes|Bad"):
        cron.check("0 0 31 2 *", "UTC", "x")


@everywhere
def test_a_clock_that_was_ahead_silences_no_schedule(realm: Realm, clock: ManualClock) -> None:
    scheduled(realm)
    realm.run_kingdom()
    clock.step_wall(15 * 86400)
    realm.run_kingdom()
    assert len(realm.tasks()) == 1  # by this clock it was time
    clock.step_wall(-15 * 86400)
    realm.run_kingdom()
    assert read_sent(realm.home) == {"gen-test:daily-test": "2026-02-09T21:59:30.000Z"}
    assert len(realm.tasks()) == 1  # still ready, although it was published at a later date
    clock.advance(31)
    realm.run_kingdom()
    assert len(realm.tasks()) == 2
    assert read_sent(realm.home) == {"gen-test:daily-test": "2026-02-09T22:00:00.000Z"}
