"""The whole kingdom as real processes, from a notification of GitHub's or a ticket of Jira's to a message in Slack.

With PABAL_SOAK=1 a thousand notifications and a hundred kills.
"""

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any

import pytest

from pabal.apps.kingdom.envoy.questions import Questions
from pabal.runtime.role_lock import holder
from pabal.store import State
from tests.apps.kingdom.realm import Realm, eventually, everywhere
from tests.apps.kingdom.servers import GithubServer, JiraServer
from tests.apps.kingdom.slack_server import SlackServer

SOAK = os.environ.get("PABAL_SOAK") == "1"
EVENTS, KILLS = (1000, 100) if SOAK else (12, 8)
ROLES = ("sentinel", "envoy", "king", "gen-pr", "chamberlain")
# Asks once, and goes on with what it was told; what it does depends on the title of the pull request.
SOLDIER = """\
import json, os
task = json.load(open(os.environ["KINGDOM_TASK_PATH"]))
result = {"task_id": task["id"], "status": "success", "summary": "reviewed"}
title = task["payload"].get("subject_title")
if task["type"] == "resume":
    result["summary"] = f"went on with {task['payload']['human_response']}"
elif title == "Ask me":
    result |= {"status": "needs_human", "question": "merge it?", "kind": "confirm"}
elif title == "Skip me":
    result |= {"status": "skipped", "reason": "too small"}
elif title == "Fail":
    result |= {"status": "failed", "error": "quota exceeded"}
elif title == "Proclaim":
    result["proclamation"] = {"channel": "C0NEWS", "message": "a great day"}
open(os.environ["KINGDOM_RESULT_PATH"], "w").write(json.dumps(result))
"""
TICKETS = """\
import json, os
task = json.load(open(os.environ["KINGDOM_TASK_PATH"]))
payload = task["payload"]
result = {"task_id": task["id"], "status": "success", "summary": ""}
if task["type"] == "resume":
    result["summary"] = f"{payload['human_response']} takes it"
elif task["type"] == "jira.ticket.updated":
    result["summary"] = f"{payload['previous_status']}, then {payload['status']}"
else:
    asked = {"question": f"who takes {payload['ticket_key']}?", "options": ["ann", "bob"]}
    result |= {"status": "needs_human", **asked}
open(os.environ["KINGDOM_RESULT_PATH"], "w").write(json.dumps(result))
"""
FAST = """\
printf '{"task_id": "x", "status": "success", "summary": "ok"}' > "$KINGDOM_RESULT_PATH.tmp"
mv "$KINGDOM_RESULT_PATH.tmp" "$KINGDOM_RESULT_PATH"
"""


@pytest.fixture
def github() -> Iterator[GithubServer]:
    with closing(GithubServer()) as server:
        yield server


@pytest.fixture
def slack() -> Iterator[SlackServer]:
    with closing(SlackServer()) as server:
        yield server


def prepare(living: Realm, slack: SlackServer, polling: dict[str, Any], *, http: int = 0, **king: Any) -> None:
    """Let a kingdom look at some servers and speak to Slack."""
    living.variables |= {
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_APP_TOKEN": "xapp-1",
        "GITHUB_TOKEN": "t",
        "JIRA_USER_EMAIL": "ann@example.org",
        "JIRA_API_TOKEN": "t",
        "KINGDOM_HTTP_TOKEN": "secret",
    }
    living.king(retry={"max_attempts": 1, "backoff_seconds": 0.2}, gate={"enabled": False}, **king)
    repository = living.root.parent / "repositories/o/r"
    repository.mkdir(parents=True)
    who = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
    for command in (("init",), (*who, "commit", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *command, "--quiet"], cwd=repository, check=True)
    living.system(lease_seconds=5, repositories=f"{repository.parent.parent}/{{repo}}")
    for name, document in {
        "sentinel": {"polling": polling},
        "envoy": {"slack": {"api": slack.api}, "http": {"port": http}},
    }.items():
        (living.root / f"config/{name}.yaml").write_text(json.dumps(document))


def over(github: GithubServer) -> dict[str, Any]:
    return {"github": {"api": github.address, "interval_seconds": 0.3}}


def titled(title: str) -> dict[str, Any]:
    return {"subject": {"title": title, "url": "https://api.github.com/repos/o/r/pulls/7", "type": "PullRequest"}}


