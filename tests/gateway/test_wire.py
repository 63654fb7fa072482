"""Both protocols as they are on the wire, and requests that no client sends on purpose."""

import json
import random
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.parsers import create_parser
from botocore.validate import ParamValidator

import pabal
from tests.gateway.conftest import Running, client_of
from tests.gateway.test_boto3 import refused

SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
MODEL = botocore.session.get_session().get_service_model("sqs")


def fetch(url: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
    request = Request(url, body, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except HTTPError as exc:
        with exc:
            return exc.code, exc.headers, exc.read()


def form(served: Running, path: str = "/", **parameters: Any) -> ElementTree.Element:
    """Send a form; return its answer."""
    status, headers, body = fetch(served.address + path, urlencode(parameters).encode())
    assert headers["content-type"] == "text/xml" and headers["x-amzn-RequestId"]
    found = ElementTree.fromstring(body)
    assert (status == 200) == found.tag.endswith("Response") and status == 200 or found.tag == f"{SPACE}ErrorResponse"
    return found


def texts(found: ElementTree.Element, tag: str) -> list[str]:
    return [each.text or "" for each in found.iter(SPACE + tag)]


def test_a_form_makes_sends_receives_and_deletes(served: Running) -> None:
    made = form(
        served,
        Action="CreateQueue",
        QueueName="by-form",
        **{"Attribute.1.Name": "VisibilityTimeout", "Attribute.1.Value": "50", "Tag.1.Key": "a", "Tag.1.Value": "b"},
    )
    [url] = texts(made, "QueueUrl")
    path = urlsplit(url).path
    sent = form(
        served,
        path,
        Action="SendMessage",
        Version="2012-11-05",
        MessageBody="<b>&amp;\r\n",
        **{
            "MessageAttribute.1.Name": "n",
            "MessageAttribute.1.Value.DataType": "Number",
            "MessageAttribute.1.Value.StringValue": "7",
            "MessageAttribute.2.Name": "raw",
            "MessageAttribute.2.Value.DataType": "Binary",
            "MessageAttribute.2.Value.BinaryValue": "AAE=",
        },
    )
    received = form(
        served, path, Action="ReceiveMessage", **{"AttributeName.1": "All", "MessageAttributeName.1": "All"}
    )
    assert texts(received, "Body") == ["<b>&amp;\r\n"] and texts(received, "MessageId") == texts(sent, "MessageId")
    assert texts(received, "MD5OfMessageAttributes") == texts(sent, "MD5OfMessageAttributes")
    values = {
        each.findtext(f"{SPACE}Name"): [part.text for part in each.findall(f"{SPACE}Value/*")]
        for each in received.iter(f"{SPACE}MessageAttribute")
    }
    assert {name: set(value) for name, value in values.items()} == {"n": {"Number", "7"}, "raw": {"Binary", "AAE="}}
    [handle] = texts(received, "ReceiptHandle")
    form(served, path, Action="ChangeMessageVisibility", ReceiptHandle=handle, VisibilityTimeout="10")
    deleted = form(
        served,
        path,
        Action="DeleteMessageBatch",
        **{"DeleteMessageBatchRequestEntry.1.Id": "a", "DeleteMessageBatchRequestEntry.1.ReceiptHandle": handle},
    )
    assert [each.tag for each in deleted.iter(f"{SPACE}DeleteMessageBatchResultEntry")] == [
        f"{SPACE}DeleteMessageBatchResultEntry"
    ]
    shown = form(served, path, Action="GetQueueAttributes", **{"AttributeName.1": "VisibilityTimeout"})
    assert texts(shown, "Name") + texts(shown, "Value") == ["VisibilityTimeout", "50"]
    tags = form(served, path, Action="ListQueueTags")
    assert texts(tags, "Key") + texts(tags, "Value") == ["a", "b"]
    assert url in texts(form(served, Action="ListQueues"), "QueueUrl")


def test_a_link_is_enough_and_errors_are_in_xml_or_json(served: Running, queue: str) -> None:
    status, _, body = fetch(f"{queue}?Action=SendMessage&MessageBody=by+link")
    assert status == 200 and b"<SendMessageResponse" in body
    status, _, body = fetch(f"{queue}?Action=ReceiveMessage", accept="application/json")
    assert json.loads(body)["ReceiveMessageResponse"]["ReceiveMessageResult"]["Message"][0]["Body"] == "by link"
    assert fetch(queue)[::2] == (404, b"<UnknownOperationException/>\n")
    for url, code in (
        (f"{queue}?Action=Nope", "InvalidAction"),
        (f"{queue}?Action=ListQueues", "InvalidAction"),
        (f"{queue}?Action=SendMessage", "MissingParameter"),
        (f"{served.address}/0/none?Action=PurgeQueue", "AWS.SimpleQueueService.NonExistentQueue"),
        (f"{queue}?Action=SendMessage&MessageBody=%FF", "MalformedQueryString"),
    ):
        status, _, body = fetch(url)
        assert (status, texts(ElementTree.fromstring(body), "Code")) == (400, [code])
        assert json.loads(fetch(url, accept="application/json")[2])["Error"]["Code"] == code


def test_a_look_leases_nothing(served: Running, queue: str, sqs: Any) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="seen")
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=100)
    for _ in range(2):
        status, _, body = fetch(f"{served.address}/_aws/sqs/messages?QueueUrl={queue}", accept="application/json")
        found = json.loads(body)["ReceiveMessageResponse"]["ReceiveMessageResult"]["Message"]
        assert status == 200 and [each["Body"] for each in found] == ["seen"]
        attributes = {each["Name"]: each["Value"] for each in found[0]["Attribute"]}
        assert attributes["ApproximateReceiveCount"] == "0" and "ApproximateFirstReceiveTimestamp" not in attributes
    _, _, body = fetch(f"{served.address}/_aws/sqs/messages/eu-west-1/0/{queue.rpartition('/')[2]}?ShowDelayed=true")
    assert texts(ElementTree.fromstring(body), "Body") == ["seen", "later"]
    assert fetch(f"{served.address}/_aws/sqs/messages?QueueUrl=none")[0] == 400


