"""A general and its soldiers: workspace, prompt, result, retries, and what is said when a soldier says nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.kingdom.general import work as work_module
from pabal.apps.kingdom.general.prompt import MAX_PROMPT
from pabal.apps.kingdom.general.work import SoldierDeadline
from pabal.apps.kingdom.general.workspace import checked_repo
from pabal.apps.kingdom.sessions import Session, Sessions, end
from pabal.apps.kingdom.status import open_tasks, report
from pabal.errors import InvalidInput
from pabal.runtime.resources import start_ticks
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import SUCCESS, Realm, commit, eventually, everywhere, git, saying

LISTING = """\
import json, os
result = {"status": "success", "summary": " ".join(sorted(os.listdir(".")))}
open(os.environ["KINGDOM_RESULT_PATH"], "w").write(json.dumps(result))
"""


def fought(realm: Realm, script: str = SUCCESS, event: dict[str, Any] | None = None, **manifest: Any) -> Any:
    """Let a soldier work on an event; return the result, or None if there is none yet."""
    realm.general(script=script, **manifest)
    realm.event(**(event or {}))
    realm.run_kingdom()
    realm.lead()
    return (realm.results() or [None])[-1]


def test_a_soldier_works_and_its_true_task_id_is_kept(realm: Realm) -> None:
    result = fought(realm)
    [task] = realm.tasks(State.DONE)
    assert (result["task_id"], result["status"], result["summary"]) == (task["id"], "success", "done well")
    assert (result["event_id"], result["target_general"]) == ("evt-1", "gen-pr")
    assert Sessions(realm.root).all() == []


def test_a_soldier_sees_few_variables_and_its_own_paths(realm: Realm) -> None:
    script = """\
