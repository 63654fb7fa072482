"""Ways to wake: each reaches its agent with the path alone, and says so when it cannot."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from pabal.apps.ignite import wakes
from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.guide import CLAUDE_RULES, COMMANDS
from pabal.apps.ignite.readers import is_awaited
from pabal.apps.ignite.team import Agent
from pabal.apps.ignite.wakes import Turn, WakeContext
from pabal.cli.ignite import ignite as ignite_group
from pabal.message import Message
from pabal.store import Receipt, State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import COMMAND, TASK, everywhere, soon
from tests.apps.ignite.test_intake import GOAL

EVIL = "'; touch /tmp/owned; $(touch /tmp/owned) `touch /tmp/owned`\n"


def turn(tmp_path: Path, **about: Any) -> Turn:
    message = Message(id="m-1", type="user_goal", body={"goal": EVIL}, sender="user", created_at=1.0)
    path = str(tmp_path / "queue/worker/processed/user_goal_1~a1~l0.mime")
    return Turn("worker", Agent(**about), path, Receipt("worker", "m-1", "0"), message, 1)


def surroundings(tmp_path: Path) -> WakeContext:
    for part in ("logs", "state/hooks"):
        (tmp_path / part).mkdir(parents=True, exist_ok=True)
    return WakeContext(tmp_path, tmp_path, dict(os.environ))


@contextmanager
def server(status: int) -> Iterator[tuple[str, list[Any]]]:
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    found = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_port}/wake", heard
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


def test_a_webhook_hears_the_path_and_never_the_text(tmp_path: Path) -> None:
    with server(204) as (url, heard):
        wakes.load("webhook")(surroundings(tmp_path)).wake(turn(tmp_path, url=url))
    assert heard[0]["path"].endswith(".mime") and "touch" not in json.dumps(heard)


def test_a_webhook_that_refuses_or_is_elsewhere_has_not_woken(tmp_path: Path) -> None:
    wake = wakes.load("webhook")(surroundings(tmp_path))
    with server(500) as (url, _), pytest.raises(WakeFailed, match="500"):
        wake.wake(turn(tmp_path, url=url))
    for url in ("http://example.org/", "https://127.0.0.1/", "http://10.0.0.1:80/", "file:///etc/passwd", ""):
        with pytest.raises(WakeFailed, match="on this machine"):
            wake.wake(turn(tmp_path, url=url))


def test_a_hook_touches_its_file_and_ends_a_wait_at_once(lay: Lay) -> None:
    table = lay()
    waiting = subprocess.Popen(
        [*COMMAND, "ignite", "--root", str(table.root), "inbox", "worker", "--wait", "30"], stdout=subprocess.PIPE
    )
    try:
        assert soon(lambda: (table.root / "state/beats/worker").exists())
        table.send()
        held = table.hand()
        out, _ = waiting.communicate(timeout=30)
        assert out.decode().strip() == held.path and waiting.returncode == 0
    finally:
        waiting.kill()
        waiting.wait()


def test_text_of_a_message_is_never_part_of_a_command(tmp_path: Path) -> None:
    place = surroundings(tmp_path)
    wake = wakes.load("exec")(place)
    spy = tmp_path / "spy.sh"
    spy.write_text('#!/bin/sh\necho "$@" > args\nenv > env\ncat > stdin\n')
    spy.chmod(0o755)
    given = turn(tmp_path, command=("./spy.sh", "{agent} {id}"), stdin=True)
    wake.wake(given)
    assert isinstance(wake, wakes.Running)
    assert soon(lambda: wake.ending(given))
    assert wake.ending(given) == wakes.Ending("done")
    wake.stop(given)
    assert (tmp_path / "args").read_text() == "worker m-1\n"
    assert "touch" not in (tmp_path / "env").read_text()
    assert "PYTEST_CURRENT_TEST" not in (tmp_path / "env").read_text()  # only variables that are named
    assert json.loads((tmp_path / "stdin").read_text())["body"] == {"goal": EVIL}
    assert not Path("/tmp/owned").exists()


# Reads its command line as `claude -p` and `codex exec` document it: one prompt, options around it, --allowedTools
# takes all plain arguments after it, and what is on stdin is appended to the prompt.
MODEL = rf"""#!{sys.executable}
import json, os, re, subprocess, sys
plain, options, rest = [], {{}}, sys.argv[1:]
while rest:
    word = rest.pop(0)
    if word in ("-p", "--skip-git-repo-check"):
        options[word] = True
    elif word.startswith("--"):
        options[word] = [rest.pop(0)]
        while word == "--allowedTools" and rest and not rest[0].startswith("-"):
            options[word].append(rest.pop(0))
    else:
        plain.append(word)
