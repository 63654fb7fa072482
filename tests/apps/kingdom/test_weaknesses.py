"""What was broken in the original, by its number in the list of its weaknesses: each is a test here."""

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from pabal.apps.kingdom.documents import Event, SoldierResult, read
from pabal.apps.kingdom.general.role import General
from pabal.apps.kingdom.king.dispatch import Dispatch, health_of
from pabal.apps.kingdom.king.role import tasks
from pabal.apps.kingdom.layout import TASKS
from pabal.apps.kingdom.roles import reclaim
from pabal.apps.kingdom.sessions import Sessions
from pabal.apps.kingdom.status import waiting_events
from pabal.clock import SystemClock
from pabal.runtime.heartbeat import read_pulse
from pabal.runtime.process import Command
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import PABAL, Realm, eventually, everywhere, saying


@everywhere
def test_1_the_task_of_a_general_that_crashed_comes_back_by_its_lease(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    realm.event()
    realm.run_kingdom()
    [lost] = realm.home.queue(TASKS, "gen-pr").lease(visibility=realm.home.config.lease_seconds)
    clock.advance(realm.home.config.lease_seconds + 1)
    realm.lead()
    assert [result["task_id"] for result in realm.results()] == [lost.message.id]


@everywhere
def test_1_and_at_once_when_the_general_is_started_again(realm: Realm) -> None:
    realm.general()
    realm.general("gen-other", subscribes=[])
    realm.event()
    realm.run_kingdom()
    realm.home.queue(TASKS, "gen-pr").lease()
    assert reclaim(realm.home, TASKS, "gen-other") == 0
    assert reclaim(realm.home, TASKS, "gen-pr") == 1
    realm.lead()
    assert len(realm.results()) == 1


@everywhere
def test_1_a_task_that_brings_its_general_down_again_and_again_is_given_up_with_a_result(realm: Realm) -> None:
    realm.general()
    realm.event()
    realm.run_kingdom()
    for _ in range(10):
        assert realm.home.queue(TASKS, "gen-pr").lease()
        reclaim(realm.home, TASKS, "gen-pr")
    assert realm.home.queue(TASKS, "gen-pr").lease() == []
    [result] = realm.results()
    assert result["status"] == "failed" and "its general died 10 times in a row" in result["error"]
    realm.run_kingdom()
    assert "evt-1" in realm.completed() and "its general died 10 times" in realm.notices()[-1]["content"]


@everywhere
def test_2_a_king_that_dies_in_the_middle_of_a_dispatch_makes_one_task(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm.general()
    realm.event()

    class Killed(BaseException):
        pass

    def die(self: Dispatch, done: object) -> None:
        raise Killed

    for where in ("_outcome", "_note"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Dispatch, where, lambda self, *args: die(self, args))
            realm.run_kingdom()
        reclaim(realm.home, "events")
    realm.run_kingdom()
    realm.run_kingdom()
    assert len(realm.tasks()) == 1 and len(realm.notices()) == 1


@everywhere
def test_3_a_killed_soldier_is_tried_again_with_a_rest_and_reaches_the_king(realm: Realm, clock: ManualClock) -> None:
    realm.general(script="import os; os.kill(os.getpid(), 9)")
    realm.event()
    realm.run_kingdom()
    for number in range(3):
        assert realm.results() == []
        realm.lead()
        assert realm.home.queue(TASKS).counts()[State.DELAYED] == (number < 2), "it rests before the next try"
        clock.advance(61)
    [result] = realm.results()
    assert result["status"] == "killed"
    realm.run_kingdom()
    assert realm.notices()[-1]["content"].startswith("❌ github.pr.assigned — the soldier died (signal 9)")


def test_4_the_reason_of_the_last_failure_is_told_and_the_result_fits_its_schema(
    realm: Realm, clock: ManualClock
) -> None:
    realm.general(script=saying(status="failed", error="quota exceeded"))
    realm.event()
    realm.run_kingdom()
    for _ in range(3):
        realm.lead()
        clock.advance(61)
    [result] = realm.results()
    own = {name: value for name, value in result.items() if name in SoldierResult.__struct_fields__}
    assert read(SoldierResult, own).error == "quota exceeded"
    realm.run_kingdom()
    assert "quota exceeded" in realm.notices()[-1]["content"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_5_an_empty_register_or_reading_switches_neither_cap_nor_gate_off(realm: Realm, text: str) -> None:
    realm.general()
    (realm.root / "state/sessions.json").write_text(text)
    for number in range(5):
        realm.event(f"evt-{number}")
    realm.run_kingdom()
    assert len(realm.tasks()) == 3 and Sessions(realm.root).all() == []
    (realm.root / "state/resources.json").write_text(text)
    assert health_of(realm.home).level == "orange"


def test_6_a_heartbeat_is_a_finished_pass_and_a_hung_role_has_none(living: Realm) -> None:
    living.general()
    king = living.start("role", "king")
    beat = living.root / "state/king/heartbeat"
    eventually(beat.exists, lambda: living.log)
    os.kill(king.pid, signal.SIGSTOP)
    try:
        time.sleep(0.3)
        assert read_pulse(beat, SystemClock(), patience=0.2).state == "hung"
    finally:
        os.kill(king.pid, signal.SIGCONT)
    living.event()
    eventually(lambda: read_pulse(beat, SystemClock(), patience=5).state == "ok")
    king.kill()
    king.wait()
    assert read_pulse(beat, SystemClock()).state == "gone", "nobody beats on for the dead"


def test_9_low_priority_is_never_starved_and_order_among_equals_is_age(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    realm.king(concurrency={"max_soldiers": 1})
    realm.event("evt-zz-older", priority="low")
    clock.advance(1)
    realm.event("evt-aa-younger", priority="low")
    clock.advance(700)
    order: list[str] = []
    dispatch = realm.dispatcher()
    for number in range(25):  # something more important comes all the time
        realm.home.emit([Event(id=f"evt-{number:03}", type="github.pr.assigned", priority="high")])
        dispatch.step()
        [task] = realm.tasks()
        order.append(task["event_id"])
        realm.home.queue(TASKS, "gen-pr").lease()[0].ack()
        clock.advance(1)
    assert order.index("evt-zz-older") == 9 and order.index("evt-aa-younger") == 19


def test_9_a_dispatch_does_not_start_a_process(realm: Realm) -> None:
    realm.general()
    realm.event()
    before = len(os.listdir(f"/proc/{os.getpid()}/task"))
    realm.run_kingdom()
    assert len(os.listdir(f"/proc/{os.getpid()}/task")) == before


def test_13_ids_past_999_live(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    day = time.strftime("%Y%m%d", time.gmtime(clock.now()))
    (realm.root / "state/king/task-seq").write_text(f"{day}:999\n")
    realm.event()
    realm.run_kingdom()
    [task] = realm.tasks()
    assert task["id"] == f"task-{day}-1000"
    realm.lead()
    realm.run_kingdom()
    assert "evt-1" in realm.completed()


def test_13_a_malformed_event_is_set_aside_not_retried_for_ever(tmp_path: Path, clock: ManualClock) -> None:
    realm = Realm(tmp_path / "home", "", clock)
    with closing(realm):
        (realm.root / "queue/events/pending/bad.json").write_text("{")
        realm.run_kingdom()
        clock.advance(10)
        realm.run_kingdom()
        assert os.listdir(realm.root / "queue/events/pending") == []
        [event] = waiting_events(realm.home, 10)
        assert event["why"].startswith("malformed: no JSON")


def test_13_a_retry_waits_for_its_time_in_the_files_too(tmp_path: Path, clock: ManualClock) -> None:
    realm = Realm(tmp_path / "home", "", clock)
    with closing(realm):
        realm.general(script="import sys; sys.exit(1)")
        realm.event()
        realm.run_kingdom()
        realm.lead()
        [path] = (realm.root / "queue/tasks/pending").iterdir()
        assert json.loads(path.read_text())["status"] == "pending"
        assert realm.home.queue(TASKS).counts()[State.DELAYED] == 1


def test_14_a_wildcard_takes_what_it_covers_and_the_rest_has_another_owner(realm: Realm) -> None:
    realm.general("gen-a", subscribes=["github.pr.*"])
    realm.general("gen-b", subscribes=["github.*"])
    realm.event("evt-1", "github.pr.review.requested")
    realm.event("evt-2", "github.issue.assigned")
    realm.run_kingdom()
    assert {task["event_id"]: task["target_general"] for task in realm.tasks()} == {"evt-1": "gen-a", "evt-2": "gen-b"}


def test_15_a_hung_role_is_ended_with_sigterm_then_sigkill_and_its_place_is_free(living: Realm) -> None:
    living.general()
    watch = FdWatch()
    command = Command(
        argv=(*PABAL, "kingdom", "role", "king", "--home", str(living.root)),
        cwd=living.root,
        env=living.variables,
    )
    log = living.root / "logs/system.log"
    supervisor = Supervisor({"king": command}, clock=SystemClock(), watch=watch, output=lambda name: log)
    beat = living.root / "state/king/heartbeat"

    def pid() -> int:
        found = read_pulse(beat, SystemClock()).beat
        return found.pid if found else 0

    try:
        supervisor.step()
        eventually(beat.exists)
        first = pid()
        os.kill(first, signal.SIGSTOP)  # hung: SIGTERM alone would not end it
        [post] = supervisor._slots.values()
        assert post.child is not None
        assert post.child.stop(0.2) == -signal.SIGKILL
        supervisor.step()

        def again() -> bool:
            supervisor.step()
            return pid() not in (0, first)

        eventually(again)
        os.kill(pid(), 0)
    finally:
        supervisor.stop(5)
        watch.close()


def test_a_new_king_has_what_the_old_one_had_in_hand(realm: Realm) -> None:
    realm.general()
    realm.event()
    assert realm.home.queue("events", "normal.github.pr.assigned").lease()
    reclaim(realm.home, "events")
    for task in tasks(realm.home):
        task.step()
    assert len(realm.tasks()) == 1


def test_a_general_without_a_manifest_says_so(realm: Realm) -> None:
    from pabal.errors import InvalidConfig

    with closing(FdWatch()) as watch, closing(realm.home.watch(TASKS)) as arrivals:
        with pytest.raises(InvalidConfig, match="no general gen-x"):
            General(realm.home, "gen-x", watch, arrivals)
