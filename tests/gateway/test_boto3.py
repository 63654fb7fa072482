"""boto3 unchanged: what its users rely on, over a real socket. boto3 checks the checksums of bodies itself."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

import pabal
from tests.gateway.conftest import Running, client_of
from tests.waiting import until


def receive(sqs: Any, queue: str, **options: Any) -> list[dict[str, Any]]:
    options = {"MaxNumberOfMessages": 10, "AttributeNames": ["All"], "MessageAttributeNames": ["All"], **options}
    found: list[dict[str, Any]] = sqs.receive_message(QueueUrl=queue, **options).get("Messages", [])
    return found


def counted(sqs: Any, queue: str) -> tuple[int, int, int]:
    names = ("", "NotVisible", "Delayed")
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    ready, held, delayed = (int(found[f"ApproximateNumberOfMessages{name}"]) for name in names)
    return ready, held, delayed


def refused(act: Callable[[], object]) -> tuple[str, int, str]:
    with pytest.raises(ClientError) as caught:
        act()
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Message"]


def test_a_message_is_sent_received_and_deleted(sqs: Any, queue: str) -> None:
    attributes = {
        "text": {"DataType": "String", "StringValue": "값"},
        "number": {"DataType": "Number.int", "StringValue": "1.50"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    body = '안녕 "quoted" <xml> & \t\r\n'
    sent = sqs.send_message(
        QueueUrl=queue, MessageBody=body, MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    assert sent["MD5OfMessageBody"] == hashlib.md5(body.encode()).hexdigest()
    assert len(sent["MD5OfMessageSystemAttributes"]) == 32 and "SequenceNumber" not in sent
    [message] = receive(sqs, queue)
    assert message["Body"] == body and message["MessageId"] == sent["MessageId"]
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert message["Attributes"]["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert abs(int(message["Attributes"]["SentTimestamp"]) / 1000 - time.time()) < 60
    assert receive(sqs, queue) == [] and counted(sqs, queue) == (0, 1, 0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])  # twice is no error
    assert counted(sqs, queue) == (0, 0, 0)


def test_only_the_attributes_that_are_asked_for_come(sqs: Any, queue: str) -> None:
    given = {name: {"DataType": "String", "StringValue": "x"} for name in ("a.b", "a.c", "d")}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=given)
    for names, expected in (
        ([], None),
        (["nope"], None),
        (["d"], {"d"}),
        (["a.*"], {"a.b", "a.c"}),
        ([".*"], set(given)),
        (["All"], set(given)),
    ):
        [message] = receive(sqs, queue, MessageAttributeNames=names, AttributeNames=["SenderId"], VisibilityTimeout=0)
        assert message.get("MessageAttributes", {}).keys() == (expected or set())
        assert ("MD5OfMessageAttributes" in message) == bool(expected)
        assert set(message["Attributes"]) == {"SenderId"}
    assert refused(lambda: receive(sqs, queue, AttributeNames=["Wrong"]))[0] == "InvalidAttributeName"


def test_a_long_poll_returns_when_a_message_arrives_or_empty(sqs: Any, served: Running, queue: str) -> None:
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(receive(sqs, queue, WaitTimeSeconds=20)))
    waiting.start()
    time.sleep(0.3)
    client_of(served.address).send_message(QueueUrl=queue, MessageBody="at last")
    waiting.join(15)
    assert [message["Body"] for message in found] == ["at last"]
    answer = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1)
    assert "Messages" not in answer


def test_visibility_gives_back_extends_and_ends(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(sqs, queue)
    handle = {"QueueUrl": queue, "ReceiptHandle": first["ReceiptHandle"]}
    sqs.change_message_visibility(**handle, VisibilityTimeout=43200)
    sqs.change_message_visibility(**handle, VisibilityTimeout=0)
    [second] = receive(sqs, queue)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    code, status, _ = refused(lambda: sqs.change_message_visibility(**handle, VisibilityTimeout=43201))
    assert (code, status) == ("InvalidParameterValue", 400)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0)
    assert refused(lambda: sqs.change_message_visibility(**handle, VisibilityTimeout=5))[0] == (
        "AWS.SimpleQueueService.MessageNotInflight"
    )
    [third] = receive(sqs, queue)
    sqs.delete_message(**handle)  # an old handle deletes, though the message was received again
    assert counted(sqs, queue) == (0, 0, 0)
    assert refused(lambda: sqs.delete_message(QueueUrl=queue, ReceiptHandle="nonsense"))[:2] == (
        "ReceiptHandleIsInvalid",
        400,
    )
    gone = {"QueueUrl": queue, "ReceiptHandle": third["ReceiptHandle"], "VisibilityTimeout": 5}
    assert refused(lambda: sqs.change_message_visibility(**gone))[0] == "InvalidParameterValue"


def test_batches_answer_for_each_entry(sqs: Any, queue: str) -> None:
    entries: list[dict[str, Any]] = [{"Id": f"e{n}", "MessageBody": f"m{n}"} for n in range(8)]
    entries += [
        {"Id": "bad", "MessageBody": "x", "DelaySeconds": 901},
        {"Id": "worse", "MessageBody": "x", "MessageAttributes": {"aws.x": {"DataType": "String", "StringValue": "y"}}},
    ]
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [entry["Id"] for entry in answer["Successful"]] == [f"e{n}" for n in range(8)]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [
        ("bad", "InvalidParameterValue", True),
        ("worse", "InvalidParameterValue", True),
    ]
    found = receive(sqs, queue)
    assert len(found) == 8 and {message["Body"] for message in found} == {f"m{n}" for n in range(8)}
    handles = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(found)]
    hidden = [{**handle, "VisibilityTimeout": 60} for handle in handles]
    assert len(sqs.change_message_visibility_batch(QueueUrl=queue, Entries=hidden)["Successful"]) == 8
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=[*handles, {"Id": "x", "ReceiptHandle": "x"}])
    assert len(answer["Successful"]) == 8 and [entry["Id"] for entry in answer["Failed"]] == ["x"]
    assert counted(sqs, queue) == (0, 0, 0)

    def send(entries: list[dict[str, str]]) -> Callable[[], object]:
        return lambda: sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    one = {"Id": "a", "MessageBody": "x"}
    for wrong, code in (
        ([], "EmptyBatchRequest"),
        ([one] * 2, "BatchEntryIdsNotDistinct"),
        ([{"Id": str(n), "MessageBody": "x"} for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([{"Id": "a b", "MessageBody": "x"}], "InvalidBatchEntryId"),
        ([{"Id": str(n), "MessageBody": "x" * 400_000} for n in range(3)], "BatchRequestTooLong"),
    ):
        assert refused(send(wrong))[:2] == (f"AWS.SimpleQueueService.{code}", 400)


def test_queues_are_made_found_listed_and_deleted(sqs: Any, new_queue: Callable[..., str]) -> None:
    url = new_queue(VisibilityTimeout="40")
    name = url.rpartition("/")[2]
    assert sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "40"})["QueueUrl"] == url
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    other = {"QueueName": name, "Attributes": {"VisibilityTimeout": "41"}}
    assert refused(lambda: sqs.create_queue(**other))[:2] == ("QueueAlreadyExists", 400)
    for number in range(5):
        new_queue(f"-page-{number}")
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=name[:-2], PaginationConfig={"PageSize": 2})
    found = [page.get("QueueUrls", []) for page in pages]
    assert sum(map(len, found)) == 6 and max(map(len, found)) == 2
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="nobody-has-this")
    sqs.delete_queue(QueueUrl=url)
    code, status, text = refused(lambda: sqs.send_message(QueueUrl=url, MessageBody="x"))
    assert (code, status, text) == (
        "AWS.SimpleQueueService.NonExistentQueue",
        400,
        "The specified queue does not exist.",
    )
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName=name)
    for wrong in ("with space", "x" * 81, "a/b", "x.fifo"):
        assert refused(lambda wrong=wrong: sqs.create_queue(QueueName=wrong))[0] == "InvalidParameterValue"  # type: ignore[misc]


def test_attributes_are_the_policy_of_the_queue(sqs: Any, place: Path, new_queue: Callable[..., str]) -> None:
    dead, url = new_queue(), new_queue(DelaySeconds="1", MessageRetentionPeriod="600")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    assert arn == f"arn:aws:sqs:eu-west-1:000000000000:{dead.rpartition('/')[2]}"
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "7", "RedrivePolicy": redrive})
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (shown["VisibilityTimeout"], shown["DelaySeconds"], shown["MessageRetentionPeriod"]) == ("7", "1", "600")
    assert json.loads(shown["RedrivePolicy"]) == {"deadLetterTargetArn": arn, "maxReceiveCount": 3}
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    with pabal.connect(f"sqlite:{place}/jobs.db") as mq:
        policy = mq.queue(url.rpartition("/")[2]).policy
        assert (policy.visibility, policy.ttl, policy.retry.limit) == (7, 600, 3)
        mq.queue(url.rpartition("/")[2]).update_policy(visibility=9)  # by the library, seen by SQS
    until(
        lambda: (
            sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
            == {"VisibilityTimeout": "9"}
        )
    )
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    for wrong, code in (
        ({"Nope": "1"}, "InvalidAttributeName"),
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ({"DelaySeconds": "-1"}, "InvalidAttributeValue"),
        ({"RedrivePolicy": "{"}, "InvalidAttributeValue"),
        (
            {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn + "x", "maxReceiveCount": 1})},
            "InvalidParameterValue",
        ),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
    ):
        assert refused(lambda wrong=wrong: sqs.set_queue_attributes(QueueUrl=url, Attributes=wrong))[0] == code  # type: ignore[misc]
    assert refused(lambda: sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Nope"]))[0] == "InvalidAttributeName"


def test_a_message_received_too_often_moves_with_its_id(sqs: Any, new_queue: Callable[..., str]) -> None:
    dead = new_queue()
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    url = new_queue(RedrivePolicy=redrive, VisibilityTimeout="0")
    attributes = {"a": {"DataType": "String", "StringValue": "b"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="poison", MessageAttributes=attributes)
    for _ in range(2):
        until(lambda: receive(sqs, url, WaitTimeSeconds=1))
    assert receive(sqs, url) == []
    [message] = receive(sqs, dead, WaitTimeSeconds=10)
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "poison")
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["DeadLetterQueueSourceArn"].endswith(url.rpartition("/")[2])
    assert counted(sqs, url) == (0, 0, 0)


def test_delays_purges_tags_and_permissions(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=900)
    sqs.send_message(QueueUrl=queue, MessageBody="held")
    sqs.send_message(QueueUrl=queue, MessageBody="ready")
    receive(sqs, queue, MaxNumberOfMessages=1)
    assert counted(sqs, queue) == (1, 1, 1)
    sqs.purge_queue(QueueUrl=queue)
    assert counted(sqs, queue) == (0, 0, 0)
    assert refused(lambda: sqs.purge_queue(QueueUrl=queue))[:2] == (
        "AWS.SimpleQueueService.PurgeQueueInProgress",
        403,
    )
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=queue)
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "배송", "env": "test"})
    sqs.untag_queue(QueueUrl=queue, TagKeys=["env", "none"])
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "배송"}
    permission = {"QueueUrl": queue, "Label": "ann", "AWSAccountIds": ["123456789012"], "Actions": ["*"]}
    sqs.add_permission(**permission)
    assert refused(lambda: sqs.add_permission(**permission))[0] == "InvalidParameterValue"
    sqs.remove_permission(QueueUrl=queue, Label="ann")
    assert refused(lambda: sqs.remove_permission(QueueUrl=queue, Label="ann"))[0] == "InvalidParameterValue"


def test_what_sqs_refuses_is_refused(sqs: Any, new_queue: Callable[..., str]) -> None:
    url = new_queue(MaximumMessageSize="2048")

    def send(**given: Any) -> Callable[[], object]:
        return lambda: sqs.send_message(**{"QueueUrl": url, "MessageBody": "x", **given})

    def attribute(**value: Any) -> dict[str, Any]:
        return {"MessageAttributes": {"a": {"DataType": "String", **value}}}

    for given, code in (
        ({"MessageBody": "\x00"}, "InvalidMessageContents"),
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": "x" * 2049}, "InvalidParameterValue"),
        ({"MessageBody": "x" * 2046, **attribute(StringValue="y")}, "InvalidParameterValue"),  # attributes count
        ({"DelaySeconds": -1}, "InvalidParameterValue"),
        ({"MessageDeduplicationId": "x"}, "InvalidParameterValue"),
        (attribute(StringValue=""), "InvalidParameterValue"),
        (attribute(DataType="Wrong", StringValue="x"), "InvalidParameterValue"),
        (attribute(DataType="Number", StringValue="x"), "InvalidParameterValue"),
        (attribute(DataType="Binary", BinaryValue=b""), "InvalidParameterValue"),
        (
            {"MessageAttributes": {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}},
            "InvalidParameterValue",
        ),
    ):
        assert refused(send(**given))[:2] == (code, 400), given
    for given in ({"MaxNumberOfMessages": 11}, {"WaitTimeSeconds": 21}, {"VisibilityTimeout": -1}):
        assert refused(lambda given=given: receive(sqs, url, **given))[0] == "InvalidParameterValue"  # type: ignore[misc]
    assert refused(lambda: sqs.send_message(QueueUrl="http://other/0/none", MessageBody="x"))[0].endswith(
        "NonExistentQueue"
    )
    assert receive(sqs, url) == []


def test_both_sides_see_the_same_queue(sqs: Any, place: Path, queue: str) -> None:
    name = queue.rpartition("/")[2]
    attributes = {
        "s": {"DataType": "String", "StringValue": "x"},
        "traceparent": {"DataType": "String", "StringValue": "00-1"},
    }
    sqs.send_message(QueueUrl=queue, MessageBody='{"a": 1}', MessageAttributes=attributes, MessageGroupId="g")
    with pabal.connect(f"sqlite:{place}/jobs.db") as mq:
        [delivery] = mq.queue(name).lease()
        message = delivery.message
        assert (message.body, message.attributes) == ('{"a": 1}', {"s": "x", "traceparent": "00-1"})
        assert message.group == "" and message.headers == {"traceparent": "00-1", "message-group-id": "g"}
        delivery.ack()
        mq.queue(name).publish({"b": [2]}, attributes={"n": 5, "list": [1]}, headers={"traceparent": "00-2"})
        mq.queue(name).publish(b"\x00\x01")
    first, second = receive(sqs, queue)
    assert json.loads(first["Body"]) == {"b": [2]} and second["Body"] == "AAE="
    assert first["MessageAttributes"] == {
        "n": {"DataType": "Number", "StringValue": "5"},
        "list": {"DataType": "String.json", "StringValue": "[1]"},
        "traceparent": {"DataType": "String", "StringValue": "00-2"},
    }
    with pabal.connect(f"sqlite:{place}/jobs.db") as mq:  # a receipt of one side is one of the other
        mq.queue(name).ack(first["ReceiptHandle"])
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])
        mq.queue(name).publish("c")
        [third] = mq.queue(name).lease()
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=str(third.receipt))
        assert mq.queue(name).counts()[pabal.State.DONE] == 4
