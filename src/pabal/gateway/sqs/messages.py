"""Messages between SQS and the library: what the fields of one side are on the other, sizes and checksums.

| SQS | library |
|---|---|
| body | the body, as text; a JSON body of the library is its JSON text, bytes are base64 |
| attribute of type String | an attribute that is a text |
| any other attribute | an attribute {"DataType": …, "StringValue" or "BinaryValue": …}; a plain number is a Number |
| attribute `traceparent` | also the header of this name |
| system attribute AWSTraceHeader | the header `x-amzn-trace-id` |
| MessageGroupId, MessageDeduplicationId | group, dedup_key; in a standard queue the header `message-group-id` |
| SequenceNumber | the time and the counter in the id |
| ReceiptHandle | the receipt, as text |
| MessageId | the header `original-id` of a message that was moved, else the id |
| SentTimestamp, ApproximateReceiveCount, SenderId | created_at, attempt, sender |
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import md5, sha256
from typing import Any

from pabal import jsontext
from pabal.aio import Delivery
from pabal.errors import InvalidInput
from pabal.gateway.sqs.attributes import arn_of
from pabal.gateway.sqs.errors import SqsError, invalid_value
from pabal.gateway.sqs.requests import Attribute, NewMessage
from pabal.ids import is_ours
from pabal.jsontext import Json
from pabal.message import Message
from pabal.queues.verdicts import ORIGINAL_ID, SOURCE_QUEUE
from pabal.store import Entry, Receipt

ANONYMOUS = "anonymous"  # the sender of a message that names none
TRACE_HEADER = "x-amzn-trace-id"
GROUP_ID = "message-group-id"  # in a standard queue, where it orders nothing
DEDUPLICATION_ID = "message-deduplication-id"  # as given: the dedup key may be that of a group, and is dropped by moves
_TRACEPARENT = "traceparent"
_MOST_ATTRIBUTES = 10
_ALLOWED_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
_ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws\.|amazon\.))(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\s]{1,249})?")
_GROUP = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def md5_of(body: str) -> str:
    """Return the checksum of a body, which clients compare."""
    return md5(body.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Attribute]) -> str:
    """Return the checksum of attributes: of each in the order of names, its name, type and value with their lengths."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        for text in (name, value.data_type):
            digest.update(_sized(text.encode()))
        if value.data_type.startswith("Binary"):
            digest.update(b"\x02" + _sized(b64decode(value.binary_value or "")))
        else:
            digest.update(b"\x01" + _sized((value.string_value or "").encode()))
    return digest.hexdigest()


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def size_of(message: NewMessage) -> int:
    """Return the bytes that count for the limits of a message and of a batch."""
    total = len(message.message_body.encode())
    for name, value in message.message_attributes.items():
        total += len(name.encode()) + len(value.data_type.encode())
        total += len((value.string_value or "").encode()) + len(value.binary_value or "") * 3 // 4
    return total


def check_new(message: NewMessage, *, most: int, fifo: bool) -> None:
    """Raise the error of SQS for a message that it would refuse."""
    _check_body(message.message_body)
    _check_attributes(message.message_attributes)
    for name, value in message.message_system_attributes.items():
        if name != "AWSTraceHeader":
            raise invalid_value("MessageSystemAttributes", name, "Only AWSTraceHeader is allowed.")
        if value.data_type != "String":
            raise invalid_value("MessageSystemAttributes", name, "It must be of type String.")
        _check_value(name, value)
    if size_of(message) > most:
        raise SqsError(
            "InvalidParameterValueException",
            f"One or more parameters are invalid. Reason: Message must be shorter than {most} bytes.",
        )
    delay = message.delay_seconds
    if delay is not None and not 0 <= delay <= 900:
        raise invalid_value("DelaySeconds", delay, "DelaySeconds must be >= 0 and <= 900.")
    check_word("MessageGroupId", message.message_group_id)
    check_word("MessageDeduplicationId", message.message_deduplication_id)
    if fifo and message.message_group_id is None:
        raise SqsError("MissingRequiredParameterException", "The request must contain the parameter MessageGroupId.")
    if fifo and delay:
        reason = "The request include parameter that is not valid for this queue type."
        raise invalid_value("DelaySeconds", delay, reason)
    if not fifo and message.message_deduplication_id is not None:
        reason = "The request include parameter that is not valid for this queue type."
        raise invalid_value("MessageDeduplicationId", message.message_deduplication_id, reason)


