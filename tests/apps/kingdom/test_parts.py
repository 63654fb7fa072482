"""The parts of a kingdom: documents and their words, ids, manifests, routing, the gate, the journal."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal import jsontext
from pabal.apps.kingdom.codec import KingdomCodec
from pabal.apps.kingdom.config import King, System, read_config
from pabal.apps.kingdom.documents import Event, Result, SoldierResult, read
from pabal.apps.kingdom.health import read_health
from pabal.apps.kingdom.id_sequence import IdSequence
from pabal.apps.kingdom.journal import Journal
from pabal.apps.kingdom.manifests import Table, check_claims, load, read_manifest
from pabal.errors import DecodeError, InvalidBody, InvalidConfig, NameTaken
from pabal.testing import ManualClock

CODEC = KingdomCodec()
EVENT = b'{"id":"evt-1","type":"a.b","repo":null,"payload":{"status":"x"},"priority":"low","status":"pending"}'
SEED = {
    "gen-pr": """\
name: gen-pr
description: "PR 리뷰 전문 장군"
timeout_seconds: 1800       # 30분

cc_plugins:
  - friday

subscribes:
  - github.pr.review_requested
  - github.pr.mentioned
  - github.pr.assigned

schedules: []
""",
    "gen-jira": """\
name: gen-jira
description: "Jira 티켓 구현 장군"
timeout_seconds: 5400
cc_plugins:
  - sunday
subscribes:
  - jira.ticket.assigned
  - jira.ticket.updated
schedules: []
""",
    "gen-test": """\
name: gen-test
description: "테스트 코드 작성 장군"
timeout_seconds: 3600
cc_plugins:
  - saturday
subscribes: []    # none
schedules:
  - name: daily-test
    cron: "0 22 * * 1-5"
    task_type: "daily-test-generation"
    payload:
      description: "Weekday 22:00 test generation"
