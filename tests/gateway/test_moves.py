"""Message move tasks of gateways that are killed, stopped or started again, and of queues that refuse a message."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from botocore.exceptions import ClientError

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


def redrive(queue: str) -> str:
    return json.dumps({"deadLetterTargetArn": f"{ARN}{queue}", "maxReceiveCount": 1})


@contextmanager
def site(place: Path) -> Iterator[Site]:
    url = f"sqlite:{place}/jobs.db"
    with gateway(url, place / "one.log") as one, gateway(url, place / "two.log") as two, pabal.connect(url) as mq:
        sqs = client_of(one.address)
        sqs.create_queue(QueueName="dead")
        sqs.create_queue(QueueName="jobs", Attributes={"RedrivePolicy": redrive("dead")})
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


def test_the_end_of_a_task_is_noted_when_the_store_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, failures = pabal.aio.Queue.attach, iter([False, True, True])  # added; then the first note, and the end

    async def attach_or_fail(self: Any, *given: Any) -> None:
        if next(failures, False):
            raise pabal.StoreFailed("the disk does not answer")
        await attach(self, *given)

    async def play() -> None:
        async with pabal.aio.connect(f"sqlite:{tmp_path}/jobs.db") as mq:
            service, here = Service(mq, SystemClock()), Caller("http://localhost")
            for name, attributes in (("dead", {}), ("jobs", {"RedrivePolicy": redrive("dead")})):
                await service.call("CreateQueue", {"QueueName": name, "Attributes": attributes}, here)
            monkeypatch.setattr(pabal.aio.Queue, "attach", attach_or_fail)
            await service.call("StartMessageMoveTask", {"SourceArn": f"{ARN}dead"}, here)

            async def status() -> str:
                found = await service.call("ListMessageMoveTasks", {"SourceArn": f"{ARN}dead"}, here) or {}
                return str(found["Results"][0]["Status"])

            with anyio.fail_after(60):
                while await status() == "RUNNING":
                    await anyio.sleep(0.05)
            assert await status() == "FAILED"
            await service.close()

    anyio.run(play)


def test_a_destination_that_is_gone_fails_the_task_and_is_not_made_again(tmp_path: Path) -> None:
    with site(tmp_path) as found:
        sqs = client_of(found.one.address)
        gone = sqs.create_queue(QueueName="gone", Attributes={"RedrivePolicy": redrive("dead")})["QueueUrl"]
        for _ in range(MANY):
            [delivery] = found.mq.queue("dead").lease()
            delivery.ack()
        sqs.send_message(QueueUrl=gone, MessageBody="x")
        [message] = sqs.receive_message(QueueUrl=gone)["Messages"]
        sqs.change_message_visibility(QueueUrl=gone, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
        until(lambda: found.mq.queue("dead").counts()[State.READY] == 1)
        sqs.delete_queue(QueueUrl=gone)
        sqs.start_message_move_task(SourceArn=f"{ARN}dead")
        until(lambda: found.status(found.one)["Status"] == "FAILED")
        assert "gone does not exist" in found.status(found.one)["FailureReason"]
        assert found.mq.queue("dead").counts()[State.READY] == 1
        assert "gone" not in found.mq.queues()


def test_a_task_needs_a_dead_letter_queue_and_another_queue_of_the_same_type(tmp_path: Path) -> None:
    with site(tmp_path) as found:
        client_of(found.one.address).create_queue(QueueName="a.fifo", Attributes={"FifoQueue": "true"})
        for source, target in (("jobs", "dead"), ("dead", "dead"), ("dead", "a.fifo")):
            with pytest.raises(ClientError) as caught:
                found.start(SourceArn=f"{ARN}{source}", DestinationArn=f"{ARN}{target}")
            assert caught.value.response["Error"]["Code"] == "InvalidParameterValue"


def test_a_message_keeps_its_deduplication_id_when_it_is_moved(tmp_path: Path) -> None:
    with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log") as served:
        sqs = client_of(served.address)
        fifo = {"FifoQueue": "true"}
        dead = sqs.create_queue(QueueName="dead.fifo", Attributes=fifo)["QueueUrl"]
        attributes = {**fifo, "RedrivePolicy": redrive("dead.fifo")}
        jobs = sqs.create_queue(QueueName="jobs.fifo", Attributes=attributes)["QueueUrl"]
        sqs.send_message(QueueUrl=jobs, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="once")

        def received(url: str) -> str:
            asked = {"QueueUrl": url, "WaitTimeSeconds": 20, "MessageSystemAttributeNames": ["All"]}
            [message] = sqs.receive_message(**asked)["Messages"]
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
            key: str = message["Attributes"]["MessageDeduplicationId"]
            return key

        assert received(jobs) == "once"
        assert received(dead) == "once"
        sqs.start_message_move_task(SourceArn=f"{ARN}dead.fifo")
        assert received(jobs) == "once"