def check_word(name: str, value: str | None) -> None:
    """Raise the error of SQS for a group, or an id of a message or an attempt, that it would refuse."""
    if value is not None and not _GROUP.fullmatch(value):
        reason = f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise invalid_value(name, value, reason)


def _check_body(body: str) -> None:
    if not body:
        raise SqsError("MissingRequiredParameterException", "The request must contain the parameter MessageBody.")
    if not (body.isascii() and body.isprintable()) and not _ALLOWED_TEXT.fullmatch(body):  # the first is faster
        raise SqsError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to"
            " #xFFFD | #x10000 to #x10FFFF.",
        )


def _check_attributes(attributes: Mapping[str, Attribute]) -> None:
    if len(attributes) > _MOST_ATTRIBUTES:
        raise SqsError(
            "InvalidParameterValueException",
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{_MOST_ATTRIBUTES}].",
        )
    for name, value in attributes.items():
        if not _ATTRIBUTE_NAME.fullmatch(name):
            raise invalid_value(
                "MessageAttributes",
                name,
                "Message attribute name can contain A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.)"
                " characters.",
            )
        _check_value(name, value)


def _check_value(name: str, value: Attribute) -> None:
    def refused(reason: str) -> SqsError:
        return SqsError("InvalidParameterValueException", f"The message attribute '{name}' {reason}")

    if not _TYPE.fullmatch(value.data_type):
        raise refused(
            "has an invalid message attribute type, the set of supported type prefixes is Binary, Number, and String."
        )
    if value.string_list_values or value.binary_list_values:
        raise SqsError("UnsupportedOperation", "Message attribute list values are not supported in SQS.")
    binary = value.data_type.startswith("Binary")
    given = value.binary_value if binary else value.string_value
    if not given:
        kind = "binary" if binary else "string"
        raise refused(f"must contain non-empty message attribute value for message attribute type ({kind}) '{name}'.")
    if binary:
        try:
            b64decode(given, validate=True)
        except ValueError as exc:
            raise refused("has a binary value that is not in base64.") from exc
    elif not _ALLOWED_TEXT.fullmatch(given):
        raise refused("contains characters that are not allowed.")
    elif value.data_type.startswith("Number") and not _NUMBER.fullmatch(given):
        raise SqsError("InvalidParameterValueException", "Can't cast the value of message attribute to a number.")


def attributes_in(attributes: Mapping[str, Attribute]) -> dict[str, Json]:
    """Return the attributes of a message as the library keeps them."""
    kept: dict[str, Json] = {}
    for name, value in attributes.items():
        if value.data_type == "String":
            kept[name] = value.string_value
        elif value.data_type.startswith("Binary"):
            kept[name] = {"DataType": value.data_type, "BinaryValue": value.binary_value}
        else:
            kept[name] = {"DataType": value.data_type, "StringValue": value.string_value}
    return kept


def attributes_out(message: Message) -> dict[str, Attribute]:
    """Return the attributes of a message as SQS shows them."""
    shown = {name: _attribute(value) for name, value in message.attributes.items()}
    if _TRACEPARENT in message.headers:
        shown.setdefault(_TRACEPARENT, Attribute(data_type="String", string_value=message.headers[_TRACEPARENT]))
    return shown


