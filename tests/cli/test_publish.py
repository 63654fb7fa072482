"""`pabal publish`: bodies from everywhere, every option, and the error for each bad input."""

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, Pabal


def shown(pabal: Pabal, id: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(pabal.ok("show", id, "--json"))
    return found


def test_it_prints_the_id_of_what_is_stored(any_pabal: Pabal) -> None:
    id = any_pabal.ok("publish", "jobs", '{"temp": 36.5}')
    assert shown(any_pabal, id)["body"] == {"temp": 36.5}
    assert any_pabal.counts() == {"ready": 1}


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("hello", "hello"),
        ("hello world", "hello world"),
        ("3", 3),
        ("null", None),
        ('"3"', "3"),
        ("[]", []),
        ("é", "é"),
    ],
)
def test_a_word_is_text_and_json_is_json(pabal: Pabal, text: str, body: object) -> None:
    assert shown(pabal, pabal.ok("publish", "jobs", text))["body"] == body


def test_text_and_bytes_are_taken_as_they_stand(pabal: Pabal) -> None:
    assert shown(pabal, pabal.ok("publish", "jobs", "{not json", "--text"))["body"] == "{not json"
    raw = shown(pabal, pabal.ok("publish", "jobs", "--bytes", stdin=b"\xff\x00"))
    assert (raw["body"], raw["body_encoding"]) == ("/wA=", "base64")


