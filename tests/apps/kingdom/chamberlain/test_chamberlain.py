"""What the chamberlain measures, reports and cleans up."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.kingdom.chamberlain.alerts import Alert, Alerts
from pabal.apps.kingdom.chamberlain.journal_reader import rotate
from pabal.apps.kingdom.chamberlain.role import Chamberlain, clean
from pabal.apps.kingdom.chamberlain.settings import FILE, Health, Retention, Settings
from pabal.apps.kingdom.config import read_config
from pabal.apps.kingdom.envoy.questions import Question, Questions
from pabal.apps.kingdom.health import level_of
from pabal.apps.kingdom.king.dispatch import health_of
from pabal.errors import InvalidConfig
from pabal.policy.retention import LOOK_SECONDS
from pabal.runtime.resources import Load, MachineLoad
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import Realm

DAY = 86400.0


class Gauge:
    """A machine that is as busy as a test wants it."""

    def __init__(self) -> None:
        self.load = Load(10.0, 10.0, 10.0)

    def __call__(self, folder: Path) -> Load:
        return self.load


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


@pytest.fixture
def chamberlain(realm: Realm, gauge: Gauge) -> Chamberlain:
    realm.system(roles=["chamberlain"])
    return Chamberlain(realm.home, Settings(), gauge)


def rounds(chamberlain: Chamberlain, clock: ManualClock, count: int = 1) -> None:
    for _ in range(count):
        clock.advance(30)
        chamberlain.step()


def told(realm: Realm) -> list[str]:
    return [notice["content"] for notice in realm.notices()]


def test_a_reading_of_this_machine_is_a_share_of_it(tmp_path: Path) -> None:
    measure = MachineLoad()
    for reading in (measure(tmp_path), measure(tmp_path)):
        assert 0 <= reading.cpu <= 100 and 0 < reading.memory <= 100 and 0 <= reading.disk <= 100


@pytest.mark.parametrize(
    ("value", "before", "after"),
    [
        (60, "green", "green"),
        (61, "green", "yellow"),
        (56, "yellow", "yellow"),
        (55, "yellow", "green"),
        (95, "green", "red"),
        (86, "red", "red"),
        (85, "red", "orange"),
        (76, "red", "orange"),
        (20, "red", "green"),
    ],
)
def test_a_level_begins_above_its_threshold_and_ends_below_its_margin(value: float, before: str, after: str) -> None:
    assert level_of(value, before, Health()) == after


def test_the_king_reads_what_the_chamberlain_measures(
    realm: Realm, chamberlain: Chamberlain, gauge: Gauge, clock: ManualClock
) -> None:
    gauge.load = Load(20.0, 70.0, 10.0)
    rounds(chamberlain, clock)
    assert health_of(realm.home).level == "yellow"
    assert realm.journal("system.health_changed") == [{"before": "green", "now": "yellow"}]
    clock.advance(121)
    assert health_of(realm.home).level == "orange"  # nobody measures any more


def test_10_red_is_sent_once_and_again_only_when_it_is_over(
    realm: Realm, chamberlain: Chamberlain, gauge: Gauge, clock: ManualClock
) -> None:
    gauge.load = Load(99.0, 10.0, 10.0)
    rounds(chamberlain, clock, 20)
    assert len(told(realm)) == 1 and "processor 99 %" in told(realm)[0]
    gauge.load = Load(97.0, 12.0, 95.0)
    rounds(chamberlain, clock, 5)
    assert len(told(realm)) == 2 and "disk is 95 % full" in told(realm)[1]
    gauge.load = Load(5.0, 5.0, 5.0)
    rounds(chamberlain, clock, 5)
    assert len(told(realm)) == 4 and all("over:" in text for text in told(realm)[2:])


def test_a_busy_machine_is_no_alarm_and_one_that_stays_at_its_limit_is_one(
    realm: Realm, chamberlain: Chamberlain, gauge: Gauge, clock: ManualClock
) -> None:
    for cpu in (99.0, 20.0, 98.0, 30.0, 97.0, 40.0):
        gauge.load = Load(cpu, 10.0, 10.0)
        rounds(chamberlain, clock)
    assert told(realm) == [] or told(realm)[0].startswith("[alert] the machine"), "the first reading stands alone"
    sent = len(told(realm))
    assert sent <= 2
    for cpu in (100.0, 100.0, 100.0, 100.0, 95.0, 80.0, 95.0, 85.0, 92.0):
        gauge.load = Load(cpu, 10.0, 10.0)
        rounds(chamberlain, clock)
    assert len(told(realm)) == sent + 1


def test_10_alerts_of_one_second_have_ids_of_their_own(realm: Realm) -> None:
    Alerts(realm.home).send([Alert("a", "bad", "first"), Alert("b", "bad", "second")])
    assert len({notice["id"] for notice in realm.notices()}) == 2


def test_10_a_chamberlain_who_died_before_he_could_remember_does_not_tell_twice(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Alerts(realm.home)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(first._sent), "save", lambda self, value: (_ for _ in ()).throw(KeyboardInterrupt()))
        first.send([Alert("disk", "full", "the disk is full")])
    for _ in range(2):
        Alerts(realm.home).send([Alert("disk", "full", "the disk is full")])
    assert told(realm) == ["[alert] the disk is full"]
    Alerts(realm.home).send([])
    Alerts(realm.home).send([Alert("disk", "full", "the disk is full")])
    assert len(told(realm)) == 3  # over, and again


def test_12_failures_in_a_row_are_counted_over_rounds_restarts_and_rotations(
    realm: Realm, gauge: Gauge, clock: ManualClock
) -> None:
    realm.system(roles=[])
    note = realm.home.journal.note
    for number in range(3):
        assert told(realm) == []
        note("task.failed", "king", task=f"task-{number}", general="gen-pr", reason="x")
        rounds(Chamberlain(realm.home, Settings(), gauge), clock)
        clock.advance(DAY)  # the journal is put aside in between
    assert told(realm) == ["[alert] gen-pr failed 3 times in a row"]
    assert len(list((realm.root / "logs").glob("events-*.log"))) >= 2
    note("task.completed", "king", task="task-4", general="gen-pr")
    rounds(Chamberlain(realm.home, Settings(), gauge), clock, 1)
    assert told(realm)[1:] == ["[alert] over: gen-pr failed 3 times in a row"]


def test_12_five_timeouts_within_an_hour_are_sent_and_five_in_a_day_are_not(
    realm: Realm, chamberlain: Chamberlain, clock: ManualClock
) -> None:
    for _ in range(5):
        realm.home.journal.note("soldier.timeout", "gen-pr", task="t")
        rounds(chamberlain, clock)
        clock.advance(1200)
    assert told(realm) == []
    for _ in range(3):
        realm.home.journal.note("soldier.timeout", "gen-pr", task="t")
        rounds(chamberlain, clock)
    assert told(realm) == ["[alert] 5 soldiers ran out of time within 60 minutes"]


def test_a_line_written_into_a_file_that_was_just_put_aside_is_counted(
    realm: Realm, chamberlain: Chamberlain, clock: ManualClock
) -> None:
    realm.home.journal.note("task.failed", "king", task="a", general="gen-pr")
    rounds(chamberlain, clock)
    with (realm.root / "logs/events.log").open("ab") as late:
        clock.advance(DAY)
        assert rotate(realm.home, 1_000_000)
        line = {"ts": "2026-01-01T00:00:00Z", "type": "task.failed", "actor": "king", "data": {"general": "gen-pr"}}
        late.write(json.dumps(line).encode() + b"\nno json\n")
    realm.home.journal.note("task.failed", "king", task="c", general="gen-pr")
    rounds(chamberlain, clock)
    assert "gen-pr failed 3 times in a row" in told(realm)[-1]


def test_a_log_that_grew_too_large_is_put_aside_and_goes_on_empty(realm: Realm) -> None:
    system = realm.root / "logs/system.log"
    with system.open("ab") as role:
        role.write(b"x" * 2000)
        role.flush()
        assert rotate(realm.home, 1000)
        role.write(b"more")
    assert system.read_bytes() == b"more"
    assert [path.stat().st_size for path in system.parent.glob("system-*.log")] == [2000]


def age(path: Path, clock: ManualClock, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    os.utime(path, (clock.now() - days * DAY,) * 2)
    return path


def test_what_is_old_goes_and_what_is_needed_stays(realm: Realm, chamberlain: Chamberlain, clock: ManualClock) -> None:
    clock.advance((DAY + 4 * 3600 - clock.now() % DAY) % DAY)  # four in the morning
    root = realm.root
    realm.general()
    realm.event()
    realm.run_kingdom()
    task = realm.tasks()[0]["id"]
    Questions(realm.home).ask(Question(task_id="task-20250101-002", text="?", asked_at="2999-01-01T00:00:00Z"))
    gone = [
        age(root / "state/prompts/task-20250101-001.md", clock, 4),
        age(root / "state/prompts/task-20250101-001.json", clock, 4),
        age(root / "state/sentinel/seen/evt-old", clock, 31),
        age(root / "state/results/task-20250101-001-raw.json", clock, 8),
        age(root / "logs/sessions/soldier-1.err", clock, 8),
        age(root / "logs/events-20250101.log", clock, 8),
    ]
    kept = [
        age(root / "state/prompts" / f"{task}.md", clock, 4),
        age(root / "state/prompts" / f"{task}.json", clock, 4),
        age(root / "state/results/task-20250101-002-checkpoint.json", clock, 8),
        age(root / "state/sentinel/seen/evt-new", clock, 29),
        root / "config/system.yaml",
    ]
    rounds(chamberlain, clock)
    assert [path for path in gone if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    again = age(root / "state/sentinel/seen/evt-old", clock, 31)
    rounds(chamberlain, clock)
    assert again.exists()  # once a day


def test_red_cleans_up_early(realm: Realm, chamberlain: Chamberlain, gauge: Gauge, clock: ManualClock) -> None:
    clock.advance(DAY - clock.now() % DAY + 60)  # before three in the morning
    old = age(realm.root / "state/prompts/old.md", clock, 5)
    rounds(chamberlain, clock)
    assert old.exists()
    gauge.load = Load(99.0, 1.0, 1.0)
    rounds(chamberlain, clock, 4)
    clock.advance(LOOK_SECONDS)
    rounds(chamberlain, clock)
    assert not old.exists()


def test_worktrees_that_nobody_needs_are_removed(realm: Realm, clock: ManualClock) -> None:
    Questions(realm.home).ask(Question(task_id="task-20250101-002", text="?", asked_at="2025-01-01T00:00:00Z"))
    (realm.root / "state/results/task-20250101-002-checkpoint.json").write_text(
        '{"task_id": "task-20250101-002", "target_general": "gen-pr", "workspace": "our/repo@task-20250101-001"}'
    )
    paths = {}
    for number, days in ((1, 9), (2, 9), (3, 9), (4, 1)):
        path = realm.root / f"workspace/gen-pr/our/repo@task-20250101-00{number}"
        (path / "src").mkdir(parents=True)
        at = clock.now() - days * DAY
        os.utime(path, (at, at))
        paths[number] = path
    clean(realm.home, Retention(), clock.now())
    assert [number for number, path in paths.items() if path.exists()] == [1, 2, 4]


def test_a_clock_that_is_ahead_for_a_while_removes_no_file(
    realm: Realm, chamberlain: Chamberlain, clock: ManualClock
) -> None:
    young = age(realm.root / "state/prompts/young.md", clock, 0)
    for _ in range(3):
        clock.step_wall(400 * DAY)
        rounds(chamberlain, clock, 2)
        clock.step_wall(-400 * DAY)
        rounds(chamberlain, clock, 2)
    assert young.exists()


def test_events_that_nobody_dispatches_and_questions_that_nobody_answers_are_sent(
    realm: Realm, chamberlain: Chamberlain, clock: ManualClock
) -> None:
    realm.event()
    Questions(realm.home).ask(Question(task_id="task-20250101-002", text="?", asked_at="2025-01-01T00:00:00Z"))
    rounds(chamberlain, clock)
    assert told(realm) == ["[alert] task-20250101-002 has asked for 7 days"]
    clock.advance(1801)
    rounds(chamberlain, clock, 2)
    assert told(realm)[1:] == ["[alert] events have waited for more than 30 minutes"]


@pytest.mark.parametrize(
    "mistake", [{"health": {"red": 50}}, {"interval_seconds": 0}, {"retention": {"seen": 0}}, {"helth": {}}]
)
def test_a_mistake_in_the_configuration_is_named(realm: Realm, mistake: dict[str, Any]) -> None:
    (realm.root / "config/chamberlain.yaml").write_text(json.dumps(mistake))
    with pytest.raises(InvalidConfig, match=r"chamberlain\.yaml"):
        read_config(realm.root / FILE, Settings)
