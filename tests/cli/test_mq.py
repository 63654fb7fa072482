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
    assert key.startswith(f"msg:{queue}:")
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
    mq.ok("publish", "--queue", queue, "--message", "1", "--delay", "400")
    began = time.monotonic()
    assert mq.data("consume", "--queue", queue, "--wait", "20000")["message"]["payload"] == 1
    assert 0.3 < time.monotonic() - began < 10


def test_nack_without_requeue_buries_and_with_it_follows_the_policy(mq: Mq, queue: str) -> None:
    for number in range(2):
        mq.ok("publish", "--queue", queue, "--message", str(number))
    key, lease = mq.take(queue=queue)
    assert mq.ok("nack", "--message-key", key, "--lease-id", lease, "--reason", "broken") == f"dead {key}"
    again, lease = mq.take(queue=queue)
    assert mq.ok("nack", "--message-key", again, "--lease-id", lease, "--requeue") == f"failed {again}"
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
    assert mq("list-dlq", "--queue", queue).code == 1 and mq("count-dlq", "--queue", queue).code == 1
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
    assert mq("list-dlq", "--queue", queue).code == 1
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


def test_without_a_mailbox_it_says_what_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = Mq(tmp_path)("health")
    assert ran.code == 3 and "no mailbox at .pabal/ipc" in ran.err and "pabal up" in ran.err


def test_the_mailbox_here_goes_before_the_hidden_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ipc/requests").mkdir(parents=True)
    (tmp_path / "ipc/responses").mkdir()
    ran = Mq(tmp_path)("health", "--timeout", "50")
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
