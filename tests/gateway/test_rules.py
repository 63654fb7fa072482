"""Rules of SQS that need a clock or two sides, on the actions themselves: counts, moves, attributes, permissions."""

import json
from collections.abc import AsyncIterator
from hashlib import md5
from pathlib import Path
from struct import pack
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


async def test_a_duplicate_is_dropped_for_five_minutes(sqs: Sqs) -> None:
    await sqs.make("a.fifo", FifoQueue="true")
    given = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "k"}
    first = (await sqs("SendMessage", "a.fifo", **given))["MessageId"]
    sqs.clock.advance(299)
    assert (await sqs("SendMessage", "a.fifo", **given))["MessageId"] == first
    sqs.clock.advance(2)
    assert (await sqs("SendMessage", "a.fifo", **given))["MessageId"] != first


async def test_system_attributes_have_their_own_md5(sqs: Sqs) -> None:
    await sqs.make("orders")
    header = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5e3d83c1"}}
    answer = await sqs("SendMessage", "orders", MessageBody="x", MessageSystemAttributes=header)
    name, kind, value = b"AWSTraceHeader", b"String", b"Root=1-5e3d83c1"
    text = b"".join((pack(">I", len(name)), name, pack(">I", len(kind)), kind, b"\x01", pack(">I", len(value)), value))
    assert answer["MD5OfMessageSystemAttributes"] == md5(text, usedforsecurity=False).hexdigest()
    assert "MD5OfMessageAttributes" not in answer


async def test_a_message_has_one_mebibyte_by_default(sqs: Sqs) -> None:
    await sqs.make("orders")
    assert (await sqs.attributes("orders"))["MaximumMessageSize"] == "1048576"
    await sqs("SendMessage", "orders", MessageBody="x" * 1_048_576)
    assert await sqs.refused("SendMessage", "orders", MessageBody="x" * 1_048_577) == "InvalidParameterValue"


async def test_attributes_that_change_nothing_here_are_kept(sqs: Sqs) -> None:
    given = {"KmsMasterKeyId": "alias/key", "RedriveAllowPolicy": '{"redrivePermission": "allowAll"}'}
    await sqs.make("orders", **given)
    assert await sqs.attributes("orders", *given) == given


async def test_the_delay_and_the_wait_of_a_queue_are_obeyed(sqs: Sqs) -> None:
    await sqs.make("slow", DelaySeconds="5")
    await sqs("SendMessage", "slow", MessageBody="later")
    await sqs("SendMessage", "slow", MessageBody="now", DelaySeconds=0)
    assert [each["Body"] for each in await sqs.receive("slow")] == ["now"]
    sqs.clock.advance(5.1)
    assert [each["Body"] for each in await sqs.receive("slow")] == ["later"]
    await sqs.make("waits", ReceiveMessageWaitTimeSeconds="20")
    found: list[dict[str, Any]] = []

    async def receive() -> None:
        found.extend(await sqs.receive("waits"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        await sqs("SendMessage", "waits", MessageBody="came")
    assert [each["Body"] for each in found] == ["came"]


async def test_a_dead_letter_queue_is_of_the_type_of_its_source(sqs: Sqs) -> None:
    await sqs.make("plain")
    await sqs.make("a.fifo", FifoQueue="true")
    fifo = {"FifoQueue": "true", "RedrivePolicy": redrive_to("plain")}
    assert await sqs.refused("CreateQueue", QueueName="b.fifo", Attributes=fifo) == "InvalidParameterValue"
    plain = {"RedrivePolicy": redrive_to("a.fifo")}
    assert await sqs.refused("CreateQueue", QueueName="b", Attributes=plain) == "InvalidParameterValue"
    await sqs.make("b.fifo", FifoQueue="true", **plain)


async def test_fields_go_both_ways(sqs: Sqs) -> None:
    await sqs.make("a.fifo", FifoQueue="true")
    queue = sqs.mq.queue("a.fifo")
    number = {"DataType": "Number", "StringValue": "7.5"}
    await sqs(
        "SendMessage",
        "a.fifo",
        MessageBody="from SQS",
        MessageAttributes={"n": number},
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
        MessageGroupId="g",
        MessageDeduplicationId="k",
    )
    [delivery] = await queue.lease()
    message = delivery.message
    assert message.attributes == {"n": number} and (message.group, message.dedup_key) == ("g", "k")
    assert message.headers == {"x-amzn-trace-id": "Root=1", "message-deduplication-id": "k"}
    await delivery.ack()
    await queue.publish("from the library", attributes={"n": 7}, group="g", dedup_key="k2", headers=message.headers)
    [shown] = await sqs.receive("a.fifo")
    assert shown["MessageAttributes"] == {"n": {"DataType": "Number", "StringValue": "7"}}
    assert shown["Attributes"]["AWSTraceHeader"] == "Root=1"
    await sqs("DeleteMessage", "a.fifo", ReceiptHandle=shown["ReceiptHandle"])
    await queue.publish("with a key alone", group="g", dedup_key="k3")
    [shown] = await sqs.receive("a.fifo")
    assert shown["Attributes"]["MessageDeduplicationId"] == "k3"
