"""Queues that are deleted while gateways still know them: nothing makes them again without their settings."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pabal.aio
from pabal.gateway.sqs.directory import Caller
from pabal.gateway.sqs.errors import SqsError
from pabal.gateway.sqs.service import Service
from pabal.store import State
from pabal.testing import ManualClock

pytestmark = pytest.mark.anyio
ARN = "arn:aws:sqs:us-east-1:000000000000:"


class Two:
    """Two gateways over one store."""

    def __init__(self, first: pabal.aio.Connection, second: pabal.aio.Connection, clock: ManualClock) -> None:
        self.mq = first
        self.clock = clock
        self._services = Service(first, clock), Service(second, clock)

    async def first(self, action: str, queue: str = "", **given: Any) -> Any:
        return await self._call(0, action, queue, given)

    async def second(self, action: str, queue: str = "", **given: Any) -> Any:
        return await self._call(1, action, queue, given)

    async def _call(self, which: int, action: str, queue: str, given: dict[str, Any]) -> Any:
        if queue:
            given["QueueUrl"] = url_of(queue)
        return await self._services[which].call(action, given, Caller("http://h"))

    async def make(self, name: str, **attributes: str) -> None:
        await self.first("CreateQueue", QueueName=name, Attributes=attributes)

    async def close(self) -> None:
        for service in self._services:
            await service.close()


def url_of(name: str) -> str:
    return f"http://h/000000000000/{name}"


def redrive_to(name: str, receives: int = 1) -> str:
    return json.dumps({"deadLetterTargetArn": ARN + name, "maxReceiveCount": receives})


@pytest.fixture(params=["sqlite", "file", "hybrid"])
async def two(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Two]:
    url, clock = f"{request.param}:{tmp_path}/store", ManualClock(1_795_000_000.0)
    async with pabal.aio.connect(url, clock=clock) as first, pabal.aio.connect(url, clock=clock) as second:
        two = Two(first, second, clock)
        yield two
        await two.close()


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("SendMessage", {"MessageBody": "late"}),
        ("SendMessageBatch", {"Entries": [{"Id": "1", "MessageBody": "late"}]}),
        (
            "SendMessageBatch",
            {"Entries": [{"Id": "1", "MessageBody": "a"}, {"Id": "2", "MessageBody": "b", "DelaySeconds": 1}]},
        ),
        ("SetQueueAttributes", {"Attributes": {"DelaySeconds": "1"}}),
        ("SetQueueAttributes", {"Attributes": {"VisibilityTimeout": "1"}}),
        ("TagQueue", {"Tags": {"a": "b"}}),
        ("PurgeQueue", {}),
    ],
)
async def test_a_deleted_queue_does_not_come_back(two: Two, action: str, given: dict[str, Any]) -> None:
    await two.make("orders", VisibilityTimeout="77")
    await two.second("SendMessage", "orders", MessageBody="before")
    await two.first("DeleteQueue", "orders")
    with pytest.raises(SqsError) as refused:
        await two.second(action, "orders", **given)
    assert refused.value.code == "AWS.SimpleQueueService.NonExistentQueue"
    assert await two.mq.queues() == []


async def test_a_queue_that_the_library_made_can_be_sent_to(two: Two) -> None:
    await two.mq.queue("plain").publish("first")  # it has no settings
    assert await two.second("SendMessage", "plain", MessageBody="second")
    await two.second("TagQueue", "plain", Tags={"a": "b"})
    assert await two.second("ListQueueTags", "plain") == {"Tags": {"a": "b"}}


async def test_a_queue_that_was_made_again_is_the_new_one(two: Two) -> None:
    await two.make("orders", VisibilityTimeout="77")
    await two.second("SendMessage", "orders", MessageBody="before")
    await two.first("DeleteQueue", "orders")
    await two.make("orders", VisibilityTimeout="5")
    await two.second("SendMessage", "orders", MessageBody="after")
    assert [entry.message.body async for entry in two.mq.queue("orders").entries(State.READY) if entry.message] == [
        "after"
    ]


@pytest.mark.parametrize("expires", [False, True])
async def test_a_message_whose_dead_letter_queue_was_deleted_stays_where_it_is(two: Two, expires: bool) -> None:
    await two.make("dlq")
    await two.make("src", RedrivePolicy=redrive_to("dlq"))
    await two.first("SendMessage", "src", MessageBody="kept")
    await two.first("DeleteQueue", "dlq")
    [message] = (await two.first("ReceiveMessage", "src"))["Messages"]
    if expires:
        two.clock.advance(31)
        assert await two.first("ReceiveMessage", "src") == {}
    else:
        handle = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
        await two.first("ChangeMessageVisibility", "src", **handle)
    assert await two.mq.queues() == ["src"]
    assert [entry.id async for entry in two.mq.queue("src").entries(State.DEAD)] == [message["MessageId"]]
    await two.first("SetQueueAttributes", "src", Attributes={"VisibilityTimeout": "7"})  # it can still be changed
    assert await two.mq.queues() == ["src"]


async def test_a_dead_letter_queue_that_is_deleted_during_its_move_task_stays_deleted(two: Two) -> None:
    await two.make("dlq")
    await two.make("src", RedrivePolicy=redrive_to("dlq"))
    for n in range(3):
        await two.first("SendMessage", "dlq", MessageBody=str(n))
    await two.first("StartMessageMoveTask", SourceArn=ARN + "dlq", DestinationArn=ARN + "src")
    await two.second("DeleteQueue", "dlq")
    await two.close()
    if "dlq" in await two.mq.queues():  # on files: the record of a message that was being acked when it was deleted
        deleted = two.mq.queue("dlq")
        assert {state for state, count in (await deleted.counts()).items() if count} <= {State.DONE}
        assert two.mq.blocking.store.settings("dlq") is None