def test_operators_ask_for_health_and_figures(served: Running, queue: str, sqs: Any) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="counted")
    assert fetch(f"{served.address}/healthz")[::2] == (200, b"ok\n")
    assert fetch(f"{served.address}/readyz")[::2] == (200, b"ready\n")
    text = fetch(f"{served.address}/metrics")[2].decode()
    assert f'pabal_messages{{queue="{queue.rpartition("/")[2]}",state="ready"}} 1' in text


def test_pages_of_other_sites_are_refused(served: Running) -> None:
    assert fetch(f"{served.address}/?Action=ListQueues", origin="http://evil.example")[0] == 403
    assert fetch(f"{served.address}/?Action=ListQueues", host="evil.example")[0] == 403
    assert fetch(f"{served.address}/?Action=ListQueues", sec_fetch_site="cross-site")[0] == 403  # a picture of a page


def value_of(shape: Any, chance: random.Random, depth: int = 0) -> Any:
    """Return some value of a shape of the model."""
    if shape.type_name == "structure":
        names = [name for name in shape.members if name in shape.required_members or chance.random() < 0.5]
        return {name: value_of(shape.members[name], chance, depth + 1) for name in names}
    if shape.type_name == "list":
        return [value_of(shape.member, chance, depth + 1) for _ in range(chance.randrange(4))]
    if shape.type_name == "map":
        return {
            value_of(shape.key, chance): value_of(shape.value, chance, depth + 1) for _ in range(chance.randrange(3))
        }
    if shape.type_name in ("integer", "long"):
        return chance.choice([0, 1, 5, -1, 1000, 2**40])
    if shape.type_name == "boolean":
        return chance.random() < 0.5
    if shape.type_name == "blob":
        return chance.choice(["", "AAE=", "not base64"])
    return chance.choice(["x", "", "한글", "a" * 200, "\x00", "String", "All", "{}"])


