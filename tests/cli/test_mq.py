"""The verbs of `pabal mq`, through a manager and on a store itself: the same words, the same answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pabal.cli.main import cli
from pabal.connect import connect
from pabal.ids import is_ours
from tests.cli.command import Ran
from tests.manager.running import Running


class Mq:
    """`pabal mq` on one mailbox or one store."""

    def __init__(self, place: Path, *shared: str) -> None:
        self.place = place
        self.shared = shared

    def __call__(self, verb: str, *options: str, stdin: str = "") -> Ran:
        result = CliRunner().invoke(cli, ["mq", verb, *self.shared, *options], input=stdin, prog_name="pabal")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    def ok(self, verb: str, *options: str) -> str:
        ran = self(verb, *options)
        assert ran.code == 0, ran
        return ran.out.rstrip("\n")

    def data(self, verb: str, *options: str) -> Any:
        return json.loads(self.ok(verb, *options, "--json"))

    def take(self, *options: str, queue: str = "jobs") -> tuple[str, str]:
        """Lease a message; return its key and its lease."""
        found = self.data("consume", "--queue", queue, *options)
        return found["message"]["messageKey"], found["lease"]["leaseId"]

    def restore(self, archive: str) -> str:
        """Restore an archive of dead letters into the store itself."""
        url = self.shared[1] if self.shared[0] == "--url" else f"sqlite:{self.place}/.pabal/pabal.db"
        result = CliRunner().invoke(cli, ["--url", url, "restore", archive], prog_name="pabal")
        assert result.exit_code == 0, result.output
        return result.stdout.rstrip("\n")

    def counts(self, queue: str = "jobs") -> dict[str, int]:
        found = self.data("status", "--queue", queue)["metrics"]
        return {state: count for state, count in found.items() if count}


@pytest.fixture(scope="module", params=["mailbox", "sqlite", "file", "hybrid"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mq]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param != "mailbox":
        yield Mq(folder, "--url", f"{request.param}:{folder}/store")
        return
    manager = Running(folder)
    manager.wait_until_up()
    yield Mq(folder, "--ipc-root", str(manager.ipc))
    manager.end()


@pytest.fixture
def mq(place: Mq, request: pytest.FixtureRequest) -> Mq:
    return place


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own: the manager is shared."""
    return f"q{abs(hash(request.node.name)) % 10**9}"


def test_a_message_goes_the_whole_way(mq: Mq, queue: str) -> None:
    key = mq.ok("publish", "--queue", queue, "--message", '{"temp": 36.5}', "--priority", "5")
    assert key.startswith(f"msg:{queue}:") and is_ours(key.rpartition(":")[2])
    shown = mq.ok("consume", "--queue", queue, "--consumer-id", "worker-01").splitlines()
    fields = dict(line.split(maxsplit=1) for line in shown)
    assert fields["key"] == key and fields["message"] == '{"temp":36.5}'
    assert (fields["attempt"], fields["priority"]) == ("1", "5")
    assert mq.ok("ack", "--message-key", key, "--lease-id", fields["lease"]) == f"done {key}"
    assert mq.ok("ack", "--message-key", key, "--lease-id", fields["lease"]) == f"done {key}"
    assert mq.counts(queue) == {"done": 1}


def test_larger_priorities_come_first(mq: Mq, queue: str) -> None:
    for priority in ("0", "9", "-5"):
        mq.ok("publish", "--queue", queue, "--message", priority, "--priority", priority)
    found = [mq.data("consume", "--queue", queue)["message"]["payload"] for _ in range(3)]
    assert found == [9, 0, -5]


