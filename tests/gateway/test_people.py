"""What waits for a person, teams and kingdoms over HTTP: as on the command line, answered once, with rights."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pabal.apps.ignite.workspace import Workspace
from pabal.cli.main import cli
from pabal.clock import SystemClock
from tests.apps.ignite.table import COMMAND, Served, ignite
from tests.apps.kingdom.realm import Realm
from tests.gateway.conftest import gateway
from tests.gateway.http_client import Client, Failed
from tests.gateway.places import (
    answer_in_kingdom,
    answer_in_team,
    ask_in_kingdom,
    ask_in_team,
    make_kingdom,
    make_team,
)
from tests.waiting import until


@pytest.fixture(autouse=True)
def no_places_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IGNITE_ROOT", raising=False)
    monkeypatch.delenv("KINGDOM_BASE_DIR", raising=False)


def printed(folder: Path, *arguments: str) -> Any:
    """Return what a command prints as JSON, one document a line."""
    done = subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_store_without_applications_has_no_sections_until_one_is_made(tmp_path: Path) -> None:
    with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log") as running:
        client = Client(running)
        assert client("list_needs") == {"places": [], "waiting": 0, "needs": []}
        assert client("list_teams") == {"teams": []} and client("list_kingdoms") == {"kingdoms": []}
        make_team(tmp_path)
        until(lambda: client("list_needs")["places"])
        [place] = client("list_needs")["places"]
        assert (place["source"], place["place"]) == ("ignite", str(tmp_path / ".ignite"))


def test_what_waits_is_that_of_the_command_line_and_is_answered_once(tmp_path: Path) -> None:
    team, town = make_team(tmp_path), make_kingdom(tmp_path)
    asked = ask_in_team(team, "Deploy to production?", ("now", "tomorrow"), urgent=True)
    ask_in_kingdom(town, "task-20261118-001", "Which branch?")
    with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log") as running:
        client = Client(running)
        found = client("list_needs")
        shown = printed(tmp_path, "needs-you", "--json")
        for need, line in zip(found["needs"], shown, strict=True):
            for name in ("source", "kind", "id", "sender", "text", "urgent", "options"):
                assert need[name] == line[name], name
            assert need["command"].split()[:3] == line["answer"].split()[:3]
        first, second = found["needs"]
        assert (first["sender"], first["options"], first["urgent"]) == ("worker", ["now", "tomorrow"], True)
        assert found["waiting"] == 2 and second["source"] == "kingdom"
        with pytest.raises(Failed) as refused:
            client("answer_need", body={"place": first["place"], "id": first["id"], "text": "never"})
        assert refused.value.status == 400 and "1 now, 2 tomorrow" in refused.value.error["message"]
        given = client("answer_need", body={"place": first["place"], "id": first["id"], "text": "Tomorrow"})
        assert given["answer"] == "tomorrow"
        assert answer_in_team(team, asked.id).answer == "tomorrow"
        with pytest.raises(Failed) as refused:
            client("answer_need", body={"place": first["place"], "id": first["id"], "text": "now"})
        assert refused.value.status == 409 and "answered already" in refused.value.error["message"]
        given = {"place": second["place"], "id": second["id"], "text": "main", "responder": "ann"}
        assert client("answer_need", body=given) == {"answer": "main", "responder": "ann"}
        kept = answer_in_kingdom(town, "task-20261118-001")
        assert (kept.answer, kept.responder, kept.via, kept.emitted) == ("main", "ann", "dashboard", True)
        assert client("list_needs")["needs"] == []
        for place, id in ((first["place"], "nothing"), ("/elsewhere", asked.id)):
            with pytest.raises(Failed) as refused:
                client("answer_need", body={"place": place, "id": id, "text": "x"})
            assert refused.value.status == 404


def test_of_people_who_answer_at_once_exactly_one_counts_and_the_others_see_it(tmp_path: Path) -> None:
    town = make_kingdom(tmp_path)
    ask_in_kingdom(town, "task-20261118-001", "Who?")
    url = f"sqlite:{tmp_path}/jobs.db"
    with gateway(url, tmp_path / "log") as one, gateway(url, tmp_path / "log") as two:

        def answer(number: int) -> str:
            client = Client((one, two)[number % 2])
            given = {"place": str(town), "id": "task-20261118-001", "text": f"me {number}", "responder": f"p{number}"}
            try:
                return f"counts: {client('answer_need', body=given)['answer']}"
            except Failed as exc:
                assert exc.status == 409
                return str(exc.error["message"])

        with ThreadPoolExecutor(8) as threads:
            told = list(threads.map(answer, range(8)))
        kept = answer_in_kingdom(town, "task-20261118-001")
        assert [text for text in told if text.startswith("counts")] == [f"counts: {kept.answer}"]
        others = [text for text in told if not text.startswith("counts")]
        assert len(others) == 7 and all(kept.responder in text and kept.answer in text for text in others)


def test_rights_decide_who_sees_and_who_answers(tmp_path: Path) -> None:
    team = make_team(tmp_path)
    asked = ask_in_team(team, "Go on?")
    keys, url = tmp_path / "keys", f"sqlite:{tmp_path}/jobs.db"

    def key(*options: str) -> dict[str, str]:
        done = CliRunner().invoke(cli, ["gateway-keys", "add", "--keys", str(keys), "--json", *options])
        found = json.loads(done.output)
        return {"key": found["accessKey"], "secret": found["secret"]}

    boss, viewer = key("--name", "boss"), key("--name", "viewer", "--right", "look")
    part = key("--queue", "orders-*")
    answer = {"place": str(team), "id": asked.id, "text": "yes", "responder": "somebody else"}
    with gateway(url, tmp_path / "log", "--keys", str(keys)) as running:
        looks = Client(running, **viewer)
        assert looks("list_needs")["waiting"] == 1 and looks("list_teams")["teams"][0]["report"]
        for client, names in (
            (looks, ["answer_need"]),
            (Client(running, **part), ["list_needs", "answer_need", "list_teams", "list_kingdoms"]),
        ):
            for name in names:
                with pytest.raises(Failed) as refused:
                    client(name, **({"body": answer} if name == "answer_need" else {}))
                assert (refused.value.status, refused.value.error["code"]) == (403, "NotAllowed")
        assert Client(running, **boss)("answer_need", body=answer) == {"answer": "yes", "responder": "boss"}
    again = ask_in_team(team, "Still?")
    with gateway(url, tmp_path / "log", "--read-only") as running:
        client = Client(running)
        assert [need["id"] for need in client("list_needs")["needs"]] == [again.id]
        with pytest.raises(Failed) as refused:
            client("answer_need", body={"place": str(team), "id": again.id, "text": "yes"})
        assert (refused.value.status, refused.value.error["code"]) == (403, "ReadOnly")
    assert answer_in_team(team, again.id).state == "open"


def test_a_team_is_shown_as_its_command_shows_it_with_what_each_agent_has_in_hand(tmp_path: Path) -> None:
    team = make_team(tmp_path)
    with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log") as running:
        client = Client(running)
        [shown] = client("list_teams")["teams"]
        assert shown["report"]["monitor"] == {"pid": None, "state": "gone"}
        served = Served(team)
        try:
            for body in ("goal: fly", "goal: swim"):
                ignite(team, "send", "--to", "worker", "--type", "user_goal", "--body", body)

            def worker() -> Any:
                [found] = client("list_teams")["teams"]
                return next(each for each in found["report"]["agents"] if each["name"] == "worker")

            def at_work() -> Any:
                """Return the hand of the worker; the monitor notes its presence and the time some moments later."""
                found = worker()
                presence = (found["presence"] or {}).get("presence")
                noted = presence in ("busy", "away", "stale") and all(hand["since"] for hand in found["hand"])
                return found["hand"] if noted and found["ready"] == 1 else None

            [hand] = until(at_work)
            assert (hand["type"], hand["sender"], hand["attempt"]) == ("user_goal", "user", 1)

            def same() -> bool:
                [shown], [line] = client("list_teams")["teams"], printed(tmp_path, "ignite", "status", "--json")
                moving = ("oldest",)
                for each in (*shown["report"]["agents"], *line["agents"]):
                    for name in moving:
                        each.pop(name)
                return bool(shown["report"]["agents"] == line["agents"])

            until(same)
        finally:
            served.stop()
        until(lambda: client("list_teams")["teams"][0]["report"]["monitor"]["pid"] is None)


def test_a_kingdom_is_shown_with_its_roles_soldiers_and_what_is_held_and_why(tmp_path: Path) -> None:
    realm = Realm(tmp_path / "town", "", SystemClock())
    go = tmp_path / "go"
    realm.general(script=f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n")
    realm.king(concurrency={"max_soldiers": 1}, gate={"enabled": False})  # a busy machine is no part of this
    try:
        with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log", "--kingdom", str(realm.root)) as running:
            client = Client(running)

            def report() -> Any:
                [found] = client("list_kingdoms")["kingdoms"]
                assert found["fault"] is None
                return found["report"]

            assert report()["up"] is None
            up = realm.start("up")
            until(lambda: report()["up"] == up.pid)
            realm.event("evt-1")
            until(lambda: report()["sessions"])
            realm.event("evt-2")
            found = until(lambda: (each := report())["events"] and each)
            [held] = found["events"]
            assert (held["id"], held["why"]) == ("evt-2", "held: 1 of 1 soldiers busy")
            [session] = found["sessions"]
            assert session["general"] == "gen-pr" and os.path.exists(f"/proc/{session['pid']}")
            assert {role["name"] for role in found["roles"]} >= {"king", "gen-pr"}
            assert [task["why"] for task in found["tasks"]] == ["runs, attempt 1"]
            [line] = printed(tmp_path, "kingdom", "status", "--json", "--home", str(realm.root))
            assert (line["soldiers"], line["most_soldiers"]) == (found["soldiers"], found["most_soldiers"]) == (1, 1)
            go.touch()
            up.terminate()
            until(lambda: report()["up"] is None)
    finally:
        go.touch()
        realm.close()


def test_a_place_that_cannot_be_read_says_why_and_holds_up_no_other(tmp_path: Path) -> None:
    team, town = make_team(tmp_path), make_kingdom(tmp_path)
    ask_in_team(team, "Go on?")
    (town / "config/system.yaml").write_text("queues: [")
    with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log") as running:
        client = Client(running)
        found = client("list_needs")
        assert [need["source"] for need in found["needs"]] == ["ignite"]
        faults = {place["source"]: place["fault"] for place in found["places"]}
        assert faults["ignite"] is None and faults["kingdom"].startswith("InvalidConfig")
        assert client("list_kingdoms")["kingdoms"][0]["report"] is None


def test_mail_to_the_person_is_answered_too(tmp_path: Path) -> None:
    team = make_team(tmp_path)
    ignite(team, "say", "user", "I am done", "--from", "worker")
    with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log") as running:
        client = Client(running)
        [need] = client("list_needs")["needs"]
        assert (need["kind"], need["sender"], need["body"].strip()) == ("mail", "worker", "I am done")
        client("answer_need", body={"place": need["place"], "id": need["id"], "text": "thank you"})
        assert client("list_needs")["needs"] == []
    with Workspace.open(team) as workspace:
        assert workspace.mail.load("worker").ready == 1