import json, os
seen = dict(os.environ)
open("seen.json", "w").write(json.dumps(seen))
assert json.load(open(seen["KINGDOM_TASK_PATH"]))["id"] == seen["KINGDOM_TASK_ID"]
assert "evt-1" in open(seen["KINGDOM_PROMPT_PATH"]).read()
""" + saying(status="success")
    realm.variables |= {"SECRET": "1", "MY_TOKEN": "2", "OUR_TOKEN": "3"}
    realm.system(variables=["OUR_TOKEN"])
    assert fought(realm, script, variables=["MY_TOKEN"])["status"] == "success"
    seen = json.loads((realm.root / "workspace/gen-pr/seen.json").read_text())
    assert (seen["MY_TOKEN"], seen["OUR_TOKEN"]) == ("2", "3") and "SECRET" not in seen
    assert {name for name in seen if name.startswith("KINGDOM_")} == {
        "KINGDOM_TASK_ID",
        "KINGDOM_TASK_PATH",
        "KINGDOM_PROMPT_PATH",
        "KINGDOM_RESULT_PATH",
        "KINGDOM_SCHEMA_PATH",
        "KINGDOM_HEARTBEAT_PATH",
        "KINGDOM_CHECKPOINT_PATH",
        "KINGDOM_SESSION_PATH",
    }


def test_text_from_outside_never_reaches_a_shell(realm: Realm) -> None:
    evil = "'; touch /tmp/pabal-pwned; $(touch pwned) `touch pwned` \n--help"
    result = fought(realm, event={"payload": {"text": evil, "channel": "D1"}})
    assert result["status"] == "success"
    assert not Path("/tmp/pabal-pwned").exists() and not list(realm.root.rglob("pwned"))


@pytest.mark.parametrize("repo", ["../../etc", "-oops/x", "a/../b", "a b", "", "a/b.git", "x" * 3 + ";rm"])
def test_a_repository_cannot_lead_out_of_the_workspace(repo: str) -> None:
    with pytest.raises(InvalidInput, match="owner/name"):
        checked_repo(repo)


def test_a_repository_is_cloned_and_brought_up_to_date(realm: Realm, tmp_path: Path) -> None:
    upstream = tmp_path / "upstream/our/repo"
    upstream.mkdir(parents=True)
    git(upstream, "init", "-q", "-b", "main")
    commit(upstream, "one")
    realm.system(repositories=f"{tmp_path}/upstream/{{repo}}")
    assert fought(realm, LISTING, {"repo": "our/repo"})["summary"] == ".git one"
    commit(upstream, "two")
    realm.run_kingdom()
    realm.event("evt-2", repo="our/repo")
    realm.run_kingdom()
    realm.lead()
    assert {result["summary"] for result in realm.results()} == {".git one", ".git one two"}


@pytest.mark.parametrize("lock", ["index.lock", "HEAD.lock", "refs/kingdom/tip.lock"])
def test_a_lock_that_a_killed_git_left_does_not_fail_every_later_task(realm: Realm, tmp_path: Path, lock: str) -> None:
    upstream = tmp_path / "upstream/our/repo"
    upstream.mkdir(parents=True)
    git(upstream, "init", "-q", "-b", "main")
    commit(upstream, "one")
    realm.system(repositories=f"{tmp_path}/upstream/{{repo}}")
    assert fought(realm, LISTING, {"repo": "our/repo"})["status"] == "success"
    clone = realm.root / "workspace/gen-pr/our/repo"
    (clone / ".git" / lock).parent.mkdir(parents=True, exist_ok=True)
    (clone / ".git" / lock).touch()
    commit(upstream, "two")
    realm.event("evt-2", repo="our/repo")
    realm.run_kingdom()
    realm.lead()
    assert {result["summary"] for result in realm.results()} == {".git one", ".git one two"}


def test_a_repository_may_be_empty_at_first_and_its_branches_may_change_their_names(
    realm: Realm, tmp_path: Path
) -> None:
    upstream = tmp_path / "upstream/our/repo"
    upstream.mkdir(parents=True)
    git(upstream, "init", "-q", "-b", "main")
    realm.system(repositories=f"{tmp_path}/upstream/{{repo}}")

    def seen(number: int) -> list[str]:
        realm.event(f"evt-{number}", repo="our/repo")
        realm.run_kingdom()
        realm.lead()
        return sorted(result["summary"] for result in realm.results())

    assert fought(realm, LISTING, {"repo": "our/repo"})["summary"] == ".git"
    assert seen(2) == [".git"] * 2
    commit(upstream, "one")
    assert seen(3) == [".git", ".git", ".git one"]
    git(upstream, "branch", "-m", "main", "trunk")
    commit(upstream, "two")
    assert seen(4) == [".git", ".git", ".git one", ".git one two"]


def test_a_repository_that_is_not_there_is_the_reason(realm: Realm, tmp_path: Path) -> None:
    realm.system(repositories=f"{tmp_path}/nowhere/{{repo}}")
    result = fought(realm, event={"repo": "our/repo"}, retry={"max_attempts": 0})
    assert result["status"] == "failed" and "does not exist" in result["error"]


def test_plugins_are_made_available_and_refused_by_name_if_absent(realm: Realm) -> None:
    (realm.root / "plugins/friday").mkdir()
    script = "import os\nassert os.path.isdir('.claude/plugins/friday')\n" + saying(status="success")
    assert fought(realm, script, cc_plugins=["friday"])["status"] == "success"
    realm.run_kingdom()
    realm.general(cc_plugins=["sunday"], retry={"max_attempts": 0})
    realm.event("evt-2")
    realm.run_kingdom()
    realm.lead()
    assert "plugin sunday of gen-pr is not there" in realm.results()[0]["error"]


def test_memory_is_given_and_kept(realm: Realm) -> None:
    (realm.root / "memory/shared/rules.md").write_text("Be kind.")
    fought(realm, saying(status="success", memory_updates=["the tests\nare slow"]))
    [task] = realm.tasks(State.DONE)
    assert "Be kind." in (realm.root / f"state/prompts/{task['id']}.md").read_text()
    assert (realm.root / "memory/generals/gen-pr/learned.md").read_text() == "- the tests are slow\n"


def test_a_prompt_has_its_bounds(realm: Realm) -> None:
    fought(realm, event={"payload": {"text": "x" * 300_000}})
    [path] = (realm.root / "state/prompts").glob("*.md")
    assert path.stat().st_size <= MAX_PROMPT and "How to answer" in path.read_text()


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("import sys; sys.exit('I am lost')", "killed", "exit 1) without a result; its last output: I am lost"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "signal 9"),
        ("pass", "failed", "ended without a result"),
        (saying(status="failed", error="no access"), "failed", "no access"),
        (saying(status="failed"), "failed", "refused: a result with status failed must have error"),
        (saying(status="success", mood="great"), "failed", "mood"),
        ("import os; open(os.environ['KINGDOM_RESULT_PATH'], 'w').write('[1]')", "failed", "must be a JSON object"),
    ],
)
def test_a_soldier_that_fails_is_reported_with_the_true_reason(
    realm: Realm, script: str, status: str, reason: str
) -> None:
    result = fought(realm, script, retry={"max_attempts": 0})
    assert result["status"] == status and reason in result["error"]
    realm.run_kingdom()
    assert reason.partition("\n")[0] in realm.notices()[-1]["content"]


def test_a_failed_task_is_tried_again_after_a_rest_and_keeps_its_reason(realm: Realm, clock: ManualClock) -> None:
    fought(realm, saying(status="failed", error="the third time"))
    for _ in range(2):
        assert realm.results() == []
        [task] = open_tasks(realm.home, 10)
        assert task["why"].startswith("again in 60 s, last: the third time")
        clock.advance(59)
        realm.lead()
        assert realm.results() == []
        clock.advance(2)
        realm.lead()
    [result] = realm.results()
    assert (result["status"], result["error"], result["attempts"]) == ("failed", "the third time", 3)
    [failures] = (realm.root / "state/results").glob("*-failures.json")
    assert len(json.loads(failures.read_text())) == 3


def test_the_manifests_own_retries_count(realm: Realm, clock: ManualClock) -> None:
    fought(realm, "import sys; sys.exit(3)", retry={"max_attempts": 1, "backoff_seconds": 5})
    clock.advance(6)
    realm.lead()
    assert [result["status"] for result in realm.results()] == ["killed"]


def test_a_result_that_is_no_plain_file_fails_its_task_and_stops_nobody(realm: Realm, clock: ManualClock) -> None:
    script = "import os; os.mkfifo(os.environ['KINGDOM_RESULT_PATH'])"
    realm.general(script=script, retry={"max_attempts": 0})
    realm.event()
    realm.run_kingdom()
    general, _ = realm.general_of()
    pid = running(realm, general)
    eventually(lambda: start_ticks(pid) is None or state_of(pid) == "Z")
    general.step()
    [result] = realm.results()
    assert result["status"] == "failed" and "only a plain file is read" in result["error"]


def running(realm: Realm, general: Any) -> int:
    general.step()
    [session] = Sessions(realm.root).all()
    return session.pid


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_silent_soldier_is_ended_at_its_timeout_with_all_it_started(realm: Realm, clock: ManualClock) -> None:
    script = "import subprocess, time\nsubprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)"
    realm.general(script=script, retry={"max_attempts": 0})
    realm.event()
    realm.run_kingdom()
    general, _ = realm.general_of()
    pid = running(realm, general)
    eventually(lambda: len(group_of(pid)) == 2)
    clock.advance(31)
    for path in (realm.root / "logs/sessions").glob("*"):
        os.utime(path, (clock.now() - 31, clock.now() - 31))
    general.step()
    [result] = realm.results()
    assert result["status"] == "failed" and "no result after 30 s" in result["error"]
    eventually(lambda: not group_of(pid))
    assert realm.journal("soldier.timeout")


def group_of(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parts = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(parts[2]) == leader and parts[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("sign", ["os.utime(os.environ['KINGDOM_HEARTBEAT_PATH'], (at, at))", "os.utime(1, (at, at))"])
def test_a_soldier_that_shows_signs_of_life_is_waited_for_up_to_twice_its_timeout(
    realm: Realm, clock: ManualClock, sign: str
) -> None:
    at = clock.now() + 60
    script = f"""\
