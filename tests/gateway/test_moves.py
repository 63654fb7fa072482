"""Message move tasks of gateways that are killed, stopped or started again, and of queues that refuse a message."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

import pabal
import pabal.aio
from pabal.clock import SystemClock
from pabal.gateway.sqs.directory import Caller
from pabal.gateway.sqs.service import Service
from pabal.policy.policy import Policy
from pabal.queues.verdicts import ORIGINAL_ID
from pabal.store import State
from tests.gateway.conftest import Running, client_of, gateway
from tests.waiting import until

ARN = "arn:aws:sqs:eu-west-1:000000000000:"
MANY = 12


class Site(NamedTuple):
    """Two gateways on one store, in which messages wait to be moved from one queue to another."""

    one: Running
    two: Running
    mq: pabal.Connection
    ids: set[str]

    def start(self, **options: Any) -> str:
        asked = {"SourceArn": f"{ARN}dead", "DestinationArn": f"{ARN}jobs", **options}
        handle: str = client_of(self.one.address).start_message_move_task(**asked)["TaskHandle"]
        return handle

    def status(self, running: Running) -> dict[str, Any]:
        found: dict[str, Any] = client_of(running.address).list_message_move_tasks(SourceArn=f"{ARN}dead")["Results"][0]
        return found

    def moved(self) -> list[str]:
        return sorted(
            entry.message.headers[ORIGINAL_ID]
            for entry in self.mq.queue("jobs").entries(State.READY)
            if entry.message is not None
        )


@contextmanager
def site(place: Path) -> Iterator[Site]:
    url = f"sqlite:{place}/jobs.db"
    with gateway(url, place / "one.log") as one, gateway(url, place / "two.log") as two, pabal.connect(url) as mq:
        sqs = client_of(one.address)
        for name in ("dead", "jobs"):
            sqs.create_queue(QueueName=name)
        ids = {answer.id for answer in mq.queue("dead").publish_many([str(number) for number in range(MANY)])}
        yield Site(one, two, mq, ids)


def test_a_task_whose_gateway_is_killed_goes_on_in_another_and_doubles_nothing(tmp_path: Path) -> None:
    with site(tmp_path) as found:
        handle = found.start(MaxNumberOfMessagesPerSecond=2)
        until(lambda: len(found.moved()) >= 2)
        found.one.kill()
        seen = found.status(found.two)
        assert seen["Status"] == "RUNNING" and seen["TaskHandle"] == handle
        with pytest.raises(Exception, match="already a task running"):
            client_of(found.two.address).start_message_move_task(SourceArn=f"{ARN}dead", DestinationArn=f"{ARN}jobs")
        until(lambda: found.status(found.two)["Status"] == "COMPLETED", 120)
        assert found.moved() == sorted(found.ids) and found.mq.queue("dead").counts().get(State.INFLIGHT, 0) == 0
        assert found.status(found.two)["ApproximateNumberOfMessagesToMove"] == MANY


def test_a_task_whose_gateway_is_stopped_is_finished_by_the_next_one_that_is_started(tmp_path: Path) -> None:
    with site(tmp_path) as found:
        found.two.kill()
        found.start(MaxNumberOfMessagesPerSecond=1)
        until(lambda: len(found.moved()) >= 1)
        assert found.one.stop() == 0
        assert found.mq.queue("dead").counts().get(State.INFLIGHT, 0) == 0  # nothing is held
        before = len(found.moved())
        found.two.start()
        until(lambda: len(found.moved()) > before)  # though nobody has asked it
        assert found.status(found.two)["Status"] == "RUNNING"
        handle = found.status(found.two)["TaskHandle"]
        client_of(found.two.address).cancel_message_move_task(TaskHandle=handle)
        until(lambda: found.status(found.two)["Status"] == "CANCELLED")
        left = [entry.id for entry in found.mq.queue("dead").entries(State.READY)]
        assert sorted([*left, *found.moved()]) == sorted(found.ids)


def test_a_queue_that_refuses_a_message_fails_the_task_and_it_stays(tmp_path: Path) -> None:
    with site(tmp_path) as found:
        found.mq.queue("small").configure(Policy(max_bytes=2000))
        found.mq.queue("dead").publish("x" * 4000, id="large")
        found.start(DestinationArn=f"{ARN}small")
        until(lambda: found.status(found.one)["Status"] == "FAILED")
        failed = found.status(found.two)
        assert "2000" in failed["FailureReason"] and failed["ApproximateNumberOfMessagesMoved"] == MANY
        assert [entry.id for entry in found.mq.queue("dead").entries(State.READY)] == ["large"]
        assert found.mq.queue("small").counts()[State.READY] == MANY


def test_a_receive_whose_client_has_gone_leaves_the_messages_to_others(tmp_path: Path) -> None:
    async def play() -> None:
        async with pabal.aio.connect(f"sqlite:{tmp_path}/jobs.db") as mq:
            await mq.queue("jobs").configure(Policy())
            await mq.queue("jobs").publish_many(["a", "b"])
            service = Service(mq, SystemClock())
            asked = {"QueueUrl": "http://localhost/000000000000/jobs", "MaxNumberOfMessages": 10}
            gone = Caller("http://localhost", gone=lambda: True)
            assert await service.call("ReceiveMessage", asked, gone) == {}
            found = await service.call("ReceiveMessage", {**asked, "AttributeNames": ["All"]}, Caller(""))
            assert found is not None
            assert [each["Attributes"]["ApproximateReceiveCount"] for each in found["Messages"]] == ["1", "1"]
            await service.close()

    anyio.run(play)
