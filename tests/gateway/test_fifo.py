"""FIFO queues with boto3: the order of groups and their locks, duplicates, sequence numbers, repeated receives."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

import pabal
import pabal.aio
from pabal.clock import SystemClock
from pabal.gateway.sqs.directory import Caller
from pabal.gateway.sqs.service import Service
from pabal.testing import ManualClock
from tests.gateway.conftest import client_of, gateway
from tests.gateway.test_boto3 import receive, refused

FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


@pytest.fixture
def fifo(new_queue: Callable[..., str]) -> str:
    return new_queue(".fifo", **FIFO)


def send(sqs: Any, queue: str, *bodies: str, **given: str) -> list[dict[str, Any]]:
    """Send bodies like `a1` to the group of their first letter, one at a time."""
    return [
        sqs.send_message(QueueUrl=queue, MessageBody=body, **{"MessageGroupId": body[0], **given}) for body in bodies
    ]


def bodies(found: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in found]


def delete(sqs: Any, queue: str, message: dict[str, Any]) -> None:
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_a_receive_gives_the_first_group_in_order_then_the_next(sqs: Any, fifo: str) -> None:
    send(sqs, fifo, "a1", "b1", "a2", "a3")
    found = receive(sqs, fifo)
    assert bodies(found) == ["a1", "a2", "a3", "b1"]
    assert [each["Attributes"]["MessageGroupId"] for each in found] == ["a", "a", "a", "b"]
    send(sqs, fifo, "a4", "c1")
    assert bodies(receive(sqs, fifo)) == ["c1"]
    for message in (found[0], found[2]):
        delete(sqs, fifo, message)
    assert receive(sqs, fifo) == []
    delete(sqs, fifo, found[1])
    assert bodies(receive(sqs, fifo)) == ["a4"]


def test_a_batch_keeps_its_order(sqs: Any, fifo: str) -> None:
    entries = [{"Id": str(n), "MessageBody": f"{n}", "MessageGroupId": "g"} for n in range(10)]
    sent = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)["Successful"]
    assert [each["Id"] for each in sent] == [str(n) for n in range(10)]
    found = receive(sqs, fifo)
    assert bodies(found) == [str(n) for n in range(10)]
    numbers = [each["Attributes"]["SequenceNumber"] for each in found]
    assert numbers == sorted(set(numbers)) == [each["SequenceNumber"] for each in sent]


def test_one_that_comes_back_is_not_overtaken(sqs: Any, fifo: str) -> None:
    send(sqs, fifo, "a1", "a2", "a3", "a4")
    one, two, three = receive(sqs, fifo, MaxNumberOfMessages=3)
    for message in (two, one):
        sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert receive(sqs, fifo) == []  # the third is in flight
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=three["ReceiptHandle"], VisibilityTimeout=1)
    found = receive(sqs, fifo, WaitTimeSeconds=20)
    assert bodies(found) == ["a1", "a2", "a3", "a4"]
    assert [each["Attributes"]["ApproximateReceiveCount"] for each in found] == ["2", "2", "2", "1"]


def test_duplicates_are_dropped_by_id_or_content_in_a_queue(sqs: Any, new_queue: Callable[..., str]) -> None:
    queue = new_queue(".fifo", **FIFO)
    [first] = send(sqs, queue, "a1")
    [again] = send(sqs, queue, "a1", MessageGroupId="other")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    [other] = send(sqs, queue, "a1", MessageDeduplicationId="k")
    assert other["MessageId"] != first["MessageId"] and other["SequenceNumber"] > first["SequenceNumber"]
    found = receive(sqs, queue)
    assert [each["Attributes"]["MessageDeduplicationId"] for each in found][1] == "k"
    for message in found:
        delete(sqs, queue, message)
    assert send(sqs, queue, "a1")[0]["MessageId"] == first["MessageId"]  # also after it was deleted
    assert receive(sqs, queue) == []
    plain = new_queue(".fifo", FifoQueue="true")
    code, _, text = refused(lambda: send(sqs, plain, "a1"))
    assert code == "InvalidParameterValue" and "MessageDeduplicationId" in text


def test_duplicates_are_dropped_in_a_group_if_that_is_the_scope(sqs: Any, new_queue: Callable[..., str]) -> None:
    queue = new_queue(".fifo", **FIFO, DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    first, again, other = (
        send(sqs, queue, "x", MessageGroupId=group, MessageDeduplicationId="k")[0]["MessageId"] for group in "aab"
    )
    assert first == again != other
    found = receive(sqs, queue)
    assert [each["Attributes"]["MessageDeduplicationId"] for each in found] == ["k", "k"]


def test_a_receive_that_is_repeated_gives_the_same_messages(sqs: Any, fifo: str) -> None:
    send(sqs, fifo, "a1", "a2", "a3")
    attempt = str(uuid4())
    first = receive(sqs, fifo, MaxNumberOfMessages=2, ReceiveRequestAttemptId=attempt)
    again = receive(sqs, fifo, MaxNumberOfMessages=2, ReceiveRequestAttemptId=attempt)
    assert bodies(first) == bodies(again) == ["a1", "a2"]
    handles = [each["ReceiptHandle"] for each in first]
    assert handles == [each["ReceiptHandle"] for each in again]
    assert receive(sqs, fifo, ReceiveRequestAttemptId=str(uuid4())) == []
    for message in again:
        delete(sqs, fifo, message)
    waited = receive(sqs, fifo, WaitTimeSeconds=20, ReceiveRequestAttemptId=attempt)
    assert bodies(waited) == ["a3"]
    wrong = {"QueueUrl": fifo, "ReceiveRequestAttemptId": "with space"}
    assert refused(lambda: sqs.receive_message(**wrong))[0] == "InvalidParameterValue"


def test_a_receive_can_be_repeated_for_five_minutes(tmp_path: Path) -> None:
    clock = ManualClock()

    async def play() -> None:
        async with pabal.aio.connect(f"sqlite:{tmp_path}/jobs.db", clock=clock) as mq:
            service = Service(mq, clock)
            queue = {"QueueUrl": "http://localhost/000000000000/jobs.fifo"}
            made = {"QueueName": "jobs.fifo", "Attributes": {"FifoQueue": "true", "VisibilityTimeout": "3600"}}
            await service.call("CreateQueue", made, Caller(""))
            for group in ("a", "b", "c"):
                sent = {**queue, "MessageBody": group, "MessageGroupId": group, "MessageDeduplicationId": group}
                await service.call("SendMessage", sent, Caller(""))

            async def received(at: Service) -> list[str]:
                found = await at.call("ReceiveMessage", {**queue, "ReceiveRequestAttemptId": "one"}, Caller(""))
                return [each["Body"] for each in (found or {}).get("Messages", [])]

            assert await received(service) == ["a"]
            clock.advance(299)
            assert await received(service) == await received(Service(mq, clock)) == ["a"]
            clock.advance(2)
            assert await received(service) == ["b"]
            clock.advance(299)
            assert await received(service) == ["b"]
            clock.advance(2)
            assert await received(service) == ["c"]

    anyio.run(play)


def test_a_receive_is_repeated_without_what_was_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with pabal.aio.connect(f"sqlite:{tmp_path}/jobs.db") as mq:
            service = Service(mq, SystemClock())
            queue = {"QueueUrl": "http://localhost/000000000000/jobs.fifo"}
            made = {"QueueName": "jobs.fifo", "Attributes": {"FifoQueue": "true"}}
            await service.call("CreateQueue", made, Caller(""))
            for body in ("a", "b"):
                sent = {**queue, "MessageBody": body, "MessageGroupId": body, "MessageDeduplicationId": body}
                await service.call("SendMessage", sent, Caller(""))
            asked = {**queue, "MaxNumberOfMessages": 2, "ReceiveRequestAttemptId": "one"}
            await service.call("ReceiveMessage", asked, Caller(""))
            lease = pabal.aio.Queue.lease

            async def lease_and_lose_the_first(self: Any, *given: Any, **options: Any) -> Any:
                found = await lease(self, *given, **options)
                await self.ack_many([found[0].receipt])
                return found

            monkeypatch.setattr(pabal.aio.Queue, "lease", lease_and_lose_the_first)
            found = await service.call("ReceiveMessage", asked, Caller("")) or {}
            assert [each["Body"] for each in found["Messages"]] == ["b"]

    anyio.run(play)


def test_no_handle_counts_after_its_time(sqs: Any, fifo: str) -> None:
    send(sqs, fifo, "a1")
    [message] = receive(sqs, fifo, VisibilityTimeout=0)
    time.sleep(0.05)  # its lease is of a millisecond
    code, status, text = refused(lambda: delete(sqs, fifo, message))
    assert (code, status) == ("InvalidParameterValue", 400) and "The receipt handle has expired" in text
    assert bodies(receive(sqs, fifo)) == ["a1"]


def test_what_a_fifo_queue_refuses(sqs: Any, fifo: str) -> None:
    assert refused(lambda: sqs.send_message(QueueUrl=fifo, MessageBody="x"))[0] == "MissingParameter"
    delayed = {"QueueUrl": fifo, "MessageBody": "x", "MessageGroupId": "g"}
    assert refused(lambda: sqs.send_message(**delayed, DelaySeconds=1))[0] == "InvalidParameterValue"
    assert "MessageId" in sqs.send_message(**delayed, DelaySeconds=0)


def test_a_group_of_a_standard_queue_orders_nothing(sqs: Any, queue: str) -> None:
    sent = [sqs.send_message(QueueUrl=queue, MessageBody=str(n), MessageGroupId="tenant") for n in range(3)]
    assert not any("SequenceNumber" in each for each in sent)
    found = receive(sqs, queue, MaxNumberOfMessages=2) + receive(sqs, queue)
    assert sorted(bodies(found)) == ["0", "1", "2"]
    assert {each["Attributes"]["MessageGroupId"] for each in found} == {"tenant"}


def test_a_group_goes_on_after_its_first_has_moved_to_the_dead_letters(sqs: Any, new_queue: Callable[..., str]) -> None:
    dead = new_queue(".fifo", **FIFO)
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    queue = new_queue(".fifo", **FIFO, RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    send(sqs, queue, "a1", "a2")
    [one, two] = receive(sqs, queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0)
    delete(sqs, queue, two)
    [moved] = receive(sqs, dead)
    assert (moved["Body"], moved["MessageId"]) == ("a1", one["MessageId"])
    assert moved["Attributes"]["MessageGroupId"] == "a"
    send(sqs, queue, "a3")
    assert bodies(receive(sqs, queue)) == ["a3"]


def test_a_gateway_that_is_killed_gives_a_group_back_in_order(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    with gateway(url, tmp_path / "one.log") as first, gateway(url, tmp_path / "two.log") as second:
        one, two = client_of(first.address), client_of(second.address)
        queue = one.create_queue(QueueName="q.fifo", Attributes=FIFO)["QueueUrl"]
        send(one, queue, *(f"a{n}" for n in range(6)))
        held = receive(one, queue, MaxNumberOfMessages=4, VisibilityTimeout=600)
        assert bodies(held) == ["a0", "a1", "a2", "a3"]
        first.kill()
        there = queue.replace(first.address, second.address)
        delete(two, there, held[1])
        assert receive(two, there) == []
        for message in (held[3], held[0], held[2]):  # so that the test does not wait for ten minutes
            handle = {"QueueUrl": there, "ReceiptHandle": message["ReceiptHandle"]}
            two.change_message_visibility(**handle, VisibilityTimeout=1)
        found = receive(two, there, WaitTimeSeconds=20)
        assert bodies(found) == ["a0", "a2", "a3", "a4", "a5"]
    with pabal.connect(url) as mq:  # a worker of the library sees the same group
        assert mq.queue("q.fifo").lease(10) == []