prompt = plain[-1] + sys.stdin.read()
with open(os.environ["IGNITE_ROOT"] + "/got", "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), plain[:-1], prompt, options]) + chr(10))
path = re.search(r"in the file (\S+) ", prompt)[1]
assert os.path.isfile(path)
if not os.path.exists(os.environ["IGNITE_ROOT"] + "/allowed"):
    print("May I run pabal?")
    sys.exit(0)
[done] = re.findall("`(pabal ignite done [^`]+)`", prompt)
subprocess.run({COMMAND!r} + done.split()[1:], check=True)
"""


@pytest.mark.parametrize("preset", ["claude", "codex"])
def test_a_model_that_only_asked_for_a_permission_does_not_lose_its_message(
    tmp_path: Path, lay: Lay, preset: str
) -> None:
    (tmp_path / "bin").mkdir()
    model = tmp_path / "bin" / preset
    model.write_text(MODEL)
    model.chmod(0o755)
    variables = {"PATH": f"{model.parent}:{os.environ['PATH']}"}
    worker = f"{{wake: exec, preset: {preset}, arguments: [--model, m]}}"
    team = f"agents: {{leader: {{}}, worker: {worker}}}\nretry: {{base: 0}}"
    table = lay(team, variables=variables)
    [sent] = table.send(body={**TASK, "title": EVIL})
    table.until(lambda: len(table.lines()) == 2)
    facts_of = table.workspace.memory.facts_of  # which are written a little later
    table.until(lambda: [fact for fact in facts_of(sent.id) if fact.outcome == "retry"])
    assert any("`pabal ignite done`" in fact.error for fact in facts_of(sent.id))
    (table.root / "allowed").touch()
    table.until(lambda: table.state(sent.id) is State.DONE)
    name, plain, prompt, options = json.loads(table.lines()[-1])
    assert name == preset and "touch" not in prompt and "{" not in prompt and options["--model"] == ["m"]
    assert plain == ([] if preset == "claude" else ["exec"])
    expected = {
        "claude": {
            "-p": True,
            "--permission-mode": ["acceptEdits"],
            "--disallowedTools": ["Edit(.ignite/**)"],
            "--allowedTools": list(CLAUDE_RULES),
        },
        "codex": {"--sandbox": ["workspace-write"], "--skip-git-repo-check": True},
    }
    assert options == {**expected[preset], "--model": ["m"]}


def test_what_a_model_may_run_starts_no_command_of_others() -> None:
    """Nothing that it may run takes a command, or runs those of the team file, which it could have changed."""
    assert all(rule.startswith("Bash(pabal ignite ") for rule in CLAUDE_RULES)
    for name in COMMANDS:
        command = ignite_group.commands[name]
        inner = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        for each in inner:
            names = {option for param in each.params for option in param.opts}
            assert not names & {"--exec", "--command", "--scripts"}, name
    assert not {"up", "wake-test", "init", "hooks", "coordinate", "watch"} & set(COMMANDS)


def test_a_person_who_waits_for_the_mail_of_an_agent_takes_no_wake_from_it(lay: Lay) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: codex-hook}, other: {wake: tmux, pane: nowhere}}")
    told = table.root / "state/hooks/worker.told"
    for name in ("worker", "other"):
        command = [*COMMAND, "ignite", "--root", str(table.root), "inbox", name, "--wait", "60"]
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("IGNITE", "TMUX"))}
        looking = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
        assert soon(lambda name=name: is_awaited(table.root, name, own=False))  # type: ignore[misc]
        table.send(name)
        table.until(lambda looking=looking: looking.poll() is not None)  # type: ignore[misc]
        [held] = table.workspace.held(name)
        assert looking.communicate()[0] == f"{held.path}\n"  # also if the agent cannot be woken
        assert name != "worker" or held.receipt.token in told.read_text()


def test_a_command_that_is_not_there_has_not_woken(tmp_path: Path, lay: Lay) -> None:
    wake = wakes.load("exec")(surroundings(tmp_path))
    for command in ((), ("no-such-program-at-all",), ("./not-there",)):
        with pytest.raises(WakeFailed):
            wake.wake(turn(tmp_path, command=command))
    table = lay("agents: {leader: {wake: hook}, worker: {wake: exec, command: [./gone]}}\nretry: {limit: 0}")
    [sent] = table.send()
    table.until(lambda: table.state(sent.id) is State.DEAD)


def test_a_slow_wake_does_not_hold_up_others(lay: Lay) -> None:
    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            time.sleep(1.0)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    found = HTTPServer(("127.0.0.1", 0), Slow)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{found.server_port}/"
        table = lay(f"agents: {{leader: {{wake: hook}}, worker: {{wake: webhook, url: '{url}'}}}}")
        table.send("worker"), table.send("leader")
        began = time.monotonic()
        table.until(lambda: table.workspace.held("leader"))
        assert time.monotonic() - began < 1.0
        table.hand("worker")
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None and not os.environ.get("CI"), reason="tmux is not installed"
)


@contextmanager
def tmux(tmp_path: Path, command: str) -> Iterator[dict[str, str]]:
    """Run a command in the pane team:0.0 of a tmux server of its own; yield the variables that lead there."""
    (tmp_path / "tmux").mkdir()
    variables = {**os.environ, "TMUX_TMPDIR": str(tmp_path / "tmux")}
    variables.pop("TMUX", None)
    session = ["tmux", "-f", "/dev/null", "new-session", "-d", "-x", "200", "-y", "50", "-s", "team", command]
    subprocess.run(session, env=variables, cwd=tmp_path, check=True)
    try:
        yield variables
    finally:
        subprocess.run(["tmux", "kill-server"], env=variables, check=False)


@needs_tmux
def test_tmux_types_the_path_into_the_pane(tmp_path: Path) -> None:
    with tmux(tmp_path, "cat > typed") as variables:
        wake = wakes.load("tmux")(WakeContext(tmp_path, tmp_path, variables))
        given = turn(tmp_path, pane="team:0.0")
        wake.wake(given)
        assert soon(lambda: (tmp_path / "typed").read_text() == f"new message: {given.path}\n")
        wake.wake(given)  # again, although the pane shows it
        assert soon(lambda: (tmp_path / "typed").read_text() == f"new message: {given.path}\n" * 2)
        with pytest.raises(WakeFailed, match="tmux"):
            wake.wake(turn(tmp_path, pane="nobody:0.0"))


RAW = """
import os, sys, tty
tty.setraw(0)
open("ready", "w")
text = b""
while data := os.read(0, 4096):
    if data == b"\\r":  # Enter as a key of its own: only this submits
        open(sys.argv[1], "ab").write(text + b"\\n")
        text = b""
    else:
        text += data
    os.write(1, b"\\r\\n> " + text)
"""


@needs_tmux
def test_tmux_submits_to_a_program_that_takes_a_burst_for_a_paste(tmp_path: Path) -> None:
    (tmp_path / "raw.py").write_text(RAW)
    with tmux(tmp_path, f"{sys.executable} raw.py typed") as variables:
        assert soon((tmp_path / "ready").exists)
        wake = wakes.load("tmux")(WakeContext(tmp_path, tmp_path, variables))
        given = [turn(tmp_path, pane="team:0.0", line=f"mail {n} for {{agent}}: {{path}}") for n in range(3)]
        for each in given:
            wake.wake(each)
        lines = "".join(f"mail {n} for worker: {given[0].path}\n" for n in range(3))
        assert soon(lambda: (tmp_path / "typed").exists() and (tmp_path / "typed").read_text() == lines)
        killed = f"new message: {given[0].path}"  # by a monitor that was killed before it pressed Enter
        keys = ["tmux", "send-keys", "-t", "team:0.0", "-l", killed]
        subprocess.run(keys, env=variables, check=True)
        show = ["tmux", "capture-pane", "-p", "-t", "team:0.0"]
        assert soon(lambda: killed[:12] in subprocess.run(show, env=variables, capture_output=True, text=True).stdout)
        wake.wake(turn(tmp_path, pane="team:0.0"))
        assert soon(lambda: (tmp_path / "typed").read_text() == f"{lines}{killed}\n")


@needs_tmux
def test_nothing_is_typed_into_the_shell_that_an_agent_left(tmp_path: Path, lay: Lay) -> None:
    """An agent in a shell, as a person starts it. When it has ended, its mail waits until it is started again."""
    with tmux(tmp_path, "bash --norc") as variables:

        def run(*arguments: str) -> str:
            done = subprocess.run(["tmux", *arguments], env=variables, check=True, capture_output=True, text=True)
            return done.stdout

        wake = wakes.load("tmux")(WakeContext(tmp_path, tmp_path, variables))
        given = turn(tmp_path, pane="team:0.0", line="touch owned {id}")
        assert soon(lambda: run("capture-pane", "-p", "-t", "team:0.0").strip())
        with pytest.raises(WakeFailed, match="shows the prompt of bash: start the agent"):
            wake.wake(given)
        run("send-keys", "-t", "team:0.0", "cat > typed", "Enter")
        assert soon((tmp_path / "typed").exists)
        assert soon(lambda: run("display-message", "-p", "-t", "team:0.0", "#{pane_current_command}").strip() == "cat")
        wake.wake(given)
        assert soon(lambda: (tmp_path / "typed").read_text() == "touch owned m-1\n")
        run("send-keys", "-t", "team:0.0", "C-c")
        assert soon(lambda: run("display-message", "-p", "-t", "team:0.0", "#{pane_current_command}").strip() == "bash")
        with pytest.raises(WakeFailed, match="shows the prompt"):
            wake.wake(given)
        assert not (tmp_path / "owned").exists()
        script = tmp_path / "agent.sh"
        script.write_text("read line; echo $line > read\n")
        run("send-keys", "-t", "team:0.0", "bash agent.sh", "Enter")  # a script is an agent as any other

        def woken() -> bool:
            with suppress(WakeFailed):
                wake.wake(given)
                return True
            return False

        assert soon(woken) and soon(lambda: (tmp_path / "read").exists())


@needs_tmux
def test_an_agent_that_is_back_gets_its_mail_before_the_next_try(tmp_path: Path, lay: Lay, clock: ManualClock) -> None:
    with tmux(tmp_path, "exec cat") as variables:
        table = lay("agents: {leader: {}, worker: {wake: tmux}}", variables=variables, clock=clock)
        runner = table.monitor.runners["worker"]
        [sent] = table.send()
        for rests in range(1, 8):  # until it is tried once in a minute
            table.until(lambda rests=rests: runner._rests == rests and runner.turn is None)  # type: ignore[misc]
            clock.advance(runner.due_at - clock.boot() if rests < 7 else 0.0)
        table.until(lambda: runner._was_gone)  # and was looked for
        new = ["tmux", "split-window", "-d", "-P", "-F", "#{pane_id}", "-t", "team:0", "-c", str(tmp_path)]
        made = subprocess.run([*new, "exec cat > typed"], env=variables, check=True, capture_output=True, text=True)
        subprocess.run(["tmux", "select-pane", "-t", made.stdout.strip(), "-T", "worker"], env=variables, check=True)
        clock.advance(6)
        assert runner.due_at > clock.boot()
        assert table.hand().message.id == sent.id
        assert soon(lambda: "new message" in (tmp_path / "typed").read_text())


@needs_tmux
def test_tmux_does_not_press_enter_on_a_line_that_does_not_show_and_takes_it_back(tmp_path: Path) -> None:
    with tmux(tmp_path, "stty -echo; touch ready; cat > typed") as variables:
        assert soon((tmp_path / "ready").exists)
        keys = ["tmux", "send-keys", "-t", "team:0.0"]
        subprocess.run([*keys, "-l", "half a prompt"], env=variables, check=True)
        wake = wakes.load("tmux")(WakeContext(tmp_path, tmp_path, variables))
        with pytest.raises(WakeFailed, match="does not show"):
            wake.wake(turn(tmp_path, pane="team:0.0"))
        subprocess.run([*keys, "Enter"], env=variables, check=True)
        assert soon(lambda: (tmp_path / "typed").read_text() == "half a prompt\n")


@needs_tmux
def test_a_pane_that_got_another_number_never_gets_the_mail_of_another_agent(tmp_path: Path) -> None:
    with tmux(tmp_path, "cat > first") as variables:
        context = WakeContext(tmp_path, tmp_path, variables)

        def run(*arguments: str) -> str:
            done = subprocess.run(["tmux", *arguments], env=variables, cwd=tmp_path, check=True, capture_output=True)
            return done.stdout.decode().strip()

        for name in ("second", "third"):
            run("split-window", "-t", "team:0", "-c", str(tmp_path), f"cat > {name}")
        ids = run("list-panes", "-t", "team:0", "-F", "#{pane_id}").split()
        wake = wakes.load("tmux")(context)
        wake.wake(turn(tmp_path, pane="team:0.1"))
        gone = run("display-message", "-p", "-t", "team:0.1", "#{pane_id}")
        run("swap-pane", "-d", "-s", "team:0.0", "-t", "team:0.1")  # now it has another number
        wakes.load("tmux")(context).wake(turn(tmp_path, pane="team:0.1"))  # also for the next monitor
        run("kill-pane", "-t", gone)
        for _ in range(2):
            with pytest.raises(WakeFailed, match="is gone"):
                wake.wake(turn(tmp_path, pane="team:0.1"))
        typed = [len((tmp_path / name).read_text().splitlines()) for name in ("first", "second", "third")]
        assert sorted(typed) == [0, 0, 2]
        [other, last] = [id for id in ids if id != gone]
        run("select-pane", "-t", other, "-T", "worker")
        wake.wake(turn(tmp_path))  # found by the name of the agent
        wake.wake(turn(tmp_path, pane=last))
        with pytest.raises(WakeFailed, match="several"):
            wake.wake(turn(tmp_path, pane="team:0"))


@needs_tmux
@pytest.mark.parametrize("option", ["-L", "-S"])
def test_tmux_servers_on_other_sockets_are_reached(tmp_path: Path, option: str) -> None:
    socket = "desk" if option == "-L" else str(tmp_path / "desk.sock")
    with tmux(tmp_path, "cat") as variables:
        server = ["tmux", "-f", "/dev/null", option, socket]
        session = [*server, "new-session", "-d", "-s", "other", "cat > typed"]
        subprocess.run(session, env=variables, cwd=tmp_path, check=True)
        try:
            wake = wakes.load("tmux")(WakeContext(tmp_path, tmp_path, variables))
            wake.wake(turn(tmp_path, pane="other", socket=socket, line="{agent}"))
            assert soon(lambda: (tmp_path / "typed").read_text() == "worker\n")
        finally:
            subprocess.run([*server, "kill-server"], env=variables, check=False)


@needs_tmux
@everywhere
def test_the_name_of_a_file_is_never_a_command_in_a_pane(tmp_path: Path, lay: Lay) -> None:
    team = "agents: {leader: {wake: hook}, worker: {wake: tmux, pane: 'team:0.0'}}"
    names = ["a\ntouch PWNED\n.mime", "b; touch PWNED;.mime", "$(touch PWNED).mime", "`touch PWNED`", "\x1b[200~c.mime"]
    with tmux(tmp_path, 'while read -r line; do eval "$line"; done') as variables:  # as a careless agent would
        table = lay(team, variables=variables)
        for number, name in enumerate(names):
            (table.root / "draft").write_bytes(GOAL.replace(b"abcdef", b"n%d" % number))
            place = "queue/worker/processed" if number % 2 else "queue/worker"
            os.rename(table.root / "draft", table.root / place / name)
        seen = set()
        for _ in names:
            held = table.hand()
            seen.add(held.message.id)
            assert re.fullmatch(r"[A-Za-z0-9_.~-]+", os.path.basename(held.path))
            table.workspace.delivery(held).ack()
        assert len(seen) == len(names)
        keys = ["tmux", "send-keys", "-t", "team:0.0", "touch LAST", "Enter"]
        subprocess.run(keys, env=variables, check=True)
        assert soon((tmp_path / "LAST").exists)  # the shell has read all that was typed
        assert not (tmp_path / "PWNED").exists()


def test_a_path_that_cannot_be_typed_is_refused(tmp_path: Path) -> None:
    wake = wakes.load("tmux")(surroundings(tmp_path))
    with pytest.raises(WakeFailed, match="cannot be typed"):
        wake.wake(turn(tmp_path / "a\nb", pane="team:0.0"))
