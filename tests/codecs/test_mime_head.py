"""Headers: changed one at a time with every other byte as it was, encoded where ASCII is not enough, dates."""

import email.header
import email.utils
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal.codecs.mime.fields import date_text, decoded, edited, encoded, header_line, read_date, read_head
from pabal.errors import InvalidHeader, InvalidInput

HEAD = b"From: a\nX-A: 1\nX-Folded: one\n two\nContent-Type: text/x-yaml\nContent-Transfer-Encoding: 8bit\n"
_LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=300)
_BODIES = [b"", b"a: 1", b"a: 1\n\n\nb: 2\n", b"\n\n\n", b"a: \xff\xfe broken \x00\r\n\r\nFrom: x\n", b"a: [\n"]

LONGEST_LINE = 998  # as RFC 5322 allows


@pytest.mark.parametrize("body", _BODIES)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_change_leaves_the_body_and_all_other_headers_byte_for_byte(body: bytes, newline: bytes) -> None:
    head = HEAD.replace(b"\n", newline)
    data = head + newline + body
    assert edited(data, {}) == data
    set_one = edited(data, {"x-a": "2"})
    assert set_one == data.replace(b"X-A: 1", b"x-a: 2", 1)
    added = edited(data, {"X-IGNITE-Status": "delivered"})
    assert added == data.replace(b"Content-Type", b"X-IGNITE-Status: delivered" + newline + b"Content-Type", 1)
    assert edited(added, {"X-IGNITE-Status": None}) == data
    assert edited(data, {"X-Missing": None}) == data
    assert edited(data, {"X-Folded": None}) == data.replace(b"X-Folded: one" + newline + b" two" + newline, b"", 1)


@given(st.binary(max_size=200), _LINE)
def test_any_body_survives_any_change(body: bytes, value: str) -> None:
    changed = edited(HEAD + b"\n" + body, {"X-New": value, "X-A": None})
    head = read_head(changed)
    assert changed[head.size :] == body
    assert decoded("X-New", head.get("x-new") or "") == value


def test_a_header_goes_last_where_no_content_type_is() -> None:
    assert edited(b"From: a\n\nbody", {"To": "b", "Cc": "c"}) == b"From: a\nTo: b\nCc: c\n\nbody"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "b\nFrom: c"),
        ("X-A", "b\r"),
        ("X-A", "\0"),
        ("X A", "b"),
        ("X-A: b\nX-B", "c"),
        ("", "b"),
        ("X\u00e9", "b"),
    ],
)
def test_a_change_that_would_inject_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidHeader):
        edited(HEAD + b"\nbody", {name: value})


@given(_LINE)
def test_any_line_of_text_comes_back_from_ascii_lines_that_fit(value: str) -> None:
    lines = header_line("X-Header", value)
    assert lines.isascii() and all(len(line) <= LONGEST_LINE for line in lines.splitlines())
    data = lines.encode() + b"\n"
    assert decoded("X-Header", read_head(data).fields[0].raw) == value


@given(_LINE)
def test_pythons_own_reader_of_encoded_words_agrees(value: str) -> None:
    raw = encoded(value).replace("\n ", " ")
    if "=?" in raw:
        assert str(email.header.make_header(email.header.decode_header(raw))) == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("=?UTF-8?Q?caf=C3=A9_noir?=", "café noir"),
        ("=?utf-8?b?44GC?= =?utf-8?B?44GE?=", "あい"),
        ("a =?utf-8?q?b?= c", "a b c"),
        ("=?utf-8*ja?q?x?=", "x"),
        ("a =? b", "a =? b"),
        ("青い", "青い"),
    ],
)
def test_words_that_others_encoded_are_read(raw: str, value: str) -> None:
    assert decoded("X", raw) == value


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))
def test_a_date_comes_back_to_the_second(instant: datetime) -> None:
    whole = instant.replace(microsecond=0, tzinfo=UTC)
    assert read_date(date_text(whole)) == whole
    assert email.utils.parsedate_to_datetime(date_text(whole)) == whole


@pytest.mark.parametrize(
    "text",
    [
        "Tue, 10 Feb 2026 12:00:00 +0900",
        "Fri, 10 Feb 2026 03:00:00 +0000",
        "10 Feb 2026 03:00 GMT",
        "Tue, 10 FEB 2026 03:00:00 -0000 (UTC)",
        "Mon, 9 Feb 2026 22:00:00 -0500",
        "Tue,10 Feb 2026 08:30:00 +0530",
    ],
)
def test_a_date_is_read_in_any_zone_whatever_day_it_calls_itself(text: str) -> None:
    assert read_date(text) == datetime(2026, 2, 10, 3, tzinfo=UTC)


@given(st.binary(max_size=300))
def test_any_bytes_have_headers_or_a_named_error(data: bytes) -> None:
    try:
        head = read_head(data)
    except InvalidInput as exc:
        assert exc.code
    else:
        assert (
            "".join(field.lines for field in head.fields).encode() + head.newline.encode() + data[head.size :] == data
        )