import os, time
at = {at}
open(os.environ["KINGDOM_HEARTBEAT_PATH"], "w").close()
os.utime(os.environ["KINGDOM_HEARTBEAT_PATH"], (1, 1))
{sign}
open("ready", "w").close()
time.sleep(1000)
"""
    realm.general(script=script, retry={"max_attempts": 0})
    realm.event()
    realm.run_kingdom()
    general, _ = realm.general_of()
    general.step()
    eventually((realm.root / "workspace/gen-pr/ready").exists)
    clock.advance(31)  # past its timeout, but it lives
    general.step()
    assert realm.results() == []
    clock.advance(30)  # twice its timeout
    general.step()
    [result] = realm.results()
    assert result["status"] == "failed" and "no result after 30 s" in result["error"]


def test_the_limits_of_the_manifest_hold_for_its_soldiers(realm: Realm) -> None:
    script = """\
import json, os, resource
kinds = (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE)
found = ", ".join(str(resource.getrlimit(kind)[0]) for kind in kinds)
result = {"task_id": "x", "status": "success", "summary": found}
open(os.environ["KINGDOM_RESULT_PATH"], "w").write(json.dumps(result))
"""
    limits = {"cpu_seconds": 77, "memory_bytes": 1 << 32, "open_files": 99}
    assert fought(realm, script, limits=limits)["summary"] == f"77, {1 << 32}, 99"


def test_a_malformed_task_is_set_aside_with_its_reason_and_the_next_one_is_done(
    realm: Realm, clock: ManualClock
) -> None:
    realm.general()
    if realm.home.on_files:
        draft = realm.root / "draft.json"
        draft.write_text('{"id": "task-20260207-900", "type": "x", "event_id": "e", "target_general": 7}')
        draft.rename(realm.root / "queue/tasks/pending/task-20260207-900.json")
    else:
        realm.home.queue("tasks").publish({"id": "task-20260207-900"}, type="x", target="gen-pr")
    realm.event()
    realm.run_kingdom()
    clock.advance(3)
    realm.lead()
    realm.lead()
    assert [result["status"] for result in realm.results()] == ["success"]
    assert any(problem.startswith("tasks: ") for problem in report(realm.home).problems)


def test_patience_grows_with_signs_of_life_and_ends_at_twice_the_timeout() -> None:
    waiting = SoldierDeadline(0.0, 100.0)
    assert not waiting.is_over(99, silent=99)
    assert not waiting.is_over(100, silent=30)  # until 160
    assert not waiting.is_over(159, silent=500)
    assert not waiting.is_over(160, silent=1)  # until 200
    assert not waiting.is_over(199, silent=500)
    assert waiting.is_over(200, silent=0)
    assert SoldierDeadline(0.0, 100.0).is_over(100, silent=31)


def test_a_soldier_that_goes_on_after_its_result_is_ended(realm: Realm, clock: ManualClock) -> None:
    realm.general(script=SUCCESS + "import time; time.sleep(1000)")
    realm.event()
    realm.run_kingdom()
    general, watch = realm.general_of()
    running(realm, general)
    eventually(lambda: any(path.stat().st_size for path in (realm.root / "state/results").glob("*-raw.json")))
    general.step()
    clock.advance(work_module.LINGER + 1)
    general.step()
    assert [result["status"] for result in realm.results()] == ["success"]


def test_a_general_keeps_its_lease_and_gives_up_when_it_is_lost(realm: Realm, clock: ManualClock) -> None:
    realm.general(script="import time; time.sleep(1000)")
    realm.event()
    realm.run_kingdom()
    general, _ = realm.general_of()
    pid = running(realm, general)
    for _ in range(4):
        clock.advance(11)
        touch(realm)
        general.step()
    assert realm.home.queue("tasks", "gen-pr").lease() == []
    clock.advance(31)
    other = realm.open()
    [taken] = other.queue("tasks", "gen-pr").lease()
    touch(realm)
    general.step()
    eventually(lambda: not group_of(pid))
    taken.release()


def touch(realm: Realm) -> None:
    now = realm.clock.now()
    for path in (realm.root / "logs/sessions").glob("*"):
        os.utime(path, (now, now))


def test_what_a_dead_generals_soldier_started_is_ended(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "1000"], process_group=0)
    ticks = start_ticks(child.pid)
    assert ticks is not None
    session = Session(id="s", task_id="t", general="g", pid=child.pid, ticks=ticks, started_at="")
    (tmp_path / "state").mkdir()
    register = Sessions(tmp_path)
    register.add(session)
    assert not end(Session(id="x", task_id="t", general="g", pid=child.pid, ticks=ticks + 1, started_at=""))
    assert register.end_orphans_of("other") == [] and child.poll() is None
    assert register.end_orphans_of("g") == [session] and child.wait() == -9
    assert register.all() == []


@everywhere
def test_a_general_is_woken_by_a_task_and_does_not_wait_for_its_poll(living: Realm) -> None:
    living.general()
    general, watch = living.general_of()
    general.step()
    assert general.next_due() == 10.0 and not watch.wait(0.0)
    living.event()
    living.run_kingdom()
    assert watch.wait(5.0)
    living.lead()
    assert len(living.results()) == 1


@everywhere
def test_on_sigterm_a_general_finishes_or_gives_back_what_it_has_in_hand(living: Realm) -> None:
    living.system(stop_seconds=6)
    waits = "import os, time\nopen('begun', 'w')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    living.general(script=waits + SUCCESS)
    living.general("gen-slow", script="import time\nopen('begun', 'w')\ntime.sleep(1000)", subscribes=["slow.*"])
    living.event()
    living.event("evt-slow", "slow.x")
    living.run_kingdom()
    roles = [living.start("role", name) for name in ("gen-pr", "gen-slow")]
    begun = [living.root / "workspace" / name / "begun" for name in ("gen-pr", "gen-slow")]
    eventually(lambda: all(path.exists() for path in begun), lambda: living.log)
    for role in roles:
        role.terminate()
    (living.root / "workspace/gen-pr/go").touch()
    assert [role.wait(60) for role in roles] == [0, 0], living.log
    assert [result["status"] for result in living.results()] == ["success"]
    assert [task["event_id"] for task in living.tasks()] == ["evt-slow"], "given back at once"


def test_the_engine_runs_soldiers_of_generals_without_a_command(realm: Realm, tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "claude").write_text(
        f"#!{sys.executable}\nimport sys\nassert '# gen-pr' in sys.stdin.read()\n"
        f"open('argv', 'w').write(repr(sys.argv[1:]))\n{SUCCESS}"
    )
    (bin / "claude").chmod(0o755)
    realm.variables["PATH"] = f"{bin}:{realm.variables['PATH']}"
    realm.home = realm.open()
    assert fought(realm, command=[])["status"] == "success"
    assert "-p" in (realm.root / "workspace/gen-pr/argv").read_text()


def test_a_command_that_is_not_there_is_named(realm: Realm) -> None:
    result = fought(realm, command=["no-such-soldier"], retry={"max_attempts": 0})
    assert "no program 'no-such-soldier'" in result["error"]
