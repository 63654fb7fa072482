"""What is JSON for us and what each deviation is called."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal import jsontext
from pabal.errors import (
    DuplicateKey,
    InvalidBody,
    InvalidInput,
    InvalidNumber,
    InvalidText,
    NotJson,
    NotUtf8,
    NumberOutOfRange,
    TooDeep,
)
from tests.steps import growth

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_is_written_is_read_back(value: jsontext.Json) -> None:
    jsontext.check(value)
    assert jsontext.read(jsontext.encode(value)) == value
    assert jsontext.decode(jsontext.encode(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_named_error(data: bytes) -> None:
    try:
        jsontext.check(jsontext.read(data))
    except InvalidInput as exc:
        assert str(exc)


BAD_TEXT = [
    (b"[" * 100_000 + b"]" * 100_000, TooDeep),
    (b"[" * 65 + b"]" * 65, TooDeep),
    (b"9" * 5000, NumberOutOfRange),
    (b"9223372036854775808", NumberOutOfRange),
    (b"-9223372036854775809", NumberOutOfRange),
    (b"NaN", InvalidNumber),
    (b"-Infinity", InvalidNumber),
    (b"1e999", InvalidNumber),
    (b'{"a":1,"b":2,"a":3}', DuplicateKey),
    (b'"\\ud800"', InvalidText),
    ('{"a":1}'.encode("utf-16"), NotUtf8),
    (b'"\xff"', NotUtf8),
    (b"{'a':1}", NotJson),
    (b"", NotJson),
    (b"1 2", NotJson),
]


@pytest.mark.parametrize(
    ("text", "error"), BAD_TEXT, ids=[f"{error.__name__}-{n}" for n, (_, error) in enumerate(BAD_TEXT)]
)
def test_bad_text_is_refused_by_name(text: bytes, error: type[InvalidInput]) -> None:
    with pytest.raises(error):
        jsontext.read(text)


def test_the_depth_limit_is_exact() -> None:
    assert jsontext.read(b"[" * 64 + b"]" * 64) is not None
    deep: jsontext.Json = []
    for _ in range(63):
        deep = [deep]
    jsontext.check(deep)
    with pytest.raises(TooDeep):
        jsontext.check([deep])


def test_the_integer_limits_are_exact() -> None:
    assert jsontext.read(b"9223372036854775807") == 2**63 - 1
    assert jsontext.read(b"-9223372036854775808") == -(2**63)


BAD_VALUES: list[tuple[object, type[InvalidInput]]] = [
    (math.nan, InvalidNumber),
    ([math.inf], InvalidNumber),
    (2**63, NumberOutOfRange),
    ({1: 2}, InvalidBody),
    ((1, 2), InvalidBody),
    ({"a": {1, 2}}, InvalidBody),
    (object(), InvalidBody),
]


@pytest.mark.parametrize(("value", "error"), BAD_VALUES)
def test_bad_values_are_refused_by_name(value: object, error: type[InvalidInput]) -> None:
    with pytest.raises(error):
        jsontext.check(value)


def test_a_lone_surrogate_is_refused_when_written() -> None:
    with pytest.raises(InvalidText):
        jsontext.encode("\ud800")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"x", r"bytes cannot stand inside a JSON value: send base64 text, or a body of bytes alone$"),
        ({"a": 1, "b": [0, b"x"]}, r"bytes cannot stand .*; it is at \$\.b\[1\]$"),
        ([[], {"a": {"b": (1, 2)}}], r"found tuple; it is at \$\[1\]\.a\.b$"),
        ({"a": {2: b"x"}}, r"bytes .* it is at \$\.a\.2$"),
        ({"a": [{2: 1}]}, r"keys must be text; found 2; it is at \$\.a\[0\]$"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(value: object, says: str) -> None:
    with pytest.raises(InvalidBody, match=says):
        jsontext.check(value)


def test_a_key_that_is_there_twice_is_found_in_linear_time() -> None:
    def many(keys: int) -> Callable[[], object]:
        text = "{" + "".join(f'"k{key}":0,' for key in range(keys)) + f'"k{keys - 1}":1}}'
        return lambda: jsontext.read(text.encode())

    with pytest.raises(DuplicateKey, match="'k249' is there twice"):
        many(250)()
    assert growth(many, 250) < 6


def test_a_long_key_is_cut_in_the_error() -> None:
    key = b'"' + b"x" * 100_000 + b'"'
    with pytest.raises(DuplicateKey) as caught:
        jsontext.read(b"{" + key + b":1," + key + b":2}")
    assert len(str(caught.value)) < 200


FIRST_USES = """\
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
import msgspec
from pabal import jsontext

sys.setswitchinterval(1e-6)
THREADS = 4
TEXT = b'{"inner": {"x": 2}}'
uses = [
    lambda kind: jsontext.convert({"inner": {"x": 2}}, kind),
    lambda kind: jsontext.decode_as(TEXT, kind),
    lambda kind: jsontext.decoder(kind)(TEXT),
]
with ThreadPoolExecutor(THREADS) as threads:
    for number in range(1000):
        start = threading.Barrier(THREADS)
        inner = msgspec.defstruct("Inner", [("x", int), *((f"f{n}", int | None, None) for n in range(5))])
        fields = [("inner", inner), *((f"i{n}", dict[str, inner] | None, None) for n in range(5))]
        kind = make_dataclass("Outer", fields) if number % 2 else msgspec.defstruct("Outer", fields)

        def first(place):
            start.wait()
            return uses[(number + place) % len(uses)](kind).inner.x

        assert list(threads.map(first, range(THREADS))) == [2] * THREADS
"""


def test_threads_may_use_a_type_for_the_first_time_together() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # -11 with msgspec alone


def test_a_type_without_a_hash_can_be_used() -> None:
    kind = Annotated[int, msgspec.Meta(ge=1), {"a dictionary": "has none"}]
    for _ in range(2):
        assert jsontext.convert(1, kind) == 1
        with pytest.raises(msgspec.ValidationError):
            jsontext.convert(0, kind)
