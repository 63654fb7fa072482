"""`pabal kingdom`: made, looked at, given generals, held up and let down by its commands."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.apps.kingdom.documents import Event
from pabal.apps.kingdom.envoy.questions import Question, Questions
from pabal.apps.kingdom.home import Home
from tests.apps.kingdom.realm import SUCCESS, eventually
from tests.cli.command import Pabal


class Kingdom:
    """A kingdom and the command, both at one place."""

    def __init__(self, pabal: Pabal, queues: str) -> None:
        self.pabal = pabal
        self.root = pabal.place / "kingdom"
        self("init", *(["--queues", queues] if queues else []))

    def __call__(self, *arguments: str) -> str:
        return self.pabal.ok("kingdom", *arguments, "--home", str(self.root))

    def status(self, *arguments: str) -> str:
        """Return the status, also of a kingdom that is down."""
        ran = self.pabal("kingdom", "status", *arguments, "--home", str(self.root))
        assert ran.code in (0, 1), ran
        return ran.out.rstrip("\n")

    def fails_with_output(self, *arguments: str) -> tuple[int, str]:
        ran = self.pabal("kingdom", *arguments, "--home", str(self.root))
        return ran.code, ran.out

    def fails(self, *arguments: str) -> tuple[int, str]:
        ran = self.pabal("kingdom", *arguments, "--home", str(self.root))
        return ran.code, ran.err

    def package(self, name: str = "gen-pr", **fields: object) -> Path:
        folder = self.pabal.place / name
        folder.mkdir(exist_ok=True)
        (folder / "soldier.py").write_text(SUCCESS)
        manifest = {
            "name": name,
            "description": "for a test",
            "timeout_seconds": 30,
            "subscribes": ["github.pr.*"],
            "schedules": [{"name": "daily", "cron": "0 9 * * *", "task_type": "look"}],
            "command": [sys.executable, str(self.root / "generals" / name / "soldier.py")],
            **fields,
        }
        (folder / "manifest.yaml").write_text(json.dumps(manifest))
        return folder

    def emit(self, *events: Event) -> None:
        with Home.open(self.root) as home:
            home.emit(events)


@pytest.fixture(params=["", "sqlite:state/kingdom.db"], ids=["files", "sqlite"])
def kingdom(pabal: Pabal, request: pytest.FixtureRequest) -> Iterator[Kingdom]:
    yield Kingdom(pabal, request.param)


def test_init_makes_the_tree_and_changes_nothing_that_is_there(kingdom: Kingdom) -> None:
    (kingdom.root / "config/king.yaml").write_text("concurrency: {max_soldiers: 7}\n")
    kingdom("init")
    assert "7" in (kingdom.root / "config/king.yaml").read_text()
    for folder in ("queue/events/completed", "state/results", "config/generals", "logs", "workspace"):
        assert (kingdom.root / folder).is_dir(), folder


def test_a_folder_without_a_kingdom_is_told(pabal: Pabal) -> None:
    ran = pabal("kingdom", "status", "--home", str(pabal.place))
    assert ran.code == 3 and "pabal kingdom init" in ran.err


def test_a_mistake_in_the_configuration_is_named_and_the_rest_can_be_looked_at(kingdom: Kingdom) -> None:
    (kingdom.root / "config/king.yaml").write_text("concurrency: {max_soldiers: none}\n")
    code, told = kingdom.fails("up")
    assert code == 2 and "king.yaml" in told and "max_soldiers" in told
    assert any("king.yaml" in line and "max_soldiers" in line for line in kingdom.status().splitlines())
    assert kingdom("events") == "none"
    (kingdom.root / "config/system.yaml").write_text("lease_seconds: soon\n")
    code, told = kingdom.fails("status")
    assert code == 2 and "system.yaml" in told and "lease_seconds" in told


def test_a_general_is_installed_once_and_for_types_that_nobody_has(kingdom: Kingdom) -> None:
    assert kingdom("install-general", str(kingdom.package())) == "gen-pr: github.pr.*; 1 schedule"
    assert (kingdom.root / "generals/gen-pr/soldier.py").exists()
    code, told = kingdom.fails("install-general", str(kingdom.package()))
    assert code == 2 and "--force" in told
    kingdom("install-general", "--force", str(kingdom.package(subscribes=["github.pr.*", "a.b"])))
    code, told = kingdom.fails("install-general", str(kingdom.package("gen-two", subscribes=["a.b"])))
    assert code == 2 and "claimed by gen-pr" in told
    kingdom("install-general", str(kingdom.package("gen-three", subscribes=["github.pr.assigned"])))


def test_a_package_with_a_bad_cron_line_is_refused(kingdom: Kingdom) -> None:
    bad = kingdom.package(schedules=[{"name": "daily", "cron": "99 9 * * *", "task_type": "look"}])
    code, told = kingdom.fails("install-general", str(bad))
    assert code == 2 and "99 9 * * *" in told


def test_a_general_with_tasks_is_not_removed(kingdom: Kingdom) -> None:
    kingdom("install-general", str(kingdom.package()))
    task = kingdom("run-schedule", "daily")
    code, told = kingdom.fails("remove-general", "gen-pr")
    assert code == 2 and task in told
    with Home.open(kingdom.root) as home:
        home.queue("tasks", "gen-pr").lease()[0].ack()
    assert kingdom("remove-general", "gen-pr") == "gen-pr removed"
    assert kingdom.fails("remove-general", "gen-pr")[0] == 3
    assert kingdom.fails("run-schedule", "daily")[0] == 3


def test_events_and_tasks_say_why_they_wait(kingdom: Kingdom) -> None:
    assert kingdom("events") == "none" and kingdom("tasks") == "none"
    kingdom.emit(Event(id="evt-1", type="github.pr.assigned"))
    (kingdom.root / "state/resources.json").write_text("")
    assert "held: orange (state/resources.json cannot be used" in kingdom("events")
    kingdom("install-general", str(kingdom.package()))
    task = kingdom("run-schedule", "gen-pr:daily")
    [line] = kingdom("tasks", "--json").splitlines()
    document = json.loads(line)
    assert (document["id"], document["general"], document["why"]) == (task, "gen-pr", "waits for gen-pr")
    assert kingdom("tasks", "--completed", "--limit", "5") == "none"


def test_status_shows_roles_queues_and_problems(kingdom: Kingdom) -> None:
    kingdom("install-general", str(kingdom.package()))
    (kingdom.root / "config/generals/bad.yaml").write_text("name: [")
    code, shown = kingdom.fails_with_output("status")
    assert code == 1 and "kingdom   down: `pabal kingdom up` starts it" in shown, "so a script notices it"
    assert "soldiers  0 of 3" in shown and "! skipped: " in shown and "bad.yaml" in shown
    with Home.open(kingdom.root) as home:
        Questions(home).ask(Question(task_id="task-20260101-001", text="merge?", asked_at="2026-01-01T00:00:00Z"))
    first, *_ = kingdom.status().splitlines()
    assert first.startswith("? task-20260101-001 asks for ") and first.endswith(" days: merge?")
    document = json.loads(kingdom.status("--json"))
    assert {role["name"]: role["state"] for role in document["roles"]}["gen-pr"] == "gone"
    assert document["queues"]["events"] == {"pending": 0, "dispatched": 0, "failed": 0, "completed": 0}
    assert document["health"] == "green" and document["up"] is None


def test_a_kingdom_goes_up_works_is_diagnosed_and_goes_down(kingdom: Kingdom) -> None:
    with (kingdom.root / "config/system.yaml").open("a") as file:
        file.write("roles: [king]\n")
    kingdom("install-general", str(kingdom.package()))
    up = kingdom.pabal.start("kingdom", "up", "--home", str(kingdom.root))
    kingdom.emit(Event(id="evt-1", type="github.pr.assigned"))
    eventually(lambda: "evt-1" in kingdom("events", "--completed"), lambda: kingdom("logs", "--system"))
    [line] = kingdom("tasks", "--completed", "--json").splitlines()
    task = json.loads(line)["id"]
    found = json.loads(kingdom("doctor", task, "--json"))
    assert found["result"]["status"] == "success" and found["prompt_bytes"] > 0 and found["soldier"]
    assert "soldier.spawned" in kingdom("doctor", task) and kingdom("doctor") == "no task failed lately"
    assert json.loads(kingdom("logs", "--json", "--lines", "1").splitlines()[-1])["type"] == "task.completed"
    told = kingdom("logs", "--task", task, "--since", "1h").splitlines()
    assert any("task created: general gen-pr" in line for line in told) and all(task in line for line in told)
    assert all("gen-pr" in line for line in kingdom("logs", "--general", "gen-pr").splitlines())
    assert kingdom("logs", "--task", "task-20260101-999") == ""
    assert kingdom("down", "--timeout", "30") == "down"
    assert up.wait(30) == 0
    assert kingdom.fails("down")[0] == 3
    assert kingdom.fails("doctor", "task-20260101-999")[0] == 3


def test_a_role_that_is_gone_while_the_kingdom_is_up_is_told_with_its_reason(kingdom: Kingdom) -> None:
    with (kingdom.root / "config/system.yaml").open("a") as file:
        file.write("roles: [king, sentinel]\n")
    (kingdom.root / "config/sentinel.yaml").write_text("polling: soon\n")
    with (kingdom.pabal.place / "told").open("w") as told:
        up = kingdom.pabal.start("kingdom", "up", "--home", str(kingdom.root), stderr=told)

    def status() -> str:
        return kingdom.status()

    eventually(lambda: "sentinel is gone: InvalidConfig" in status() and "king is gone" not in status(), status)
    health, _, problem, *_ = [line for line in status().splitlines() if "sentinel" in line and "gone" in line]
    assert health == "health    incomplete: sentinel gone; the machine is green"
    assert "sentinel.yaml" in problem and "pabal kingdom logs --system" in problem
    told_by_up = kingdom.pabal.place / "told"
    eventually(lambda: "sentinel ended with 2 and is started again" in told_by_up.read_text())
    assert kingdom("down") == "down" and up.wait(30) == 0
    assert "health    green" in status()


def test_a_role_that_is_misspelt_is_refused_before_anything_starts(kingdom: Kingdom) -> None:
    with (kingdom.root / "config/system.yaml").open("a") as file:
        file.write("roles: [kng]\n")
    for command in ("up", "status"):
        code, told = kingdom.fails(command)
        assert code == 2 and "no role 'kng'; did you mean king?" in told


def test_the_home_may_come_from_the_variables_of_the_process(kingdom: Kingdom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINGDOM_BASE_DIR", str(kingdom.root))
    assert kingdom.pabal.ok("kingdom", "events") == "none"


def test_an_unknown_role_is_refused(kingdom: Kingdom) -> None:
    code, told = kingdom.fails("role", "jester")
    assert code == 2 and "king" in told