@pytest.mark.parametrize("action", MODEL.operation_names)
def test_every_action_answers_in_its_shape_whatever_it_is_given(served: Running, queue: str, action: str) -> None:
    operation = MODEL.operation_model(action)
    assert MODEL.service_name == "sqs" and len(MODEL.operation_names) == 23
    chance = random.Random(action)
    parser = create_parser("json")
    for turn in range(60):
        given = value_of(operation.input_shape, chance) if turn else {}
        if "QueueUrl" in given:
            given["QueueUrl"] = queue
        if given.get("WaitTimeSeconds", 0) > 1:
            given["WaitTimeSeconds"] = 0
        if turn % 5 == 4:
            given = chance.choice([[], 5, {"QueueUrl": {"a": []}}, {"Entries": 7, "QueueUrl": queue}, None])
        if action in ("DeleteQueue", "PurgeQueue") and isinstance(given, dict):
            given.pop("QueueUrl", None)
        status, headers, body = fetch(
            served.address,
            json.dumps(given).encode(),
            x_amz_target=f"AmazonSQS.{action}",
            content_type="application/x-amz-json-1.0",
        )
        about = (action, given, body)
        assert headers["x-amzn-RequestId"], about
        if status != 200:
            assert status in (400, 403, 404) and json.loads(body)["__type"].startswith("com.amazonaws.sqs#"), about
            code, _, kind = headers["x-amzn-query-error"].partition(";")
            assert code and kind == "Sender", about
            continue
        answer = {"headers": {}, "status_code": status, "body": body}
        parsed = parser.parse(answer, operation.output_shape)
        parsed.pop("ResponseMetadata")
        if "Successful" in parsed or "Failed" in parsed:  # the service leaves out an empty list
            parsed = {"Successful": [], "Failed": [], **parsed}
        if operation.output_shape is not None:
            assert not ParamValidator().validate(parsed, operation.output_shape).has_errors(), about
            assert json.loads(body).keys() <= operation.output_shape.members.keys(), about


def raw(served: Running, data: bytes) -> bytes:
    """Send bytes, and return what comes back until the gateway closes or has answered."""
    parts = urlsplit(served.address)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as line:
        line.sendall(data)
        found = b""
        while part := line.recv(65536):
            found += part
            head, _, body = found.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.I)
            if length is not None and len(body) >= int(length[1]):
                break
        return found


def test_clients_that_are_too_slow_are_left(served: Running, queue: str, sqs: Any) -> None:
    parts = urlsplit(served.address)
    slow = [socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) for _ in range(20)]
    for line in slow[:10]:
        line.sendall(b"POST / HTTP/1.1\r\nhost: ")
    sqs.send_message(QueueUrl=queue, MessageBody="meanwhile")
    for line in slow[:10]:
        with line:
            assert line.recv(100).startswith(b"HTTP/1.1 408 ") and line.recv(100) == b""
    for line in slow[10:]:  # they asked nothing, and get no answer
        with line:
            assert line.recv(100) == b""