@everywhere
def test_from_a_notification_to_a_question_and_its_answer_to_the_result(
    living: Realm, github: GithubServer, slack: SlackServer
) -> None:
    prepare(living, slack, over(github))
    living.general(script=SOLDIER)
    up = living.start("up")

    def texts() -> list[str]:
        return [post["text"] for post in slack.posts]

    for number, title in enumerate(("Plain", "Skip me", "Fail", "Proclaim", "Ask me")):
        github.notify(str(number + 1), **titled(title))
    wanted = ("✅ github.pr.review_requested — reviewed", "⏭️", "❌", "[question] merge it?", "a great day")
    eventually(
        lambda: all(any(part in text for text in texts()) for part in wanted) and slack.sockets.connected,
        lambda: (texts(), living.log[-3000:]),
    )
    assert any("quota exceeded" in text for text in texts())
    assert [post["channel"] for post in slack.posts if post["text"] == "a great day"] == ["C0NEWS"]
    [question] = Questions(living.home).open()
    slack.say("yes", "1700000500.000100", thread_ts=question.thread_ts)
    done = "✅ github.pr.review_requested — went on with yes"
    eventually(lambda: any(done in text for text in texts()), lambda: (texts(), living.log[-3000:]))
    last = next(post for post in slack.posts if done in post["text"])
    assert last["thread_ts"] == question.thread_ts
    eventually(lambda: len(living.completed()) == 6 and github.unread == {})
    up.terminate()
    assert up.wait(60) == 0, living.log[-3000:]
    assert max(Counter(texts()).values()) <= 5  # the [start] of five like tasks, everything else once


def test_from_a_ticket_to_a_question_and_its_answer_over_http_to_the_result(living: Realm, slack: SlackServer) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def ask(method: str, path: str, document: object = None) -> Any:
        """Ask the envoy; None if he does not listen yet."""
        with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection, suppress(ConnectionRefusedError):
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, {"Authorization": "Bearer secret"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def texts() -> list[str]:
        return [post["text"] for post in slack.posts]

    with closing(JiraServer(time.time)) as jira:
        jira.change("QP-1", "Open")
        prepare(living, slack, {"jira": {"url": jira.address, "interval_seconds": 0.3}}, http=port)
        living.general("gen-jira", script=TICKETS, subscribes=["jira.ticket.*"])
        up = living.start("up")
        eventually(
            lambda: (found := ask("GET", "/questions")) is not None and found[1]["questions"] != [],
            lambda: (texts(), living.log[-3000:]),
        )
        [question] = ask("GET", "/questions")[1]["questions"]
        assert (question["text"], question["options"]) == ("who takes QP-1?", ["ann", "bob"])
        place = f"/questions/{question['task_id']}/answer"
        status, refused = ask("POST", place, {"text": "carl"})
        assert status == 400 and "carl" in refused["error"]
        assert ask("POST", place, {"text": "2", "responder": "ann"})[0] == 200
        status, late = ask("POST", place, {"text": "ann"})
        assert status == 409 and "was answered already, by ann (http)" in late["error"]
        eventually(
            lambda: any("✅ jira.ticket.assigned — bob takes it" in text for text in texts()),
            lambda: living.log[-3000:],
        )
        jira.change("QP-1", "Doing")
        done = "✅ jira.ticket.updated — Open, then Doing"
        eventually(lambda: any(done in text for text in texts()), lambda: (texts(), living.log[-3000:]))
        eventually(lambda: len(living.completed()) == 3)
        up.terminate()
        assert up.wait(60) == 0, living.log[-3000:]


@everywhere
@pytest.mark.timeout(3000 if SOAK else 300)
def test_every_notification_is_told_whoever_is_killed(living: Realm, github: GithubServer, slack: SlackServer) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    prepare(living, slack, over(github), concurrency={"max_soldiers": EVENTS})
    living.general(command=["/bin/sh", "-c", FAST])
    up = living.start("up")
    killed: Counter[str] = Counter()
    given = iter(range(1, EVENTS + 1))
    for _ in range(KILLS):
        for number in [next(given, 0) for _ in range(-(-EVENTS // KILLS))]:
            if number:
                github.notify(str(number))
        time.sleep(chance.uniform(0.1, 1.0))
        victim = chance.choice(ROLES)
        if (pid := holder(living.root / "state" / victim / "lock")) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed[victim] += 1

    def told() -> Counter[str]:
        return Counter(post.get("thread_ts", "") for post in slack.posts if post["text"].startswith("✅"))

    eventually(
        lambda: len(living.completed()) == EVENTS and living.notices() == [] and sum(told().values()) >= EVENTS,
        lambda: (
            *(seed, killed, len(living.completed()), Counter(post["text"] for post in slack.posts)),
            *(living.notices(), living.journal("task.failed"), living.log[-3000:]),
        ),
        timeout=2400 if SOAK else 200,
    )
    up.terminate()
    assert up.wait(60) == 0, (seed, living.log[-3000:])
    assert "" not in told(), (seed, "each in the thread of its task")
    assert github.unread == {} and not living.tasks() and living.home.queue("messages").counts()[State.DEAD] == 0, seed
    tasks = Counter(task["event_id"] for task in living.tasks(State.DONE))
    assert len(tasks) == EVENTS and set(tasks.values()) == {1}, seed
    starts = sum(post["text"].startswith("[start]") for post in slack.posts)
    assert starts + sum(told().values()) <= 2 * EVENTS + killed["envoy"], (seed, killed)