""",
}

# Documents


def test_an_event_is_addressed_by_its_class_and_an_answer_by_itself() -> None:
    message = CODEC.decode(EVENT)
    assert (message.id, message.type, message.target, message.priority) == ("evt-1", "a.b", "low.a.b", -6)
    assert message.body == jsontext.decode(EVENT)
    reply = CODEC.decode(b'{"id":"evt-2","type":"slack.thread.reply","payload":{}}')
    assert reply.target == "answer"
    odd = CODEC.decode('{"id":"evt-3","type":"any text: 왕","priority":"urgent"}'.encode())
    assert odd.target.startswith("normal.") and odd.priority == 0, "an unknown priority is normal"


def test_a_task_is_addressed_to_its_general_and_is_one_for_its_event() -> None:
    task = {"id": "task-20260207-001", "event_id": "evt-1", "target_general": "gen-pr", "type": "a.b"}
    message = CODEC.decode(jsontext.encode(task))
    assert (message.target, message.dedup_key) == ("gen-pr", "evt-1")
    by_time = CODEC.decode(jsontext.encode({**task, "event_id": "schedule-daily"}))
    assert by_time.dedup_key == ""


@pytest.mark.parametrize(
    ("document", "state", "word"),
    [
        (EVENT, "done", "dispatched"),
        (EVENT, "inflight", "pending"),
        (b'{"id":"task-1","event_id":"e","target_general":"g","type":"t"}', "inflight", "in_progress"),
        (b'{"id":"task-1","event_id":"e","target_general":"g","type":"t","status":"pending"}', "done", "completed"),
        (b'{"id":"task-1","event_id":"e","target_general":"g","type":"t","status":"skipped"}', "done", "skipped"),
        (b'{"id":"msg-1","type":"report","content":"c"}', "done", "sent"),
        (b'{"id":"msg-1","type":"report","content":"c"}', "dead", "failed"),
        (b"{}", "done", "dispatched"),
    ],
)
def test_the_word_follows_the_state_and_nothing_else_changes(document: bytes, state: str, word: str) -> None:
    restated = CODEC.restate(document, state, at=0)
    before, after = json.loads(document), json.loads(restated)
    assert after.pop("status") == word
    before.pop("status", None)
    assert before == after and CODEC.restate(restated, state, at=0) == restated


def test_the_status_of_a_result_is_its_own() -> None:
    result = b'{"task_id":"task-20260207-001","status":"success","summary":"s"}'
    assert CODEC.restate(result, "done", at=0) == result


def test_odd_spacing_survives_a_change_of_the_word() -> None:
    odd = b' {\n\t"id" : "evt-1" ,"type":"a", "status"  :  "pending" , "payload": {"a" :1}}\n'
    assert CODEC.restate(odd, "done", at=0) == odd.replace(b'"pending"', b'"dispatched"')


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_a_decode_error(data: bytes) -> None:
    for attempt in (lambda: CODEC.decode(data, id="x"), lambda: CODEC.restate(data, "done", at=0)):
        try:
            attempt()
        except DecodeError:
            pass


@given(st.dictionaries(st.text(max_size=5), st.none() | st.integers(-5, 5) | st.text(max_size=5), max_size=4))
def test_restating_any_object_changes_only_its_status(fields: dict[str, object]) -> None:
    document = {**fields, "status": "pending"}
    data = jsontext.pretty(document)
    if "task_id" not in fields:
        assert {**json.loads(CODEC.restate(data, "done", at=0)), "status": ""} == {**document, "status": ""}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": "failed"}, "error"),
        ({"status": "killed"}, "error"),
        ({"status": "needs_human"}, "question"),
        ({"status": "skipped"}, "reason"),
        ({"status": "done"}, "status"),
        ({"status": "success", "notify_channel": "#general"}, "notify_channel"),
        ({"status": "success", "proclamation": {"channel": "C1", "message": ""}}, "proclamation"),
        ({"status": "success", "mood": "great"}, "mood"),
        ({"status": "success", "task_id": "task-1"}, "task_id"),
    ],
)
def test_a_soldiers_result_is_read_strictly(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidBody, match=reason):
        read(SoldierResult, {"task_id": "task-20260207-001", "summary": "s", **fields})


def test_ids_past_999_are_results_too() -> None:
    assert read(Result, {"task_id": "task-20260207-1000", "status": "success", "summary": "s"})


# Ids


def test_ids_count_within_a_day_and_go_on_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    clock.step_wall(1_770_463_000 - clock.now())
    first = IdSequence(tmp_path / "king/task-seq", "task", clock, lambda prefix: 0)
    assert first.take(2) == ["task-20260207-001", "task-20260207-002"]
    again = IdSequence(tmp_path / "king/task-seq", "task", clock, lambda prefix: 0)
    assert again.take() == ["task-20260207-003"]
    assert (tmp_path / "king/task-seq").read_text() == "20260207:003\n"
    clock.advance(86400)
    assert again.take() == ["task-20260208-001"]


def test_ids_grow_past_999(tmp_path: Path, clock: ManualClock) -> None:
    found = IdSequence(tmp_path / "seq", "task", clock, lambda prefix: 998).take(3)
    assert [id.rpartition("-")[2] for id in found] == ["999", "1000", "1001"]


@pytest.mark.parametrize("text", ["", "20260207", "\x00\x00", "nonsense:xyz"])
def test_a_damaged_count_goes_on_after_what_is_in_use(tmp_path: Path, clock: ManualClock, text: str) -> None:
    (tmp_path / "seq").write_text(text)
    asked: list[str] = []

    def highest(prefix: str) -> int:
        asked.append(prefix)
        return 41

    [id] = IdSequence(tmp_path / "seq", "task", clock, highest).take()
    assert id.endswith("-042") and asked == [id.removesuffix("042")]


def test_two_processes_never_get_the_same_id(tmp_path: Path, clock: ManualClock) -> None:
    makers = [IdSequence(tmp_path / "seq", "msg", clock, lambda prefix: 0) for _ in range(3)]
    makers[0].block = 7
    found = [id for _ in range(10) for maker in makers for id in maker.take(2)]
    assert len(set(found)) == len(found)


# Manifests and routing


def test_the_manifests_of_the_seed_load_unchanged(tmp_path: Path) -> None:
    for name, text in SEED.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    loaded = load(tmp_path)
    assert loaded.problems == () and [manifest.name for manifest in loaded.manifests] == sorted(SEED)
    table = Table(loaded, "claude")
    assert (found := table.find("github.pr.mentioned")) and found.timeout_seconds == 1800
    assert table.find("github.pr.comment") is None and table.generals["gen-test"].schedules[0].cron == "0 22 * * 1-5"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("name: pr", "gen-"),
        ("timeout_seconds: 29", "at least 30"),
        ("surprise: 1", "surprise"),
        ("subscribes: [github..pr]", "github.pr.assigned"),
        ("cc_plugins: [../x]", "cc_plugins"),
        ("mode: wild", "mode"),
        ("schedules: [{name: x}]", "cron"),
        ("[", "NotYaml"),
        ("description: &a x", "Alias"),
    ],
)
def test_a_broken_manifest_is_skipped_by_name_and_the_others_work(tmp_path: Path, change: str, reason: str) -> None:
    sound = ["name: gen-bad", "description: x", "timeout_seconds: 30", "subscribes: []", "schedules: []"]
    lines = [line for line in sound if line.split(":")[0] != change.split(":")[0]]
    (tmp_path / "gen-bad.yaml").write_text("\n".join([*lines, change]))
    (tmp_path / "gen-jira.yaml").write_text(SEED["gen-jira"])
    loaded = load(tmp_path)
    assert [manifest.name for manifest in loaded.manifests] == ["gen-jira"]
    [problem] = loaded.problems
    assert problem.startswith("skipped: ") and "gen-bad.yaml" in problem and reason in problem


def test_a_manifest_that_is_no_plain_file_is_skipped_and_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gen-fifo.yaml")
    (tmp_path / "gen-zero.yaml").symlink_to("/dev/zero")
    with (tmp_path / "gen-huge.yaml").open("wb") as file:
        file.truncate(100_000_000)
    (tmp_path / "gen-jira.yaml").write_text(SEED["gen-jira"])
    loaded = load(tmp_path)
    assert [manifest.name for manifest in loaded.manifests] == ["gen-jira"]
    assert [next(word for word in ("'p'", "'c'", "100000000") if word in problem) for problem in loaded.problems] == [
        "'p'",
        "100000000",
        "'c'",
    ]


def test_the_journal_takes_names_that_are_no_text(tmp_path: Path, clock: ManualClock) -> None:
    Journal(tmp_path / "events.log", clock).note("system.warning", "king", problem="skipped: \udcff.yaml")
    assert "udcff.yaml" in json.loads((tmp_path / "events.log").read_text())["data"]["unwritable"]


def test_two_claims_to_one_type_leave_it_with_the_first_and_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SEED["gen-pr"])
    (tmp_path / "b.yaml").write_text(SEED["gen-jira"].replace("jira.ticket.updated", "github.pr.assigned"))
    table = Table(load(tmp_path))
    assert (found := table.find("github.pr.assigned")) and found.name == "gen-pr"
    assert table.problems == ["github.pr.assigned is claimed by gen-pr; gen-jira does not get it"]
    with pytest.raises(NameTaken, match="claimed by gen-pr"):
        check_claims(read_manifest(tmp_path / "b.yaml"), load(tmp_path).manifests)


# Gate and configuration


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (None, "green"),
        ("", "orange"),
        ("{", "orange"),
        ("[]", "orange"),
        ('{"health": "green"}', "green"),
        ('{"health": "red"}', "red"),
        ("{}", "green"),
        ('{"health": "purple", "timestamp": "2026-02-07T10:00:00Z"}', "orange"),
        ('{"health": "green", "timestamp": "now"}', "orange"),
        ('{"health": "red", "timestamp": "2026-02-07T09:59:00Z"}', "red"),
        ('{"health": "green", "timestamp": "2026-02-07T09:58:00Z"}', "green"),
        ('{"health": "green", "timestamp": "2026-02-07T09:57:59Z"}', "orange"),
    ],
)
def test_a_reading_that_cannot_be_trusted_is_orange_with_a_warning(
    tmp_path: Path, text: str | None, level: str
) -> None:
    (tmp_path / "state").mkdir()
    if text is not None:
        (tmp_path / "state/resources.json").write_text(text)
    now = 1_770_458_400.0  # 2026-02-07T10:00:00Z
    health = read_health(tmp_path, now, 120.0)
    assert health.level == level and bool(health.warning) == (level == "orange")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("concurrency: {max_soldiers: 0}", "at least 1"),
        ("retry: {max_attempts: many}", "max_attempts"),
        ("colour: red", "colour"),
        ("- 1", "object"),
    ],
)
def test_a_mistake_in_the_configuration_has_a_name(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "king.yaml").write_text(text)
    with pytest.raises(InvalidConfig, match=reason):
        read_config(tmp_path / "king.yaml", King)


def test_the_seeds_king_yaml_is_read_and_its_defaults_are_ours(tmp_path: Path) -> None:
    (tmp_path / "king.yaml").write_text(
        'slack:\n  default_channel: "dev-eddy"\nretry:\n  max_attempts: 2\n  backoff_seconds: 60\n'
        "concurrency:\n  max_soldiers: 3         # most\nintervals:\n  event_check_seconds: 10\n"
        "  result_check_seconds: 10\n  schedule_check_seconds: 60\n"
    )
    found = read_config(tmp_path / "king.yaml", King)
    assert found.slack.default_channel == "dev-eddy"
    assert (found.retry, found.concurrency, found.intervals) == (King().retry, King().concurrency, King().intervals)
    assert read_config(tmp_path / "absent.yaml", System) == System()


def test_the_journal_is_whole_lines_and_goes_on_after_rotation(tmp_path: Path, clock: ManualClock) -> None:
    journal = Journal(tmp_path / "events.log", clock)
    journal.note("task.created", "king", task="t1", type="x")
    (tmp_path / "events.log").rename(tmp_path / "events-1.log")
    journal.note("task.started", "gen-pr", task="t1")
    [old], [new] = (
        list(map(json.loads, (tmp_path / name).read_text().splitlines())) for name in ("events-1.log", "events.log")
    )
    assert (old["type"], old["actor"], old["data"]) == ("task.created", "king", {"task": "t1", "type": "x"})
    assert new["type"] == "task.started" and set(new) == {"ts", "type", "actor", "data"}


def test_an_event_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    event = read(Event, jsontext.decode(EVENT))
    message = CODEC.decode(CODEC.encode(CODEC.decode(EVENT)))
    assert read(Event, message.body) == event
