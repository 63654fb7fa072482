"""Plain messages, questions and the mail of the past, as people and agents give the commands."""

from __future__ import annotations

import json
from pathlib import Path

from tests.apps.ignite.table import Served, ignite, soon

TEAM = "agents: {leader: {wake: hook}, architect: {wake: hook}, リーダー: {wake: hook}}"


def text(root: Path, *arguments: str, code: int = 0, stdin: bytes = b"") -> str:
    ran = ignite(root, *arguments, stdin=stdin)
    assert ran.returncode == code, ran
    return (ran.stdout if code == 0 else ran.stderr).decode()


def test_agents_and_people_talk(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    (root / "team.yaml").write_text(TEAM)
    text(root, "init")
    served = Served(root)
    try:
        first = text(root, "say", "architect", "The old tables go tonight.", "--subject", "移行計画").strip()
        path = text(root, "inbox", "architect", "--wait", "20").strip()
        text(root, "say", "architect", "-", "--from", "leader", "--urgent", stdin=b"stop: main is red\nreally\n")
        shown = text(root, "inbox", "architect")
        assert soon(lambda: "woken" in text(root, "inbox", "architect"))
        assert "! critical mail waits: stop: main is red (from leader): `pabal ignite read" in shown
        assert "移行計画" in shown and "in hand" in shown and "waiting  leader  critical" in shown
        waiting = [json.loads(line) for line in text(root, "inbox", "architect", "--json").splitlines()]
        assert [item["state"] for item in waiting] == ["in hand", "waiting"]
        assert "critical mail waits: stop" in text(root, "beat", "architect")
        assert "From: leader\n" in text(root, "read", waiting[1]["id"])
        assert "really" in text(root, "read", "--body", waiting[1]["id"])
        reply = text(root, "reply", path, "the", "API", "needs", "a", "day").strip()
        assert f"  {reply}  " in text(root, "inbox", "user")
        assert "text: the API needs a day" in text(root, "read", reply)
        assert text(root, "done", reply) == f"done {reply}\n"
        assert "no agent holds" in text(root, "done", reply, code=3)
        assert reply in text(root, "search", "needs", "--since", "1h")
        assert [json.loads(line)["id"] for line in text(root, "thread", first, "--json").splitlines()] == [first, reply]
        assert "    the API needs a day\n" in text(root, "thread", reply)
        assert json.loads(text(root, "search", "移行", "--to", "architect", "--limit", "1", "--json"))["id"] == first
        assert text(root, "search", "nothing", code=1) == ""
        assert "no message or thread" in text(root, "thread", "nothing", code=3)
        assert "give the TEXT" in text(root, "say", "leader", " ", code=2)
    finally:
        served.stop()


def test_a_question_is_asked_and_answered(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    (root / "team.yaml").write_text(TEAM)
    text(root, "init")
    asked = ("ask", "user", "Drop them?", "--confirm", "--from", "leader", "--id", "q-1")
    assert "ask again with --id q-1" in text(root, *asked, "--wait", "0", code=1)
    assert "on a terminal, or with --from user" in text(root, "reply", "q-1", "y", code=2)  # perhaps the asker itself
    assert "leader cannot answer it" in text(root, "reply", "q-1", "y", "--from", "leader", code=2)
    assert "answer yes or no" in text(root, "reply", "q-1", "perhaps", "--from", "user", code=2)
    assert text(root, "reply", "q-1", "n", "--from", "user") == "q-1\n"
    assert text(root, *asked) == "no\n"
    shown = json.loads(text(root, *asked, "--json"))
    assert (shown["state"], shown["answer"], shown["responder"]) == ("answered", "no", "user")
    assert "answered already, by user" in text(root, "reply", "q-1", "y", "--from", "user", code=2)
    second = ("ask", "architect", "Which?", "--from", "リーダー", "--id", "q-2")
    assert "question q-2 to architect" in text(root, *second, "--wait", "0", code=1)
    assert "leader cannot answer it" in text(root, "reply", "q-2", "x", "--from", "leader", code=2)
    text(root, "reply", "q-2", "-", "--from", "user", stdin=b"one\n\x1b]52;c;b3duZWQ=\x07\ntwo")
    ran = ignite(root, *second)
    assert ran.stdout == b"one\n\\x1b]52;c;b3duZWQ=\\x07\ntwo\n" and b"answered by user" in ran.stderr
    text(root, "say", "architect", "hello", "--from", "リーダー")
    text(root, "say", "リーダー", "hello", "--from", "architect")
    assert text(root, "search", "hello", "--from", "リーダー").count("リーダー  architect") == 1
    assert text(root, "search", "hello", "--to", "リーダー").count("architect  リーダー") == 1
    assert text(root, "search", "hello", "--from", "nobody", code=1) == ""
    assert "closed" in text(root, "ask", "user", "Now?", "--from", "leader", "--ttl", "0.1", "--wait", "20", code=1)