def test_what_is_no_request_is_refused_and_serving_goes_on(served: Running, queue: str, sqs: Any) -> None:
    host = urlsplit(served.address).netloc.encode()
    head = b"POST / HTTP/1.1\r\nhost: " + host + b"\r\n"
    assert b" 400 " in raw(served, b"nonsense\r\n\r\n")
    deep = b"[" * 100_000
    for body, target in (
        (deep, b"AmazonSQS.SendMessage"),
        (b"\xff\xfe", b"AmazonSQS.ListQueues"),
        (b"{}", b"Other.Thing"),
    ):
        request = (
            head + b"x-amz-target: " + target + b"\r\ncontent-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        assert b" 400 " in raw(served, request)
    large = head + b"x-amz-target: AmazonSQS.SendMessage\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    assert b"RequestEntityTooLarge" in raw(served, large + chunk * 5)
    half = socket.create_connection((urlsplit(served.address).hostname or "", urlsplit(served.address).port or 0))
    half.sendall(head + b"content-length: 100\r\n\r\n{")
    half.close()
    sqs.send_message(QueueUrl=queue, MessageBody="still there")
    assert sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "still there"


def test_values_that_no_number_and_no_reader_can_hold_are_refused(served: Running, queue: str, sqs: Any) -> None:
    source = "arn:aws:sqs:eu-west-1:000000000000:other"
    long, deep = "1" * 5000, '{"a":' * 100_000
    for name, value in (
        ("DelaySeconds", long),
        ("RedriveAllowPolicy", deep),
        ("RedrivePolicy", deep),
        ("RedrivePolicy", json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": long})),
        ("RedrivePolicy", json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": "\N{SUPERSCRIPT TWO}"})),
    ):
        with pytest.raises(ClientError) as caught:
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: value})
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400, name
    of_queue = b"&QueueUrl=" + queue.encode() + b"&"
    for text in (
        b"Action=GetQueueAttributes" + of_queue + b"AttributeName." + long.encode() + b"=All",
        b"Action=SendMessageBatch" + of_queue + b".".join([b"SendMessageBatchRequestEntry.1"] * 20_000) + b"=x",
        b"Action=SendMessage" + of_queue + b"MessageBody=\xff\xfe",
        b"Action=TagQueue" + of_queue + b"Tag.1.Key=a&Tag.1.Value.x=b&Tag.01.Key=c&Tag.01.Value.x=b",
    ):
        assert fetch(served.address, text)[0] == 400
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_a_trace_header_that_is_no_text_is_refused_before_the_message_is_stored(
    served: Running, queue: str, sqs: Any
) -> None:
    trace = {"AWSTraceHeader": {"DataType": "Binary", "BinaryValue": "abc"}}  # no base64, which boto3 would not send
    asked = {"QueueUrl": queue, "MessageBody": "x", "MessageSystemAttributes": trace}
    assert fetch(served.address, json.dumps(asked).encode(), x_amz_target="AmazonSQS.SendMessage")[0] == 400
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_attributes_of_the_library_that_only_look_like_those_of_sqs_are_shown_as_json(
    served: Running, queue: str, sqs: Any
) -> None:
    attributes: dict[str, Any] = {
        "binary": {"DataType": "Binary", "BinaryValue": "abc"},
        "empty": {"DataType": "Number", "StringValue": None},
        "type": {"DataType": 5, "BinaryValue": "eA=="},
    }
    with pabal.connect(served.url) as mq:
        mq.queue(queue.rpartition("/")[2]).publish("x", attributes=attributes)
    [message] = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]
    shown = message["MessageAttributes"]
    assert {name: json.loads(value["StringValue"]) for name, value in shown.items()} == attributes
    assert {value["DataType"] for value in shown.values()} == {"String.json"}


def test_a_client_whose_endpoint_is_the_look_leases_nothing(served: Running, queue: str, sqs: Any) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody="seen")["MessageId"]
    looking = client_of(f"{served.address}/_aws/sqs/messages")
    for _ in range(2):
        [message] = looking.receive_message(QueueUrl=queue)["Messages"]
        assert (message["MessageId"], message["Body"]) == (sent, "seen")
    assert refused(lambda: looking.purge_queue(QueueUrl=queue))[0] == "InvalidAction"
    handle = message["ReceiptHandle"]
    assert refused(lambda: sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle))[0] == "ReceiptHandleIsInvalid"
    found = form(served, "/_aws/sqs/messages", Action="ReceiveMessage", QueueUrl=queue)
    assert texts(found, "Body") == ["seen"] and texts(found, "ReceiptHandle") == [handle]
    assert sqs.receive_message(QueueUrl=queue)["Messages"][0]["MessageId"] == sent


def test_a_look_is_bounded(served: Running, place: Path) -> None:
    with pabal.connect(f"sqlite:{place}/jobs.db") as mq:
        mq.queue("many").publish_many(range(1200))
        mq.queue("large").publish_many(["x" * 1_000_000] * 6, ttl=9000)
    for name, count in (("many", 1000), ("large", 4)):
        body = fetch(f"{served.address}/_aws/sqs/messages/0/{name}")[2]
        assert len(texts(ElementTree.fromstring(body), "Body")) == count


def test_the_queue_of_the_parameters_counts_not_that_of_the_path(
    served: Running, new_queue: Callable[..., str], sqs: Any
) -> None:
    named, of_path = new_queue(), new_queue()
    path = urlsplit(of_path).path
    found = form(served, path, Action="SendMessage", MessageBody="x", QueueUrl=named)
    assert texts(found, "MD5OfMessageBody")
    assert "Messages" not in sqs.receive_message(QueueUrl=of_path)
    assert sqs.receive_message(QueueUrl=named)["Messages"][0]["Body"] == "x"
