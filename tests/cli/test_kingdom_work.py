"""`pabal kingdom` with events and tasks by hand: handed in, shown, retried, cancelled, set aside, routed, checked."""

import json
import os
from collections.abc import Iterator

import pytest

from pabal.apps.kingdom.documents import Task
from pabal.apps.kingdom.envoy.questions import Question, Questions
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.role import tasks as king_tasks
from pabal.store import State
from tests.apps.kingdom.realm import SUCCESS, eventually, saying
from tests.cli.command import Pabal
from tests.cli.test_kingdom import Kingdom


@pytest.fixture(params=["", "sqlite:state/kingdom.db"], ids=["files", "sqlite"])
def kingdom(pabal: Pabal, request: pytest.FixtureRequest) -> Iterator[Kingdom]:
    found = Kingdom(pabal, request.param)
    with (found.root / "config/system.yaml").open("a") as file:
        file.write("roles: [king]\n")
    yield found


def general(kingdom: Kingdom, script: str = SUCCESS, name: str = "gen-pr", **fields: object) -> None:
    package = kingdom.package(name, **fields)
    (package / "soldier.py").write_text(script)
    kingdom("install-general", "--force", str(package))


def handed_in(kingdom: Kingdom, *documents: object) -> list[str]:
    path = kingdom.pabal.place / "events.json"
    path.write_text("\n".join(map(json.dumps, documents)))
    return str(kingdom("submit", str(path))).splitlines()


def task_of(kingdom: Kingdom, *more: str) -> dict[str, str]:
    [line] = kingdom("tasks", "--json", *more).splitlines()
    found: dict[str, str] = json.loads(line)
    return found


def test_events_are_handed_in_worked_on_and_shown_from_end_to_end(kingdom: Kingdom) -> None:
    general(kingdom, saying(status="failed", error="no access"), retry={"max_attempts": 0})
    first, second = handed_in(kingdom, {"id": "evt-1", "type": "github.pr.assigned"}, {"type": "nobody.cares"})
    assert first == "evt-1" and second.startswith("evt-local-")
    assert handed_in(kingdom, {"id": "evt-1", "type": "github.pr.assigned"}) == ["evt-1 was handed in before"]
    ran = kingdom.pabal("kingdom", "submit", "-", "--home", str(kingdom.root), stdin='{"id": "no spaces"}')
    assert ran.code == 2 and "event 1: " in ran.err and "Object" not in ran.err
    up = kingdom.pabal.start("kingdom", "up", "--home", str(kingdom.root))
    eventually(lambda: "evt-1" in kingdom("events", "--completed"), lambda: kingdom("logs", "--system"))
    task = task_of(kingdom, "--completed")
    assert task["why"] == "failed: no access"
    shown = kingdom("show", "evt-1")
    for part in ("event    evt-1  github.pr.assigned  completed", task["id"], "failed: no access", "[start]", "❌"):
        assert part in shown, shown
    assert kingdom("show", task["id"]) == shown
    assert json.loads(kingdom("show", "evt-1", "--json"))["tasks"][0]["result"]["error"] == "no access"
    general(kingdom)
    again = kingdom("retry", task["id"])
    assert again != task["id"] and kingdom.fails("retry", task["id"])[0] == 2
    eventually(lambda: "success: done well" in kingdom("tasks", "--completed"))
    assert "nobody hears them: the kingdom has no envoy" in kingdom("messages", "--task", again)
    assert again in kingdom("messages", "--json")
    assert kingdom("down") == "down" and up.wait(30) == 0
    assert kingdom.fails("show", "evt-unknown")[0] == 3


def test_a_running_task_and_a_waiting_one_are_cancelled(kingdom: Kingdom) -> None:
    general(kingdom, "import time\nopen('begun', 'w')\ntime.sleep(1000)")
    handed_in(kingdom, {"id": "evt-1", "type": "github.pr.assigned"}, {"id": "evt-2", "type": "github.pr.assigned"})
    up = kingdom.pabal.start("kingdom", "up", "--home", str(kingdom.root))
    eventually((kingdom.root / "workspace/gen-pr/begun").exists, lambda: kingdom("logs", "--system"))
    tasks = [json.loads(line) for line in kingdom("tasks", "--json").splitlines()]
    waits, runs = sorted(tasks, key=lambda task: task["why"].startswith("runs"))
    assert kingdom("cancel", waits["id"], "--as", "ann") == f"{waits['id']} is cancelled"
    assert "stops the soldier" in kingdom("cancel", runs["id"])
    eventually(lambda: len(kingdom("events", "--completed", "--json").splitlines()) == 2)
    assert "skipped: cancelled by ann" in kingdom("tasks", "--completed") + kingdom("show", waits["id"])
    assert kingdom("tasks") == "none" and kingdom.fails("cancel", runs["id"])[0] == 2
    assert kingdom("down") == "down" and up.wait(30) == 0