def _attribute(value: Json) -> Attribute:
    if isinstance(value, str):
        return Attribute(data_type="String", string_value=value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Attribute(data_type="Number", string_value=jsontext.encode(value).decode())
    if isinstance(value, dict) and value.keys() in ({"DataType", "StringValue"}, {"DataType", "BinaryValue"}):
        with suppress(ValueError, SqsError):  # what only looks like one of SQS is shown as JSON
            given = jsontext.convert(value, Attribute)
            _check_value("", given)
            return given
    return Attribute(data_type="String.json", string_value=jsontext.encode(value).decode())


def headers_in(message: NewMessage) -> dict[str, str]:
    """Return the headers of the library for a message: what continues a trace."""
    headers: dict[str, str] = {}
    trace = message.message_system_attributes.get("AWSTraceHeader")
    if trace is not None and trace.string_value:
        headers[TRACE_HEADER] = trace.string_value
    parent = message.message_attributes.get(_TRACEPARENT)
    if parent is not None and parent.string_value:
        headers[_TRACEPARENT] = parent.string_value
    return headers


def body_out(message: Message) -> str:
    """Return the body of a message as SQS shows it: always a text."""
    if isinstance(message.body, str):
        return message.body
    return b64encode(message.body).decode() if type(message.body) is bytes else jsontext.encode(message.body).decode()


def id_out(message: Message) -> str:
    return message.headers.get(ORIGINAL_ID, message.id)


def source_of(message: Message) -> str:
    """Return the queue from which a message was moved here, or ''."""
    return message.headers.get(SOURCE_QUEUE, "")


def chosen(attributes: Mapping[str, Attribute], names: Iterable[str]) -> dict[str, Attribute]:
    """Return the attributes that a receiver asks for: by name, by `prefix.*`, or all."""
    wanted = set(names)
    if wanted & {"All", ".*"}:
        return dict(attributes)
    prefixes = tuple(name.removesuffix("*").removesuffix(".") for name in wanted if name.endswith("*"))
    return {
        name: value for name, value in attributes.items() if name in wanted or (prefixes and name.startswith(prefixes))
    }


def receipt_of(handle: str, queue: str) -> Receipt:
    """Return the receipt of a handle, which is its text; raise the error of SQS if it is none of this queue."""
    try:
        receipt = Receipt.parse(handle)
    except InvalidInput as exc:
        raise SqsError(
            "ReceiptHandleIsInvalid", f'The input receipt handle "{handle:.200}" is not a valid receipt handle.'
        ) from exc
    if receipt.queue != queue:
        raise SqsError("ReceiptHandleIsInvalid", "The input receipt handle is one of another queue.")
    return receipt


def as_given(attributes: Mapping[str, Attribute]) -> dict[str, dict[str, Any]]:
    """Return attributes as an answer holds them."""
    answered: dict[str, dict[str, Any]] = {}
    for name, value in attributes.items():
        answered[name] = {"DataType": value.data_type}
        if value.binary_value is not None:
            answered[name]["BinaryValue"] = value.binary_value
        else:
            answered[name]["StringValue"] = value.string_value
    return answered


def content_key(body: str) -> str:
    """Return the dedup key of a body, where a queue dedups by content."""
    return sha256(body.encode()).hexdigest()


def sequence_number(id: str) -> str:
    """Return a number that rises with the ids of a gateway: of 25 digits, the milliseconds and the counter in an id.

    An id that the library did not make has no time in it: its place among others is not known.
    """
    text = id.replace("-", "")
    return f"{int(text[:12] + text[13:16] + text[17:24], 16):025d}" if is_ours(id) else "0" * 25


def system_attributes(found: Delivery | Entry, message: Message, region: str, now: float) -> dict[str, str]:
    """Return the attributes of a message that SQS sets itself.

    The library does not keep the time of the first receive: that of the failure before is the nearest it knows.
    """
    failure = found.failure
    first = now if found.attempt == 1 else failure.at if failure is not None else message.created_at
    shown = {
        "SenderId": message.sender or ANONYMOUS,
        "SentTimestamp": _milliseconds(message.created_at),
        "ApproximateReceiveCount": str(found.attempt),
        "ApproximateFirstReceiveTimestamp": _milliseconds(first),
    }
    if group := message.group or message.headers.get(GROUP_ID, ""):
        shown["MessageGroupId"] = group
    if key := message.headers.get(DEDUPLICATION_ID, message.dedup_key):
        shown["MessageDeduplicationId"] = key
    if found.queue.endswith(".fifo"):
        shown["SequenceNumber"] = sequence_number(message.id)
    if TRACE_HEADER in message.headers:
        shown["AWSTraceHeader"] = message.headers[TRACE_HEADER]
    if source := source_of(message):
        shown["DeadLetterQueueSourceArn"] = arn_of(source, region)
    return shown


def _milliseconds(instant: float) -> str:
    return str(round(instant * 1000))
