"""Every codec against the laws, and JSON against every kind of hostile text."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pabal.codecs.json import JsonCodec, RowCodec, RowReader
from pabal.errors import DecodeError
from pabal.message import Message
from pabal.testing import CodecSuite

GOLDEN = Path(__file__).parent.parent / "codecs" / "golden"

FULL = Message(
    id="evt-github-123-2026-02-07T10:00:00Z",
    body={"temp": 36.5, "text": "한글 \N{GRINNING FACE}", "list": [1, None, True], "deep": {"er": {}}},
    type="reading",
    version=3,
    sender="sensor-1",
    target="worker-1",
    attributes={"zone": "north", "priority": 7},
    headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    priority=-3,
    group="line 1",
    dedup_key="device-001:1705112460",
    thread_id="t-1",
    trace_id="tr-1",
    reply_to="answers",
    created_at=1_700_000_000.25,
    expires_at=1_700_003_600.0,
)


class TestJsonCodec(CodecSuite):
    codec = JsonCodec()
    golden = {
        GOLDEN / "full-1.json": ("telemetry", FULL),
        GOLDEN / "bare-1.json": ("", Message(id="m", body=None)),
        GOLDEN / "bytes-1.json": ("blobs", Message(id="m-2", body=bytes(range(256)), created_at=1_700_000_000.0)),
    }


class TestRowCodec(CodecSuite):
    codec = RowCodec()
    golden = {
        GOLDEN / "full-1.json": ("telemetry", FULL),
        GOLDEN / "bytes-1.row": ("blobs", Message(id="m-2", body=bytes(range(256)), created_at=1_700_000_000.0)),
    }


def test_a_column_has_the_bytes_of_a_body_as_they_are() -> None:
    message = Message(id="m", body=b"\0\xff" * 500)
    data = RowCodec().encode(message)
    assert data.endswith(b"\0" + b"\0\xff" * 500)
    reader = RowReader()
    assert reader.decode(data) == reader.decode(data, own=True) == message
    assert reader.encode(message) == JsonCodec().encode(message)
    for damaged in (JsonCodec().encode(message) + b"\0abc", data[1:], b"\0" + data):
        with pytest.raises(DecodeError):
            reader.decode(damaged, own=True)


def deep(levels: int) -> bytes:
    return b'{"payload":' + b"[" * levels + b"]" * levels + b"}"


def envelope(**fields: Any) -> bytes:
    return json.dumps({"messageId": "m", "payload": 1, **fields}).encode()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "100,000 deep": (deep(100_000), "TooDeep"),
    "65 deep": (deep(65), "TooDeep"),
    "100,000 objects deep": (b'{"payload":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "TooDeep"),
    "int of 5,000 digits": (b'{"payload":' + b"9" * 5000 + b"}", "NumberOutOfRange"),
    "negative int of 5,000 digits": (b'{"payload":-' + b"9" * 5000 + b"}", "NumberOutOfRange"),
    "2^63": (b'{"payload":9223372036854775808}', "NumberOutOfRange"),
    "2^64": (b'{"payload":18446744073709551616}', "NumberOutOfRange"),
    "-2^63-1": (b'{"payload":-9223372036854775809}', "NumberOutOfRange"),
    "NaN": (b'{"payload":NaN}', "InvalidNumber"),
    "Infinity": (b'{"payload":[Infinity]}', "InvalidNumber"),
    "-Infinity": (b'{"payload":-Infinity}', "InvalidNumber"),
    "1e999": (b'{"payload":1e999}', "InvalidNumber"),
    "float of 5,000 digits": (b'{"payload":' + b"9" * 5000 + b".0}", "InvalidNumber"),
    "duplicate key": (b'{"payload":1,"payload":2}', "DuplicateKey"),
    "duplicate key, deep": (b'{"payload":{"x":[{"a":1,"a":1}]}}', "DuplicateKey"),
    "duplicate key by escape": (b'{"payload":{"a":1,"\\u0061":1}}', "DuplicateKey"),
    "lone surrogate": (b'{"payload":"\\ud800"}', "InvalidText"),
    "lone surrogate in a key": (b'{"payload":{"\\udfff":1}}', "InvalidText"),
    "surrogates the wrong way round": (b'{"payload":"\\udc00\\ud800"}', "InvalidText"),
    "surrogate in raw bytes": (b'{"payload":"\xed\xa0\x80"}', "NotUtf8"),
    "UTF-16 with BOM": ('{"payload":1}'.encode("utf-16"), "NotUtf8"),
    "UTF-16 without BOM": ('{"payload":"é"}'.encode("utf-16-le"), "NotUtf8"),
    "UTF-32": ('{"payload":1}'.encode("utf-32"), "NotUtf8"),
    "UTF-16 of ASCII": ('{"payload":1}'.encode("utf-16-be"), "NotJson"),
    "Latin-1": ('{"payload":"é"}'.encode("latin-1"), "NotUtf8"),
    "overlong slash": (b'{"payload":"\xc0\xaf"}', "NotUtf8"),
    "UTF-8 BOM": (b'\xef\xbb\xbf{"payload":1}', "NotJson"),
    "nothing": (b"", "NotJson"),
    "spaces": (b" \n", "NotJson"),
    "NULs": (b"\x00" * 64, "NotJson"),
    "cut short": (b'{"payload": {"a": 1', "NotJson"),
    "something after": (b'{"payload":1}{"payload":2}', "NotJson"),
    "trailing comma": (b'{"payload":1,}', "NotJson"),
    "single quotes": (b"{'payload':1}", "NotJson"),
    "comment": (b'{"payload":1} // one', "NotJson"),
    "raw newline in text": (b'{"payload":"a\nb"}', "NotJson"),
    "leading zero": (b'{"payload":01}', "NotJson"),
    "id that climbs": (envelope(messageId="../../etc/passwd"), "InvalidName"),
    "id with NUL": (envelope(messageId="a\x00b"), "InvalidName"),
    "id with newline": (envelope(messageId="m\n"), "InvalidName"),
    "id of 129": (envelope(messageId="m" * 129), "InvalidName"),
    "id that is a number": (envelope(messageId=5), "InvalidEnvelope"),
    "target that climbs": (envelope(target="../x"), "InvalidName"),
    "sender with a slash": (envelope(sender="a/b"), "InvalidName"),
    "priority of 101": (envelope(priority=101), "InvalidInput"),
    "priority of -101": (envelope(priority=-101), "InvalidInput"),
    "priority by an unknown name": (envelope(priority="urgent"), "InvalidInput"),
    "priority of 1.5": (envelope(priority=1.5), "InvalidInput"),
    "priority true": (envelope(priority=True), "InvalidInput"),
    "priority that is a list": (envelope(priority=[]), "InvalidInput"),
    "priority in attributes, unknown": (envelope(attributes={"priority": "urgent"}), "InvalidInput"),
    "header with newline": (envelope(headers={"a": "b\nc"}), "InvalidHeader"),
    "header name with CR": (envelope(headers={"a\r": "b"}), "InvalidHeader"),
    "101 headers": (envelope(headers={f"h{n}": "" for n in range(101)}), "TooManyHeaders"),
    "header that is a number": (envelope(headers={"a": 1}), "InvalidEnvelope"),
    "group with NUL": (envelope(group="a\x00"), "InvalidText"),
    "group of 1025": (envelope(group="g" * 1025), "InvalidInput"),
    "type that is a list": (envelope(type=["a"]), "InvalidEnvelope"),
    "version as text": (envelope(version="two"), "InvalidEnvelope"),
    "attributes that are a list": (envelope(attributes=[1]), "InvalidEnvelope"),
    "attributes as broken text": (envelope(attributes="{"), "NotJson"),
    "attributes as text, too deep": (envelope(attributes='{"a":' + "[" * 70 + "]" * 70 + "}"), "TooDeep"),
    "attributes as text, doubled key": (envelope(attributes='{"a":1,"a":2}'), "DuplicateKey"),
    "attributes as text of a list": (envelope(attributes="[1]"), "InvalidEnvelope"),
    "base64 that is not": (envelope(payload="a*b=", payloadEncoding="base64"), "InvalidEnvelope"),
    "base64 of a number": (envelope(payload=5, payloadEncoding="base64"), "InvalidEnvelope"),
    "base64 of an object": (envelope(payload={}, payloadEncoding="base64"), "InvalidEnvelope"),
    "another encoding": (envelope(payload="x", payloadEncoding="gzip"), "InvalidEnvelope"),
    "timestamp in words": (envelope(timestamp="yesterday"), "InvalidEnvelope"),
    "timestamp of 1e300": (envelope(timestamp=1e300), "InvalidEnvelope"),
    "timestamp before all time": (envelope(timestamp=-1e17), "InvalidEnvelope"),
    "timestamp that is a list": (envelope(timestamp=[]), "InvalidEnvelope"),
    "expiry of 1e300": (envelope(expiresAt=1e300), "InvalidEnvelope"),
    "expiry true": (envelope(expiresAt=True), "InvalidEnvelope"),
}


@pytest.mark.parametrize(("data", "code"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_json_is_refused_by_name(data: bytes, code: str) -> None:
    with pytest.raises(DecodeError) as caught:
        JsonCodec().decode(data, id="given", at=1.0)
    assert caught.value.reason.split(":")[0] == code
    assert caught.value.data == data
    assert len(caught.value.reason) < 400


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (deep(64), None),
        (b'{"payload":9223372036854775807}', 2**63 - 1),
        (b'{"payload":-9223372036854775808}', -(2**63)),
        (b'{"payload":"\\ud83d\\ude00"}', "\N{GRINNING FACE}"),
        (b'{"payload":"\\u0000"}', "\x00"),
        (b'\r\n\t {"payload" : 1.0 } \n', 1.0),
        (b"[1, 2]", [1, 2]),
        (b'"text"', "text"),
        (b"null", None),
        (b'{"temp": 36.5}', {"temp": 36.5}),
    ],
)
def test_what_is_at_the_limit_or_bare_is_taken(data: bytes, body: object) -> None:
    message = JsonCodec().decode(data, id="given", at=1.5)
    assert (message.id, message.created_at) == ("given", 1.5)
    assert body is None or message.body == body


def test_the_seeds_envelope_is_read() -> None:
    document = {
        "messageId": "m-1",
        "timestamp": 1_705_112_460_000,
        "queue": "telemetry",
        "type": "reading",
        "version": 1,
        "attributes": '{"priority": "high", "site": "north"}',
        "traceId": "tr-1",
        "deduplicationKey": "device-001",
        "payload": {"temp": 36.5},
        "expiredAt": 1_705_112_560_000,
        "targetConsumerId": "worker-1",
        "unknown": {"kept": False},
    }
    message = JsonCodec().decode(json.dumps(document).encode())
    assert (message.priority, message.dedup_key, message.trace_id) == (6, "device-001", "tr-1")
    assert (message.created_at, message.expires_at, message.target) == (1_705_112_460, 1_705_112_560, "worker-1")
    assert message.attributes == {"priority": "high", "site": "north"}


def test_bytes_are_base64_with_a_mark() -> None:
    document = json.loads(JsonCodec().encode(Message(id="m", body=b"\x00\xff")))
    assert document["payloadEncoding"] == "base64" and base64.b64decode(document["payload"]) == b"\x00\xff"