def test_a_task_of_a_general_that_is_gone_is_given_to_another(kingdom: Kingdom) -> None:
    general(kingdom)
    task = kingdom("run-schedule", "daily")
    (kingdom.root / "config/generals/gen-pr.yaml").unlink()
    general(kingdom, name="gen-new", subscribes=["new.*"])
    code, told = kingdom.fails("retry", task)
    assert code == 2 and "no general gen-pr" in told and "gen-new" in told
    again = kingdom("retry", task, "--general", "gen-new")
    assert (task_of(kingdom)["id"], task_of(kingdom)["general"]) == (again, "gen-new")


def test_what_is_set_aside_is_taken_in_again_or_put_away(kingdom: Kingdom) -> None:
    if "sqlite" in (kingdom.root / "config/system.yaml").read_text():
        return  # nobody puts a malformed file there
    for name in ("bad", "worse"):
        (kingdom.root / f"queue/events/pending/evt-{name}.json").write_text('{"id": "evt-bad", "type": 7}')
    with Home.open(kingdom.root) as home:
        eventually(
            lambda: home.queue("events", "x").lease() == [] and home.queue("events").counts()[State.CORRUPT] == 2
        )
    code, shown = kingdom.fails_with_output("status")
    assert code == 1 and "state/queues/events/corrupt/evt-bad.json" in shown and "expected str, found int" in shown
    code, told = kingdom.fails("requeue", "evt-bad")
    assert code == 2 and "still malformed" in told and "state/queues/events/corrupt/evt-bad.json" in told
    (kingdom.root / "state/queues/events/corrupt/evt-bad.json").write_text('{"id": "evt-bad", "type": "town.visitor"}')
    assert kingdom("requeue", "evt-bad") == "evt-bad is back in events"
    assert "town.visitor" in kingdom("events")
    assert kingdom("dismiss", "evt-worse") == "evt-worse is in state/dismissed/events/evt-worse.json"
    assert (kingdom.root / "state/dismissed/events/evt-worse.json").exists()
    assert kingdom.fails("dismiss")[0] == 2 and kingdom.fails("dismiss", "evt-worse")[0] == 3
    kingdom("dismiss", "--all")
    assert "evt-worse" not in kingdom.fails_with_output("status")[1]


def test_generals_and_routes_say_who_gets_what_and_when(kingdom: Kingdom) -> None:
    general(kingdom, max_soldiers=2)
    shown = kingdom("generals")
    assert "gen-pr" in shown and "0 of 2" in shown and "daily at 20" in shown
    assert "gen-pr" in kingdom("routes", "github.pr.assigned") and "github.pr.*" in kingdom("routes", "github.pr.x")
    assert "none: it is completed with that reason" in kingdom("routes", "jira.x")
    assert "schedule daily, at 20" in kingdom("routes")


def test_check_names_what_is_missing_and_ends_with_one(kingdom: Kingdom) -> None:
    general(kingdom)
    assert "!!" not in kingdom("check")
    package = kingdom.package("gen-two", subscribes=["two.*"], command=["no-such-soldier"], cc_plugins=["friday"])
    ran = kingdom.pabal("kingdom", "install-general", str(package), "--home", str(kingdom.root))
    assert ran.code == 0 and "no-such-soldier" in ran.err and "plugins/friday is not there" in ran.err
    code, shown = kingdom.fails_with_output("check")
    assert code == 1 and "no program 'no-such-soldier'" in shown and "plugins/friday" in shown


def test_a_soldier_is_tried_without_touching_its_task(kingdom: Kingdom) -> None:
    general(kingdom)
    task = kingdom("run-schedule", "daily")
    shown = kingdom("run-soldier", task, "--dry-run")
    assert "soldier.py" in shown and "KINGDOM_RESULT_PATH" in shown and "How to answer" in shown
    assert not list((kingdom.root / "workspace").rglob("trial-*"))
    assert "done well" in kingdom("run-soldier", task) and task_of(kingdom)["why"] == "waits for gen-pr"
    [folder] = (kingdom.root / "workspace").rglob("trial-*")
    (folder / "left").touch()
    kingdom("run-soldier", task)
    assert not (folder / "left").exists(), "each trial begins in an empty folder"


