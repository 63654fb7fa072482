"""Questions answered in the terminal and over HTTP, which are equals of the chat."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

from pabal.apps.kingdom.envoy import settings
from pabal.apps.kingdom.envoy.http import HttpServer
from pabal.apps.kingdom.envoy.questions import Question, Questions
from pabal.errors import InvalidConfig, InvalidInput, NameTaken
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import PABAL, Realm

TASK = "task-20260101-001"


@pytest.fixture
def questions(realm: Realm) -> Questions:
    found = Questions(realm.home)
    found.ask(Question(task_id=TASK, text="merge?", kind="confirm", asked_at="2026-01-01T00:00:00Z"))
    return found


@pytest.fixture
def door(questions: Questions) -> Iterator[HttpServer]:
    with closing(HttpServer(settings.Http(), "secret", questions)) as door:
        yield door


def ask(door: HttpServer, method: str, path: str, body: Any = None, token: str = "secret") -> tuple[int, Any]:
    with closing(HTTPConnection("127.0.0.1", door.port, timeout=10)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_questions_are_listed_and_answered_over_http(realm: Realm, door: HttpServer) -> None:
    status, found = ask(door, "GET", "/questions")
    assert status == 200 and [each["task_id"] for each in found["questions"]] == [TASK]
    status, done = ask(door, "POST", f"/questions/{TASK}/answer", {"text": "Y", "responder": "ann"})
    assert status == 200 and (done["answer"], done["state"], done["via"]) == ("yes", "answered", "http")
    [event] = realm.bodies("events")
    assert event["payload"]["text"] == "yes" and event["payload"]["reply_context"]["task_id"] == TASK
    assert ask(door, "GET", "/questions")[1] == {"questions": []}


def test_http_refuses_by_name(realm: Realm, door: HttpServer, questions: Questions) -> None:
    path = f"/questions/{TASK}/answer"
    assert ask(door, "GET", "/questions", token="wrong")[0] == 401
    assert ask(door, "POST", path, {"text": "yes"}, token="")[0] == 401
    assert ask(door, "POST", path, {"text": "perhaps"})[0] == 400
    assert ask(door, "POST", path, {"words": "yes"})[0] == 400
    assert ask(door, "POST", path)[0] == 400
    assert ask(door, "POST", "/questions/task-20260101-009/answer", {"text": "yes"})[0] == 404
    assert ask(door, "GET", "/../etc/passwd")[0] == 404
    assert len(questions.open()) == 1
    questions.answer(TASK, "no", responder="ann", via="terminal")
    status, said = ask(door, "POST", path, {"text": "yes"})
    assert status == 409 and "ann (terminal)" in said["error"]
    assert len(realm.bodies("events")) == 1


def test_a_port_without_a_token_is_refused(questions: Questions) -> None:
    with pytest.raises(InvalidConfig, match="KINGDOM_HTTP_TOKEN"):
        HttpServer(settings.Http(), "", questions)


def test_of_many_answers_at_once_one_counts(realm: Realm, questions: Questions) -> None:
    won: list[str] = []

    def answer(name: str) -> None:
        try:
            won.append(Questions(realm.home).answer(TASK, "yes", responder=name, via="http").responder)
        except NameTaken:
            pass

    threads = [threading.Thread(target=answer, args=(f"p{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and [each.responder for each in questions.all()] == won
    assert len(realm.bodies("events")) == 1


@pytest.mark.parametrize(
    ("kind", "options", "text", "meant"),
    [
        ("confirm", [], " YES ", "yes"),
        ("confirm", [], "n", "no"),
        ("choose", ["main", "dev"], "DEV", "dev"),
        ("choose", ["main", "dev"], "1", "main"),
        ("choose", ["2", "1"], "1", "1"),
        ("text", [], "  what you like ", "what you like"),
        ("confirm", [], "maybe", None),
        ("choose", ["main"], "2", None),
        ("text", [], "  ", None),
    ],
)
def test_an_answer_is_understood_by_its_kind(kind: Any, options: list[str], text: str, meant: str | None) -> None:
    question = Question(task_id=TASK, text="?", kind=kind, options=options)
    if meant is None:
        with pytest.raises(InvalidInput):
            question.accepted(text)
    else:
        assert question.accepted(text) == meant


def command(realm: Realm, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PABAL, "kingdom", *arguments, "--home", str(realm.root)],
        env={**os.environ, "LOGNAME": "ann"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_questions_are_listed_and_answered_in_the_terminal(
    realm: Realm, questions: Questions, clock: ManualClock
) -> None:
    shown = command(realm, "questions").stdout
    assert TASK in shown and "merge?" in shown and "yes or no" in shown
    assert "perhaps" in command(realm, "answer", TASK, "perhaps").stderr
    done = command(realm, "answer", TASK, "yes")
    assert done.returncode == 0 and done.stdout == f"{TASK} answered: yes\n"
    assert command(realm, "questions").stdout == "none\n"
    assert "answered by ann (terminal): yes" in command(realm, "questions", "--all").stdout
    assert json.loads(command(realm, "questions", "--all", "--json").stdout)["via"] == "terminal"
    assert command(realm, "answer", TASK, "no").returncode != 0
    assert "asked nothing" in command(realm, "answer", "task-20260101-009", "x").stderr
    clock.advance(600)  # the command has the clock of the machine, which did not stand still
    assert len(realm.bodies("events")) == 1
