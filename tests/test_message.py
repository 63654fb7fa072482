"""What a message may be: whatever publish accepts can be written down and read back."""

import math

import msgspec
import pytest

from pabal.codecs.json import JsonCodec
from pabal.errors import InvalidHeader, InvalidInput, TooManyHeaders
from pabal.message import MAX_INSTANT, Message, check_count, check_message, check_seconds, priority_of

GOOD = Message(id="m", body={"a": 1}, created_at=1.5, expires_at=2.5, headers={"a": "b"}, attributes={"x": [1]})

BAD: dict[str, object] = {
    "version": "x",
    "attributes": [1],
    "headers": ["a"],
    "priority": "high",
    "created_at": 1e20,
    "expires_at": math.nan,
    "target": "a/b",
    "sender": "\n",
    "type": 7,
    "group": "\x00",
    "id": "a~b",
    "body": object(),
}


@pytest.mark.parametrize("field", BAD)
def test_a_field_that_could_not_be_read_back_is_refused(field: str) -> None:
    bad = msgspec.structs.replace(GOOD, **{field: BAD[field]})
    with pytest.raises(InvalidInput):
        check_message(bad)


@pytest.mark.parametrize("field", ["version", "priority"])
def test_true_is_no_number(field: str) -> None:
    with pytest.raises(InvalidInput):
        check_message(msgspec.structs.replace(GOOD, **{field: True}))


@pytest.mark.parametrize(
    "message", [GOOD, Message(id="m", body=b"", created_at=MAX_INSTANT), Message(id="m", body=None)]
)
def test_what_is_accepted_is_read_back(message: Message) -> None:
    codec = JsonCodec()
    data = codec.encode(check_message(message))
    assert codec.decode(data) == codec.decode(data, own=True) == message


def test_headers_have_errors_of_their_own() -> None:
    with pytest.raises(TooManyHeaders):
        check_message(msgspec.structs.replace(GOOD, headers={f"h{n}": "" for n in range(101)}))
    with pytest.raises(InvalidHeader):
        check_message(msgspec.structs.replace(GOOD, headers={"a": "b\r\nc"}))
    with pytest.raises(InvalidHeader):
        check_message(msgspec.structs.replace(GOOD, headers={"a": 1}))
    check_message(msgspec.structs.replace(GOOD, headers={f"h{n}": "" for n in range(100)}))


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1e300, "1", True, None])
def test_durations_are_numbers_with_an_end(value: float) -> None:
    with pytest.raises(InvalidInput, match="seconds"):
        check_seconds("delay", value)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_counts_are_whole_and_positive(value: int) -> None:
    with pytest.raises(InvalidInput, match="whole number"):
        check_count("limit", value)


def test_priorities_are_numbers_or_names() -> None:
    assert [priority_of(value) for value in (3, "critical", "high", "normal", "low")] == [3, 9, 6, 0, -6]
    for bad in ("urgent", 1.5, None, True, [1]):
        with pytest.raises(InvalidInput):
            priority_of(bad)
