"""Nothing a message holds can move the cursor, and columns line up."""

import json

import pytest

from pabal.cli.text import body_text, clean, clip, json_text, span, table, width

HOSTILE = ["\x1b[2J", "\x9b31m", "\x07", "\u202eabc", "a\r\nb", "\x7f", "\u2028", "\U000e0001", "\x00"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_message_cannot_move_the_cursor(text: str) -> None:
    assert clean(text).isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_json_is_printable_and_still_says_the_same(text: str) -> None:
    line = json_text({"text": text})
    assert line.isprintable()
    assert json.loads(line) == {"text": text}


def test_bytes_are_shown_as_python_writes_them() -> None:
    assert body_text(b"\x1b[2J\xff") == r"b'\x1b[2J\xff'"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0.0s"),
        (0.42, "0.4s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (119, "1m59s"),
        (1000, "16m"),
        (3599.9, "1h"),
        (12000, "3h20m"),
        (180000, "2d2h"),
        (864000, "10d"),
    ],
)
def test_a_span_is_said_as_people_say_it(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


@pytest.mark.parametrize("room", [1, 5, 8, 20])
@pytest.mark.parametrize("text", ["plain text", "파발 is a courier", "e\u0301" * 9])
def test_clipped_text_fits(text: str, room: int) -> None:
    assert width(clip(text, room)) <= room


def test_columns_line_up_in_any_script() -> None:
    lines = table(("NAME", "N"), [("파발", "1"), ("relay", "22")], right=" r")
    assert lines == ["NAME    N", "파발    1", "relay  22"]


def test_a_column_that_says_nothing_is_left_out() -> None:
    assert table(("A", "B", "C"), [("1", "", "2"), ("3", "", "4")], right="rrr") == ["A  C", "1  2", "3  4"]


def test_a_terminal_cuts_the_last_column_or_puts_it_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pabal.cli.text.screen_width", lambda: 40)
    assert table(("ID", "BODY"), [("a", "x" * 100)]) == ["ID  BODY", "a   " + "x" * 35 + "…"]
    assert table(("ID", "BODY"), [("a" * 30, "x" * 100)]) == ["ID", "a" * 30, "    " + "x" * 35 + "…"]