def test_the_body_comes_from_stdin_or_a_file(pabal: Pabal, tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    path.write_text('{"from": "file"}\n')
    assert shown(pabal, pabal.ok("publish", "jobs", "--file", str(path)))["body"] == {"from": "file"}
    assert shown(pabal, pabal.ok("publish", "jobs", stdin='{"from": "stdin"}'))["body"] == {"from": "stdin"}
    assert shown(pabal, pabal.ok("publish", "jobs", "-", stdin="a line\n"))["body"] == "a line"


def test_each_line_is_a_message_and_all_or_none_are_stored(any_pabal: Pabal) -> None:
    pabal = any_pabal
    ids = pabal.ok("publish", "jobs", "--lines", "--type", "many", stdin='{"n": 1}\nword\n[3]\n').split()
    found = [shown(pabal, id) for id in ids]
    assert [message["body"] for message in found] == [{"n": 1}, "word", [3]]
    assert {message["type"] for message in found} == {"many"}
    ran = pabal("publish", "jobs", "--lines", stdin="1\n{broken\n")
    assert ran.code == 2 and "NotJson" in ran.err
    assert pabal.ok("publish", "jobs", "--lines", stdin="") == ""
    assert pabal.counts()["ready"] == 3


def test_every_option_reaches_the_message(pabal: Pabal) -> None:
    id = pabal.ok(
        *("publish", "jobs", "{}", "--id", "evt-1:2", "--type", "order.placed", "--priority", "high"),
        *("--group", "g", "--target", "me", "--sender", "you", "--reply-to", "answers", "--thread-id", "t"),
        *("--trace-id", "tr", "--dedup-key", "k", "--ttl", "1h", "--header", "a=b=c", "--header", "d="),
        *("--attribute", "n=3", "--attribute", "word=some text"),
    )
    assert id == "evt-1:2"
    found = shown(pabal, id)
    expected = {
        "type": "order.placed", "priority": 6, "group": "g", "target": "me", "sender": "you", "reply_to": "answers",
        "thread_id": "t", "trace_id": "tr", "dedup_key": "k", "headers": {"a": "b=c", "d": ""},
        "attributes": {"n": 3, "word": "some text"}, "state": "ready",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["expires_at"] is not None


def test_a_delayed_message_is_not_to_be_had_yet(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "later", "--delay", "5m")
    assert pabal.counts() == {"delayed": 1}
    assert pabal("consume", "jobs").code == 1


def test_a_duplicate_returns_the_first_id_and_says_so(pabal: Pabal) -> None:
    first = pabal.ok("publish", "jobs", "1", "--dedup-key", "k")
    again = pabal("publish", "jobs", "2", "--dedup-key", "k")
    assert (again.code, again.out.strip()) == (0, first)
    assert "duplicate" in again.err
    document = pabal("publish", "jobs", "2", "--dedup-key", "k", "--json").documents
    assert document == [{"queue": "jobs", "id": first, "duplicate": True, "dead": False}]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{broken", "NotJson"),
        ("12-3", "NotJson"),
        ("", "NotJson"),
        ("[" * 100 + "]" * 100, "TooDeep"),
        ("[" * 100_000, "TooDeep"),
        ("9" * 5000, "NumberOutOfRange"),
        (str(2**64), "NumberOutOfRange"),
        ("NaN", "InvalidNumber"),
        ("-Infinity", "InvalidNumber"),
        ("1e999", "InvalidNumber"),
        ('{"a": 1, "a": 2}', "DuplicateKey: 'a' is there twice"),
        (r'"\ud800"', "InvalidText"),
        ("{}".encode("utf-16"), "NotUtf8"),
        (b"\xff", "NotUtf8"),
    ],
)
def test_a_bad_body_is_named_and_nothing_is_stored(pabal: Pabal, body: str | bytes, code: str) -> None:
    ran = pabal("publish", "jobs", stdin=body)
    assert ran.code == 2
    assert ran.err.startswith(f"pabal: {code}") and ran.err.count("\n") == 1
    assert "--bytes" in ran.err
    assert not (pabal.place / "store.db").exists()


@pytest.mark.parametrize("stdin", ["", " \n"])
def test_an_empty_body_is_called_empty(pabal: Pabal, stdin: str) -> None:
    said = "pabal: NotJson: the body is empty; to send it as it stands use --text or --bytes\n"
    assert pabal("publish", "jobs", stdin=stdin).err == said


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/b", ".", "..", "", ".a", "a.", "a\nb", "a\tb", "é", "x" * 201, "a..b", "\udcff"]
)
def test_a_bad_queue_name_is_refused_in_one_printable_line(pabal: Pabal, name: str) -> None:
    ran = pabal("publish", "--", name, "1")
    assert ran.code == 2
    assert ran.err.startswith("pabal: InvalidName: queue name must be 1-200")
    assert ran.err.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--priority", "urgent"], "UsageError"),
        (["--priority", "101"], "UsageError"),
        (["--delay", "-1"], "UsageError"),
        (["--delay", "nan"], "UsageError"),
        (["--ttl", "0"], "UsageError"),
        (["--header", "nothing"], "UsageError"),
        (["--header", "a=1", "--header", "a=2"], "UsageError"),
        (["--header", "a=b\r\nc"], "InvalidHeader"),
        (["--attribute", "a={b"], "NotJson"),
        (["--target", "a/b"], "InvalidName"),
        (["--sender", "-x"], "InvalidName"),
        (["--id", "a/b"], "InvalidName"),
        (["--type", "a\x00b"], "InvalidText"),
        (["--group", "x" * 2000], "InvalidInput"),
        (["--text", "--bytes"], "UsageError"),
        (["--lines", "--id", "one"], "UsageError"),
        (["--lines", "--dedup-key", "one"], "UsageError"),
        (["--file", "/nowhere/at/all"], "UsageError"),
        (["--nonsense"], "UsageError"),
    ],
)
def test_a_bad_option_is_named(pabal: Pabal, options: list[str], code: str) -> None:
    ran = pabal("publish", "jobs", "1", *options)
    assert ran.code == 2, ran
    assert ran.err.startswith(f"pabal: {code}: ") and ran.err.count("\n") == 1


def test_a_missing_file_is_named(pabal: Pabal) -> None:
    ran = pabal("publish", "jobs", "--file", "/nowhere/at/all")
    assert ran.code == 2
    assert "/nowhere/at/all" in ran.err