def test_queues_that_move_take_along_what_waits_and_nothing_starts_before(pabal: Pabal) -> None:
    kingdom = Kingdom(pabal, "")
    general(kingdom)
    handed_in(kingdom, {"id": "evt-1", "type": "github.pr.assigned"})
    task = kingdom("run-schedule", "daily")
    system = kingdom.root / "config/system.yaml"
    before = system.read_text()
    system.write_text("queues: sqlite:state/kingdom.db\nroles: [king]\n")
    code, told = kingdom.fails("up")
    assert code == 2 and "pabal kingdom move-queues" in told and "from files to 'sqlite:state/kingdom.db'" in told
    assert "move-queues" in kingdom.fails_with_output("status")[1]
    assert "events  1" in kingdom("move-queues") and "nothing to move" in kingdom("move-queues")
    assert task_of(kingdom)["id"] == task and "evt-1" in kingdom("events")
    system.write_text(before)
    kingdom("move-queues")
    assert task_of(kingdom)["id"] == task and "evt-1" in kingdom("events"), "nothing is taken for a duplicate of itself"
    malformed = kingdom.root / "queue/events/pending/evt-bad.json"
    malformed.write_text("{")
    os.utime(malformed, (1, 1))
    taken = kingdom.root / "queue/tasks/in_progress" / f"{task}.json"
    (kingdom.root / "queue/tasks/pending" / taken.name).rename(taken)
    with Home.open(kingdom.root) as home:
        home.queue("events", "x").lease()
    system.write_text("queues: sqlite:state/kingdom.db\nroles: [king]\n")
    assert "evt-bad of events is malformed" in kingdom.fails("move-queues")[1]
    system.write_text(before)
    kingdom("dismiss", "evt-bad")
    system.write_text("queues: sqlite:state/kingdom.db\nroles: [king]\n")
    assert f"another program has {task}.json in hand" in kingdom.fails("move-queues")[1]
    taken.rename(kingdom.root / "queue/tasks/pending" / taken.name)
    kingdom("move-queues")
    with Home.open(kingdom.root) as home:  # one event is dispatched, and its task waits
        for part in king_tasks(home):
            part.step()
    system.write_text(before + "roles: [king]\n")
    assert "move-queues" in kingdom.fails("up")[1]
    kingdom("move-queues")
    assert len(list((kingdom.root / "queue/events/dispatched").iterdir())) == 1
    up = pabal.start("kingdom", "up", "--home", str(kingdom.root))
    eventually(lambda: "evt-1" in kingdom("events", "--completed"), lambda: kingdom("logs", "--system"))
    eventually(lambda: task in kingdom("tasks", "--completed"), lambda: kingdom("logs", "--system"))
    assert kingdom.fails("move-queues")[0] == 6
    assert kingdom("down") == "down" and up.wait(30) == 0


def test_init_example_service_and_top(pabal: Pabal) -> None:
    kingdom = Kingdom(pabal, "")
    assert "gen-hello" in kingdom("init", "--example") and "hello.*" in kingdom("routes")
    assert "gen-hello" in kingdom("init", "--example"), "it may be repeated"
    (kingdom.root / "config/environment").write_text("# tokens\nSLACK_BOT_TOKEN='xoxb-1'\n")
    assert (
        "SLACK_BOT_TOKEN" not in kingdom("messages")
        and "ok  token SLACK_BOT_TOKEN" in kingdom.fails_with_output("check")[1]
    )
    unit = kingdom("install-service", "--show")
    assert f"PATH={os.environ['PATH']}" in unit, "soldiers find what they find in this shell"
    assert f"kingdom up --home {kingdom.root}" in unit and "TimeoutStopSec=30" in unit and "KillMode=mixed" in unit
    assert f"EnvironmentFile=-{kingdom.root}/config/environment" in unit
    assert kingdom.fails("install-service")[0] == 2
    pabal("kingdom", "submit", "-", "--home", str(kingdom.root), stdin='{"id": "evt-1", "type": "hello.world"}')
    shown = kingdom("top", "--once")
    for part in ("kingdom down", "gen-hello", "no soldier works", "evt-1"):
        assert part in shown


def test_needs_you_shows_all_that_waits_in_several_kingdoms_and_takes_answers_in_place(pabal: Pabal) -> None:
    kingdom = Kingdom(pabal, "")
    other = pabal.place / "other"
    pabal.ok("kingdom", "init", "--home", str(other))
    for home, task in ((kingdom.root, "task-20260101-001"), (other, "task-20260101-002")):
        with Home.open(home) as opened:
            text, at = f"Merge {task}?", "2026-01-01T00:00:00Z"
            Questions(opened).ask(Question(task_id=task, text=text, kind="confirm", asked_at=at))
            lost = Task(id="task-20260101-009", event_id="evt-9", type="x", target_general="gen-gone")
            opened.store.publish([opened.draft(lost)])
    bad = other / "queue/events/pending/evt-bad.json"
    bad.write_text("{")
    os.utime(bad, (1, 1))
    with Home.open(other) as opened:
        opened.queue("events", "x").lease()
    (other / "config/generals/gen-odd.yaml").write_text("name: [")
    both = ("needs-you", "--home", str(kingdom.root), "--home", str(other))
    shown = pabal.ok(*both)
    assert f"pabal kingdom answer task-20260101-002 TEXT --home {other}" in shown
    assert "evt-bad is malformed; mend state/queues/events/corrupt/evt-bad.json" in shown
    assert f"pabal kingdom requeue evt-bad --home {other}" in shown and "gen-odd.yaml" in shown
    assert shown.count("task-20260101-009 is for gen-gone") == 2
    assert shown.rindex("QUESTION") < shown.index("PROBLEM")
    told = pabal.ok(*both, "--answer", stdin="perhaps\nyes\n\n")
    assert "answer yes or no" in told and told.count("    answered") == 1
    assert "Merge task-20260101-001?" not in pabal.ok(*both) and "Merge task-20260101-002?" in pabal.ok(*both)
    with Home.open(kingdom.root) as opened:
        assert Questions(opened).find("task-20260101-001").answer == "yes"
    assert pabal(*both, "--answer", "--json").code == 2
