"""How durations, priorities and pairs are written."""

import click
import pytest

from pabal.cli.values import FOREVER, duration, lasting, looks_like_json, loose_json, pair, patience, priority
from pabal.errors import NotJson


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("30", 30), ("1.5", 1.5), ("30s", 30), ("5m", 300), ("2h", 7200), ("7d", 604800)]
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "5x", "nan", "inf", "1e300", "5 m", "٣", "1h30m", "36601d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="a duration is"):
        duration(text)


def test_some_durations_cannot_be_0_and_some_may_be_forever() -> None:
    with pytest.raises(click.BadParameter, match="above 0"):
        lasting("0s")
    assert patience("forever") == FOREVER
    assert patience("0") == 0


@pytest.mark.parametrize(("text", "number"), [("critical", 9), ("low", -6), ("-100", -100), ("+7", 7)])
def test_a_priority_is_a_number_or_a_name(text: str, number: int) -> None:
    assert priority(text) == number


@pytest.mark.parametrize("text", ["", "urgent", "101", "-101", "1.5", "99999999999"])
def test_what_is_no_priority_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="priority is -100 to 100"):
        priority(text)


def test_a_pair_has_a_key_and_keeps_later_equals_signs() -> None:
    assert pair("a=b=c") == ("a", "b=c")
    for text in ("a", "=b", ""):
        with pytest.raises(click.BadParameter, match="KEY=VALUE"):
            pair(text)


@pytest.mark.parametrize("text", ["{", "[1", '"a', "-", "12-3", "true", "null", "NaN", "Infinity", "-Infinity"])
def test_this_was_meant_as_json(text: str) -> None:
    assert looks_like_json(text)


@pytest.mark.parametrize("text", ["hello", "Nano", "truely", "<a>", "'x'", "é", "/path", ""])
def test_this_was_meant_as_text(text: str) -> None:
    assert not looks_like_json(text)
    assert loose_json(text) == text


def test_loose_json_reads_json_and_refuses_broken_json() -> None:
    assert loose_json("3") == 3
    assert loose_json('{"a": [1]}') == {"a": [1]}
    with pytest.raises(NotJson):
        loose_json("{a")