def test_a_body_over_the_limit_is_too_large_by_one_byte(any_pabal: Pabal) -> None:
    any_pabal.ok("policy", "set", "jobs", "--set", "maxBytes=2000")
    ran = any_pabal("publish", "jobs", "--text", stdin="x" * 2001)
    assert (ran.code, ran.err.split(":")[1]) == (2, " TooLarge")
    assert "jobs takes messages of 2000 bytes at most, encoded" in ran.err
    remedy = ran.err.split("`")[1].split()
    assert remedy[:4] == ["pabal", "policy", "set", "jobs"]
    any_pabal.ok(*remedy[1:])
    any_pabal.ok("publish", "jobs", "--text", stdin="x" * 2001)


def test_the_largest_of_all_bodies_is_refused_while_reading(pabal: Pabal, tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    ran = pabal("publish", "jobs", "--bytes", "--file", str(path))
    assert (ran.code, ran.err) == (2, "pabal: TooLarge: a body has at most 67108864 bytes; there are more\n")


def test_a_full_queue_gives_5(pabal: Pabal) -> None:
    pabal.ok("policy", "set", "jobs", "--set", "maxWaiting=1")
    pabal.ok("publish", "jobs", "1")
    ran = pabal("publish", "jobs", "2")
    assert (ran.code, ran.err.split(":")[1]) == (5, " QueueFull")


def test_two_names_that_differ_in_case_only_are_refused(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    ran = pabal("publish", "Jobs", "1")
    assert (ran.code, ran.err.split(":")[1]) == (2, " NameTaken")


def test_no_body_at_a_terminal_is_explained_and_does_not_hang(pabal: Pabal) -> None:
    leader, follower = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "publish", "jobs"], stdin=follower, capture_output=True, env=pabal.env, timeout=30
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert done.returncode == 2
    assert b"give a BODY" in done.stderr


def test_an_error_never_shows_the_body(pabal: Pabal) -> None:
    pabal.ok("policy", "set", "jobs", "--set", "maxBytes=100")
    ran = pabal("publish", "jobs", "--text", stdin="secret" * 100)
    assert "secret" not in ran.err + ran.out


def test_a_body_that_does_not_fit_is_said_to_be_dead_and_comes_back_when_it_is_mended(
    any_pabal: Pabal, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_pabal.ok("policy", "set", "jobs", "--set", 'schema={"type":"object"}', "--set", "onInvalid=dead-letter")
    ran = any_pabal("publish", "jobs", "[1]", "--id", "unfit")
    assert (ran.code, ran.out) == (0, "unfit\n") and ran.err.startswith(
        "dead: its body does not fit the schema of jobs"
    )
    assert any_pabal("publish", "jobs", "[2]", "--json").documents[0]["dead"] is True
    assert any_pabal("publish", "jobs", "{}", "--json").documents[0]["dead"] is False
    assert "2  VALIDATION_ERROR" in any_pabal.ok("list-dlq", "jobs")
    assert 'pabal_dead_letters_total{queue="jobs",reason="VALIDATION_ERROR"} 2' in any_pabal.ok("metrics")
    ran = any_pabal("reprocess", "jobs", "unfit")
    assert ran.code == 1 and "unfit stays dead: " in ran.err and "edit-dlq jobs unfit" in ran.err
    monkeypatch.setenv("VISUAL", "sed -i s/1/2/")
    ran = any_pabal("edit-dlq", "jobs", "unfit")
    assert ran.code == 2 and "Nothing was changed" in ran.err and any_pabal.counts()["dead"] == 2
    any_pabal.ok("policy", "set", "jobs", "--set", 'schema={"type":"array"}')
    assert any_pabal("reprocess", "jobs", "--reason", "VALIDATION_ERROR").out.splitlines()[0] == "unfit"
    assert any_pabal.counts() == {"ready": 3}


def test_a_unique_message_is_stored_once_while_it_waits(any_pabal: Pabal) -> None:
    first = any_pabal.ok("publish", "jobs", "1", "--unique", "rebuild")
    again = any_pabal("publish", "jobs", "1", "--unique", "rebuild")
    assert again.out.strip() == first and "duplicate" in again.err
    any_pabal.ok("consume", "jobs", "--ack")
    assert any_pabal.ok("publish", "jobs", "1", "--unique", "rebuild") != first