def test_an_empty_queue_gives_nothing_and_ends_with_1(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1", "--delay", "60000")
    ran = mq("consume", "--queue", queue)
    assert (ran.code, ran.out, ran.err) == (1, "", f"nothing to take from {queue}\n")
    as_json = mq("consume", "--queue", queue, "--json")
    assert as_json.code == 1 and as_json.documents == [{"message": None, "lease": None}]
    assert mq.counts(queue) == {"delayed": 1}


def test_consume_waits_for_what_is_on_its_way(mq: Mq, queue: str) -> None:
    began = time.monotonic()
    mq.ok("publish", "--queue", queue, "--message", "1", "--delay", "400")
    assert mq.data("consume", "--queue", queue, "--wait", "20000")["message"]["payload"] == 1
    assert time.monotonic() - began > 0.398  # never before it is due, in milliseconds


def test_nack_without_requeue_buries_and_with_it_follows_the_policy(mq: Mq, queue: str) -> None:
    for number in range(2):
        mq.ok("publish", "--queue", queue, "--message", str(number))
    key, lease = mq.take(queue=queue)
    assert mq.ok("nack", "--message-key", key, "--lease-id", lease, "--reason", "broken") == f"dead {key}"
    again, lease = mq.take(queue=queue)
    assert mq.ok("nack", "--message-key", again, "--lease-id", lease, "--requeue") == f"failed {again}: again in 1 s"
    assert mq.counts(queue) == {"dlq": 1, "delayed": 1}
    listed = mq.ok("list-dlq", "--queue", queue).splitlines()
    assert listed[0].split() == ["KEY", "TRIES", "WHEN", "CODE", "REASON"]
    assert key in listed[1] and "broken" in listed[1] and listed[-1] == "1 dead"


def test_requeue_with_a_delay_of_its_own(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    key, lease = mq.take(queue=queue)
    mq.ok("nack", "--message-key", key, "--lease-id", lease, "--requeue", "--delay", "0")
    assert mq.take(queue=queue)[0] == key
    assert mq("nack", "--message-key", key, "--delay", "5", "--lease-id", lease).code == 2


def test_a_target_is_the_only_one_who_gets_it(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1", "--target", "worker-07")
    assert mq("consume", "--queue", queue, "--consumer-id", "worker-01").code == 1
    assert mq.take("--consumer-id", "worker-07", queue=queue)


def test_ack_without_a_lease_needs_force(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    key, lease = mq.take(queue=queue)
    ran = mq("ack", "--message-key", key)
    assert ran.code == 2 and "--force" in ran.err
    assert mq.ok("ack", "--message-key", key, "--force") == f"done {key}"
    assert mq.counts(queue) == {"done": 1}


def test_a_lease_is_a_fence(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    key, lease = mq.take(queue=queue)
    wrong = mq("ack", "--message-key", key, "--lease-id", "f" * 16)
    assert wrong.code == 4 and "LEASE_MISMATCH" in wrong.err
    mq.ok("nack", "--message-key", key, "--lease-id", lease, "--requeue", "--delay", "60000")
    late = mq("ack", "--message-key", key, "--lease-id", lease)
    assert late.code == 4 and "LEASE_EXPIRED" in late.err
    assert mq.counts(queue) == {"delayed": 1}


def test_a_lease_is_extended(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    key, lease = mq.take("--visibility", "0.3", queue=queue)
    shown = mq.ok("extend-lease", "--message-key", key, "--lease-id", lease, "--visibility", "60")
    assert shown == f"extended {key} by 60s from now"
    time.sleep(0.5)
    assert mq("consume", "--queue", queue).code == 1


def test_an_empty_lease_is_not_extended_and_no_option_is_advised_that_is_not_there(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    key, _ = mq.take(queue=queue)
    ran = mq("extend-lease", "--message-key", key, "--lease-id", "")
    assert ran.code != 0 and "--force" not in ran.err


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("publish", "--queue", "../x", "--message", "1"), 2, "ERR_INVALID_REQUEST"),
        (("publish", "--queue", "{q}", "--message", "{broken"), 2, "PARSE_ERROR"),
        (("publish", "--queue", "{q}", "--message", "1", "--priority", "1000"), 2, "ERR_INVALID_REQUEST"),
        (("ack", "--message-key", "msg:{q}:nope", "--lease-id", "abc"), 3, "MESSAGE_NOT_FOUND"),
        (("ack", "--message-key", "nonsense", "--lease-id", "abc"), 2, "ERR_INVALID_REQUEST"),
        (("reprocess", "--message-key", "msg:{q}:nope"), 3, "DLQ_NOT_FOUND"),
        (("publish", "--queue", "{q}"), 2, "UsageError"),
    ],
)
def test_a_refusal_is_one_line_with_its_code(
    mq: Mq, queue: str, options: tuple[str, ...], code: int, says: str
) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    ran = mq(*[option.replace("{q}", queue) for option in options])
    assert ran.code == code and says in ran.err and ran.err.count("\n") == 1


def test_the_dead_are_counted_reprocessed_archived_and_purged(mq: Mq, queue: str) -> None:
    for number in range(5):
        mq.ok("publish", "--queue", queue, "--message", str(number))
        key, lease = mq.take(queue=queue)
        reason = "odd" if number % 2 else "even"
        mq.ok("nack", "--message-key", key, "--lease-id", lease, "--reason", reason)
    assert mq.data("count-dlq", "--queue", queue)["queues"] == {queue: {"NACKED": 5}}
    assert mq.ok("count-dlq", "--queue", queue).splitlines()[1].split() == [queue, "NACKED", "5"]
    assert mq.ok("reprocess", "--message-key", key) == f"ready {key}"
    assert mq.ok("reprocess", "--queue", queue, "--reason", "odd") == f"2 ready again in {queue}"
    archived = mq.data("archive-dlq", "--queue", queue, "--reason", "even")
    assert archived["archived"] == 2
    lines = [json.loads(line) for line in Path(archived["file"]).read_text().splitlines()]
    assert [line["failure"]["reasonMessage"] for line in lines] == ["even", "even"]
    assert mq.ok("list-dlq", "--queue", queue) == mq.ok("count-dlq", "--queue", queue) == ""
    assert mq.restore(archived["file"]) == f"2 dead in {queue} again"
    again = mq.data("archive-dlq", "--queue", queue)
    assert [json.loads(line) for line in Path(again["file"]).read_text().splitlines()] == lines
    key, lease = mq.take(queue=queue)
    mq.ok("nack", "--message-key", key, "--lease-id", lease)
    assert mq.ok("purge-dlq", "--queue", queue, "--older-than", "1h", "--yes") == f"removed 0 dead from {queue}"
    assert mq("purge-dlq", "--queue", queue).code == 2, "it asks first"
    assert mq.ok("purge-dlq", "--queue", queue, "--yes") == f"removed 1 dead from {queue}"


def test_quarantine_sets_apart_and_release_brings_back(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", '{"a": 1}')
    key, lease = mq.take(queue=queue)
    mq.ok("nack", "--message-key", key, "--lease-id", lease, "--reason", "bad")
    assert "moved 1 to " in mq.ok("quarantine", "--queue", queue, "--reason", "bad")
    assert mq.ok("list-dlq", "--queue", queue) == ""
    assert mq("reprocess", "--message-key", key).code == 3
    assert mq.ok("release", "--queue", queue) == f"1 ready again in {queue}"
    assert mq.data("consume", "--queue", queue)["message"]["payload"] == {"a": 1}


def test_pause_and_resume(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    assert mq.ok("pause", "--queue", queue) == f"{queue} is paused"
    assert mq("consume", "--queue", queue).code == 1
    assert mq.ok("status", "--queue", queue).splitlines()[1].endswith("paused")
    assert mq.ok("resume", "--queue", queue) == f"{queue} is running"
    mq.take(queue=queue)


def test_a_policy_that_cannot_be_read_hides_no_other_queue(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", f"{queue}-next", "--message", "1")
    kind, where = mq.shared
    with connect(where if kind == "--url" else f"mailbox:{where}") as spoiled:
        spoiled.queue(queue).publish(1)
        spoiled.store.configure(queue, {"maxBytes": 1.5})
        all_of_them = mq.ok("status").splitlines()
        [line] = [line for line in all_of_them if line.split()[0] == queue]
        assert line.split()[1] == "1" and "maxBytes" in line
        assert any(line.split()[:2] == [f"{queue}-next", "1"] for line in all_of_them)
        alone = mq.data("status", "--queue", queue)
        assert alone["policy"] is None and "maxBytes" in alone["fault"] and alone["metrics"]["ready"] == 1
        assert mq.ok("status", "--queue", queue).splitlines()[1].split() == line.split()
        spoiled.store.configure(queue, {})  # the manager is shared


def test_looking(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    assert queue in mq.ok("queues").splitlines()
    assert any(line.split()[:2] == [queue, "1"] for line in mq.ok("status").splitlines())
    assert mq.data("health")["status"] == "ok" and mq.ok("health").startswith("status")
    assert mq.data("metrics")["requests"]["total"] >= 0
    assert mq.ok("metrics").startswith("uptime")
    assert "pabal_uptime_seconds" in mq.ok("metrics", "--prometheus")


def test_a_message_may_come_from_stdin(mq: Mq, queue: str) -> None:
    ran = mq("publish", "--queue", queue, "--message", "-", stdin='{"from": "stdin"}')
    assert ran.code == 0
    assert mq.data("consume", "--queue", queue)["message"]["payload"] == {"from": "stdin"}


def test_publish_takes_all_fields(mq: Mq, queue: str) -> None:
    fields = ("--type", "t.a", "--dedup-key", "d", "--trace-id", "tr", "--id", "own", "--ttl", "5m", "--delay", "10s")
    assert mq.ok("publish", "--queue", queue, "--message", "1", *fields) == f"msg:{queue}:own"
    again = mq.data("publish", "--queue", queue, "--message", "1", *fields)
    assert again["duplicate"] is True
    shown = mq.data("show", "--message-key", f"msg:{queue}:own")
    assert (shown["type"], shown["deduplicationKey"], shown["traceId"]) == ("t.a", "d", "tr")
    assert shown["state"] == "delayed" and "expiresAt" in shown
    page = mq.ok("show", "--message-key", f"msg:{queue}:own").splitlines()
    assert "type             t.a" in page and page[-2:] == ["payload", "1"]


def test_many_are_published_and_consumed_at_once(mq: Mq, queue: str) -> None:
    ran = mq("publish", "--queue", queue, "--lines", stdin="".join(f'{{"n": {n}}}\n' for n in range(1100)))
    assert ran.code == 0 and len(set(ran.out.splitlines())) == 1100
    ran = mq("consume", "--queue", queue, "--count", "1500", "--ack", "--json")
    assert ran.code == 0 and [each["message"]["payload"]["n"] for each in ran.documents] == list(range(1100))
    assert mq.counts(queue) == {"done": 1100}
    assert mq("publish", "--queue", queue, "--lines", "--message", "1").code == 2
    assert mq("publish", "--queue", queue).code == 2


def test_a_line_that_is_refused_is_named_and_the_others_are_published(mq: Mq, queue: str) -> None:
    ran = mq("publish", "--queue", queue, "--lines", stdin='1\n\n{"half\n3\n')
    assert ran.code == 2 and len(ran.out.splitlines()) == 2 and "line 3: PARSE_ERROR: " in ran.err
    shown = mq.ok("consume", "--queue", queue, "--count", "5")
    assert [line for line in shown.splitlines() if line.startswith("message")] == ["message   1", "message   3"]


def test_a_queue_is_made_looked_into_configured_and_emptied(mq: Mq, queue: str) -> None:
    assert mq.ok("create-queue", "--queue", queue) == f"created {queue}"
    assert mq.ok("create-queue", "--queue", queue) == f"{queue} is there already"
    assert mq.ok("set-policy", "--queue", queue, "--set", "retry.limit=3") == "retry.limit: 5 -> 3"
    assert json.loads(mq.ok("get-policy", "--queue", queue))["retry"]["limit"] == 3
    assert mq.ok("set-policy", "--queue", queue, "--set", "retry.limit=3") == f"{queue}: nothing changed"
    ran = mq("peek", "--queue", queue)
    assert (ran.code, ran.out, ran.err) == (0, "", f"nothing ready or delayed or inflight in {queue}\n")
    key = mq.ok("publish", "--queue", queue, "--message", '{"a": 1}', "--type", "t")
    line = mq.ok("peek", "--queue", queue).splitlines()[1].split()
    assert (line[0], line[1], line[-2:]) == (key, "ready", ["t", '{"a":1}'])
    assert mq("purge", "--queue", queue, "--state", "ready").code == 2, "nobody can be asked"
    assert mq.ok("purge", "--queue", queue, "--state", "ready", "--yes") == f"removed 1 ready from {queue}"
    assert mq("show", "--message-key", key).code == 3


def test_a_paused_queue_says_so(mq: Mq, queue: str) -> None:
    mq.ok("publish", "--queue", queue, "--message", "1")
    mq.ok("pause", "--queue", queue)
    ran = mq("consume", "--queue", queue)
    assert (ran.code, ran.err) == (1, f"{queue} is paused; pabal mq resume --queue {queue}\n")
    assert mq("pause", "--queue", f"{queue}x").code == 3


def test_an_empty_list_is_no_failure(mq: Mq, queue: str) -> None:
    mq.ok("create-queue", "--queue", queue)
    for verb in ("list-dlq", "count-dlq", "peek"):
        ran = mq(verb, "--queue", queue)
        assert (ran.code, ran.out) == (0, "") and ran.err
        assert mq(verb, "--queue", queue, "--json").code == 0


def test_errors_are_json_where_answers_are(mq: Mq, queue: str) -> None:
    ran = mq("show", "--message-key", "msg:nobodys:x", "--json")
    error = json.loads(ran.err)["error"]
    assert ran.code == error["exit"] == 3 and error["code"] == "QUEUE_NOT_FOUND" and ran.out == ""
    wrong = mq("show", "--odd", "--json")
    assert wrong.code == 2 and json.loads(wrong.err)["error"]["code"] == "UsageError"


def test_the_version_is_told() -> None:
    ran = CliRunner().invoke(cli, ["mq", "--version"])
    assert ran.exit_code == 0 and ran.output.startswith("pabal ")


def test_without_a_mailbox_it_says_what_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = Mq(tmp_path)("health")
    assert ran.code == 3 and "no mailbox at .pabal/ipc" in ran.err and "pabal up" in ran.err


def test_the_mailbox_here_goes_before_the_hidden_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ipc/requests").mkdir(parents=True)
    (tmp_path / "ipc/responses").mkdir()
    ran = Mq(tmp_path)("health", "--timeout", "50ms")
    assert ran.code == 6 and "no answer from the manager of ipc in 0.05 s" in ran.err


def test_a_url_before_the_verb_counts_too(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/a.db"
    result = CliRunner().invoke(cli, ["mq", "--url", url, "publish", "--queue", "jobs", "--message", "1"])
    assert result.exit_code == 0
    with connect(url) as mq:
        assert mq.queues() == ["jobs"]


def test_a_queue_that_is_not_there_is_named_with_the_one_that_may_be_meant(mq: Mq) -> None:
    mq.ok("publish", "--queue", "telemetry", "--message", "1", "--delay", "60000")
    ran = mq("consume", "--queue", "telemetrie")
    assert (ran.code, ran.err) == (1, "no queue telemetrie; did you mean telemetry?\n")
    ran = mq("status", "--queue", "telemetrie")
    assert ran.code == 3 and ran.err == "pabal: QueueUnknown: no queue telemetrie; did you mean telemetry?\n"


def test_that_the_manager_is_gone_is_said_before_waiting_for_it(tmp_path: Path) -> None:
    manager = Running(tmp_path)
    mq = Mq(tmp_path, "--ipc-root", str(manager.ipc), "--timeout", "300")
    said = f"no manager serves {manager.ipc}: waiting 0.3 s for `pabal up`"
    try:
        manager.wait_until_up()
        assert "no manager serves" not in mq("health").err
        manager.kill()
        assert mq("publish", "--queue", "jobs", "--message", "1").err.startswith(said)
        manager.start()
        manager.wait_until_up()
        manager.stop()
        ran = mq("publish", "--queue", "jobs", "--message", "1")
        assert ran.code == 6 and ran.err.startswith(said)
    finally:
        manager.end()


def test_status_right_after_a_first_start_says_that_there_is_nothing_yet(tmp_path: Path) -> None:
    manager = Running(tmp_path)
    try:
        manager.wait_until_up()
        ran = Mq(tmp_path, "--ipc-root", str(manager.ipc))("status")
    finally:
        manager.end()
    assert (ran.code, ran.out) == (0, "") and "no queues yet" in ran.err


@pytest.mark.parametrize("scheme", ["sqlite", "file", "hybrid"])
@pytest.mark.parametrize("verb", [("status",), ("health",), ("queues",), ("metrics",), ("list-dlq", "--queue", "jobs")])
def test_a_verb_that_looks_creates_no_store(tmp_path: Path, scheme: str, verb: tuple[str, ...]) -> None:
    ran = Mq(tmp_path, "--url", f"{scheme}:{tmp_path}/nope")(*verb)
    assert ran.code == 3 and "no store" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_consumers_names_the_clients_that_hold_messages(place: Mq) -> None:
    place.ok("publish", "--queue", "held", "--message", "1")
    place.take("--client-id", "press-1", queue="held")
    found = {each["consumerId"]: each["holds"] for each in place.data("consumers")["consumers"]}
    assert [(each["queue"], each["messages"]) for each in found["press-1"]] == [("held", 1)]
    assert "press-1" in place.ok("consumers")


def test_delete_queue_refuses_messages_unless_forced(place: Mq) -> None:
    place.ok("create-queue", "--queue", "parcels")
    place.ok("publish", "--queue", "parcels", "--message", "1")
    refused = place("delete-queue", "--queue", "parcels")
    assert refused.code == 2 and "QUEUE_NOT_EMPTY: parcels has messages (1 ready)" in refused.err
    assert place.ok("delete-queue", "--queue", "parcels", "--force") == "deleted parcels with 1 messages"
    assert "parcels" not in place.data("queues")["queues"]
    assert place("delete-queue", "--queue", "parcels").code == 3
