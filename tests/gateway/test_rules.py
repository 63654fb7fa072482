"""Rules of SQS that need a clock or two sides, on the actions themselves: counts, moves, attributes, permissions."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import pabal.aio
from pabal.gateway.sqs.directory import Caller
from pabal.gateway.sqs.errors import SqsError
from pabal.gateway.sqs.service import Service
from pabal.testing import ManualClock
from tests.gateway.test_deleted import ARN, redrive_to, url_of

pytestmark = pytest.mark.anyio
COUNTED = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible")


class Sqs:
    """The actions of one gateway, and its clock."""

    def __init__(self, mq: pabal.aio.Connection, clock: ManualClock) -> None:
        self.mq = mq
        self.clock = clock
        self.service = Service(mq, clock)

    async def __call__(self, action: str, queue: str = "", **given: Any) -> Any:
        if queue:
            given["QueueUrl"] = url_of(queue)
        return await self.service.call(action, given, Caller("http://h"))

    async def make(self, name: str, **attributes: str) -> None:
        await self("CreateQueue", QueueName=name, Attributes=attributes)

    async def attributes(self, queue: str, *names: str) -> dict[str, str]:
        found = await self("GetQueueAttributes", queue, AttributeNames=list(names or ["All"]))
        return dict(found.get("Attributes", {}))

    async def receive(self, queue: str, **given: Any) -> list[dict[str, Any]]:
        asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        return list((await self("ReceiveMessage", queue, **asked, **given)).get("Messages", []))

    async def refused(self, action: str, queue: str = "", **given: Any) -> str:
        with pytest.raises(SqsError) as error:
            await self(action, queue, **given)
        return error.value.code


@pytest.fixture
async def sqs(tmp_path: Path) -> AsyncIterator[Sqs]:
    clock = ManualClock(1_795_000_000.0)
    async with pabal.aio.connect(f"sqlite:{tmp_path}/jobs.db", clock=clock) as mq:
        sqs = Sqs(mq, clock)
        yield sqs
        await sqs.service.close()


async def counts(sqs: Sqs, queue: str) -> tuple[str, ...]:
    found = await sqs.attributes(queue, *COUNTED)
    return tuple(found[name] for name in COUNTED)


async def test_what_is_due_counts_as_visible_though_nobody_receives(sqs: Sqs) -> None:
    await sqs.make("orders", VisibilityTimeout="5")
    await sqs("SendMessage", "orders", MessageBody="held")
    await sqs.receive("orders")
    await sqs("SendMessage", "orders", MessageBody="delayed", DelaySeconds=5)
    assert await counts(sqs, "orders") == ("0", "1", "1")
    sqs.clock.advance(6)
    only_shows = Service(sqs.mq, sqs.clock, read_only=True)
    asked = {"QueueUrl": url_of("orders"), "AttributeNames": list(COUNTED)}
    shown = (await only_shows.call("GetQueueAttributes", asked, Caller("http://h")) or {})["Attributes"]
    assert tuple(shown[name] for name in COUNTED) == ("1", "0", "1")  # it changes nothing
    assert await counts(sqs, "orders") == ("2", "0", "0")
    assert len(await sqs.receive("orders")) == 2


async def moved(sqs: Sqs, source: str, target: str = "") -> None:
    """Run a move task to its end."""
    more = {"DestinationArn": ARN + target} if target else {}
    await sqs("StartMessageMoveTask", SourceArn=ARN + source, **more)
    with anyio.fail_after(30):
        while (await sqs("ListMessageMoveTasks", SourceArn=ARN + source))["Results"][0]["Status"] == "RUNNING":
            await anyio.sleep(0.01)


async def test_a_move_task_keeps_the_whole_message(sqs: Sqs) -> None:
    await sqs.make("dlq")
    await sqs.make("other")
    await sqs.make("src", RedrivePolicy=redrive_to("dlq"))
    given: dict[str, Any] = {"type": "order", "version": 3, "thread_id": "t", "trace_id": "r", "reply_to": "answers"}
    given |= {"priority": 9, "sender": "shop", "attributes": {"zone": 7}, "headers": {"a": "b"}}
    sent = await sqs.mq.queue("src").publish({"n": 1}, **given, dedup_key="k")
    [message] = await sqs.receive("src")
    for target in ("", "other"):
        handle = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
        await sqs("ChangeMessageVisibility", "src", **handle)
        await moved(sqs, "dlq", target)
        found = [each.message async for each in sqs.mq.queue(target or "src").entries(pabal.State.READY)]
        [back] = [message for message in found if message is not None]
        wanted = {**given, "headers": {"a": "b", "original-id": sent.id}}
        if target:
            wanted["headers"] |= {"source-queue": "src"}
        assert {name: getattr(back, name) for name in given} == wanted and back.body == {"n": 1}
        [message] = await sqs.receive(target or "src")
        assert message["MessageId"] == sent.id
        assert message["Attributes"].get("DeadLetterQueueSourceArn", "") == (f"{ARN}src" if target else "")


@pytest.mark.parametrize(
    "wrong",
    [
        "banana",
        "[]",
        '{"redrivePermission": "banana"}',
        '{"redrivePermission": "byQueue"}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": []}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": ["src"]}',
        '{"redrivePermission": "denyAll", "sourceQueueArns": ["arn:aws:sqs:us-east-1:000000000000:src"]}',
        json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [f"{ARN}{n}" for n in range(11)]}),
    ],
)
async def test_a_redrive_allow_policy_is_checked(sqs: Sqs, wrong: str) -> None:
    await sqs.make("dlq")
    given = {"RedriveAllowPolicy": wrong}
    assert await sqs.refused("SetQueueAttributes", "dlq", Attributes=given) == "InvalidAttributeValue"
    assert await sqs.refused("CreateQueue", QueueName="new", Attributes=given) == "InvalidAttributeValue"


async def test_a_dead_letter_queue_says_which_queues_may_use_it(sqs: Sqs) -> None:
    def allows(permission: str, *sources: str) -> str:
        given = {"sourceQueueArns": [ARN + name for name in sources]} if sources else {}
        return json.dumps({"redrivePermission": permission, **given})

    await sqs.make("dlq", RedriveAllowPolicy=allows("denyAll"))
    redrive = {"RedrivePolicy": redrive_to("dlq")}
    await sqs.make("src")
    assert await sqs.refused("CreateQueue", QueueName="new", Attributes=redrive) == "InvalidParameterValue"
    assert await sqs.refused("SetQueueAttributes", "src", Attributes=redrive) == "InvalidParameterValue"
    by_queue = {"RedriveAllowPolicy": allows("byQueue", "src", "x")}
    await sqs("SetQueueAttributes", "dlq", Attributes=by_queue)
    assert (await sqs.attributes("dlq"))["RedriveAllowPolicy"] == by_queue["RedriveAllowPolicy"]
    assert await sqs.refused("CreateQueue", QueueName="new", Attributes=redrive) == "InvalidParameterValue"
    await sqs("SetQueueAttributes", "src", Attributes=redrive)
    for value in (allows("allowAll"), ""):
        await sqs("SetQueueAttributes", "dlq", Attributes={"RedriveAllowPolicy": value})
        await sqs.make(f"new{len(value)}", **redrive)


async def test_a_fifo_queue_has_the_defaults_of_its_attributes(sqs: Sqs) -> None:
    defaults = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }
    await sqs.make("a.fifo", FifoQueue="true")
    await sqs.mq.queue("library.fifo").create()
    for name in ("a.fifo", "library.fifo"):
        assert (await sqs.attributes(name)).items() >= defaults.items()
        await sqs.make(name, FifoQueue="true")
        await sqs.make(name, **defaults)
        other = {**defaults, "ContentBasedDeduplication": "true"}
        assert await sqs.refused("CreateQueue", QueueName=name, Attributes=other) == "QueueAlreadyExists"
    await sqs.make("plain")
    assert not (await sqs.attributes("plain")).keys() & defaults.keys()


async def test_the_retention_of_a_dead_letter_queue_counts_from_the_first_send(sqs: Sqs) -> None:
    await sqs.make("dlq", MessageRetentionPeriod="300")
    await sqs.make("src", RedrivePolicy=redrive_to("dlq"))
    await sqs("SendMessage", "src", MessageBody="failed")
    sqs.clock.advance(100)
    [message] = await sqs.receive("src")
    handle = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
    await sqs("ChangeMessageVisibility", "src", **handle)
    sqs.clock.advance(190)
    [message] = await sqs.receive("dlq")
    await sqs("ChangeMessageVisibility", "dlq", ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    sqs.clock.advance(20)
    assert await sqs.receive("dlq") == []
    assert [entry.failure.code async for entry in sqs.mq.queue("dlq").entries(pabal.State.DEAD) if entry.failure] == [
        "EXPIRED"
    ]


async def test_an_old_handle_of_a_fifo_queue_hides_nothing(sqs: Sqs) -> None:
    await sqs.make("a.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    await sqs("SendMessage", "a.fifo", MessageBody="1", MessageGroupId="g")
    [message] = await sqs.receive("a.fifo")
    sqs.clock.advance(31)
    hidden = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 100}
    assert "MessageNotInflight" in await sqs.refused("ChangeMessageVisibility", "a.fifo", **hidden)
    [again] = await sqs.receive("a.fifo")
    sqs.clock.advance(31)
    entry = {"Id": "1", "ReceiptHandle": again["ReceiptHandle"], "VisibilityTimeout": 100}
    [failed] = (await sqs("ChangeMessageVisibilityBatch", "a.fifo", Entries=[entry]))["Failed"]
    assert "MessageNotInflight" in failed["Code"]
    assert len(await sqs.receive("a.fifo")) == 1


async def test_permissions_are_statements_of_the_policy(sqs: Sqs) -> None:
    await sqs.make("orders")

    async def add(label: str, *actions: str, accounts: tuple[str, ...] = ("123456789012",)) -> None:
        given: dict[str, Any] = {"Label": label, "AWSAccountIds": list(accounts), "Actions": list(actions)}
        await sqs("AddPermission", "orders", **given)

    await add("one", "SendMessage")
    await add("two", "ReceiveMessage", "DeleteMessage", accounts=("123456789012", "210987654321"))
    policy = json.loads((await sqs.attributes("orders"))["Policy"])
    arn = f"{ARN}orders"
    one = {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
        "Action": "SQS:SendMessage",
        "Resource": arn,
    }
    assert policy["Id"] == f"{arn}/SQSDefaultPolicy" and policy["Statement"][0] == one
    assert policy["Statement"][1]["Action"] == ["SQS:ReceiveMessage", "SQS:DeleteMessage"]
    for act, code in (
        (add("one", "*"), "InvalidParameterValue"),
        (add("x", "Banana"), "InvalidParameterValue"),
        (add("x", "DeleteQueue"), "InvalidParameterValue"),
        (add("x"), "MissingParameter"),
        (add("x", "*", accounts=()), "InvalidParameterValue"),
        (add("x", "*", accounts=("1",)), "InvalidParameterValue"),
        (add("x", *["SendMessage"] * 8), "OverLimit"),
    ):
        with pytest.raises(SqsError) as error:
            await act
        assert error.value.code == code
    await sqs("RemovePermission", "orders", Label="two")
    assert json.loads((await sqs.attributes("orders"))["Policy"])["Statement"] == [one]
    await sqs("RemovePermission", "orders", Label="one")
    assert "Policy" not in await sqs.attributes("orders")
    own = json.dumps({"Version": "2012-10-17", "Statement": {"Sid": "own", "Effect": "Allow"}})
    await sqs("SetQueueAttributes", "orders", Attributes={"Policy": own})
    await add("one", "SendMessage")
    statements = json.loads((await sqs.attributes("orders"))["Policy"])["Statement"]
    assert [each["Sid"] for each in statements] == ["own", "one"]
    for wrong in ("not json", "[]"):
        given = {"Policy": wrong}
        assert await sqs.refused("SetQueueAttributes", "orders", Attributes=given) == "InvalidAttributeValue"
