"""How durations, priorities and pairs are written."""

import click
import pytest

from pabal.cli.values import (
    FOREVER,
    answer_timeout,
    duration,
    lasting,
    looks_like_json,
    loose_json,
    milliseconds,
    pair,
    patience,
    priority,
    run_timeout,
)
from pabal.errors import NotJson


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("30", 30), ("1.5", 1.5), ("500ms", 0.5), ("30s", 30), ("5m", 300), ("2h", 7200), ("7d", 604800)],
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


@pytest.mark.parametrize(("text", "found"), [("0", 0), ("250", 250), ("1.5s", 1500), ("2m", 120_000), ("7ms", 7)])
def test_milliseconds_may_have_a_unit(text: str, found: int) -> None:
    assert milliseconds(text) == found


@pytest.mark.parametrize("text", ["", "1.5", "-1", "5x", "s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected milliseconds, or a time like 500ms, 30s, 5m"):
        milliseconds(text)


def test_a_timeout_in_the_wrong_unit_is_refused() -> None:
    with pytest.raises(
        click.BadParameter, match="30 is 30 milliseconds: write 30s for seconds, or 30ms if it is meant"
    ):
        answer_timeout("30")
    assert (answer_timeout("30s"), answer_timeout("30ms"), answer_timeout("30000")) == (30_000, 30, 30_000)
    with pytest.raises(click.BadParameter, match="30000 is 30000 seconds: write 30000ms for milliseconds"):
        run_timeout("30000")
    assert (run_timeout("30000s"), run_timeout("30000ms"), run_timeout("30")) == (30_000, 30, 30)
    for none in (answer_timeout, run_timeout):
        with pytest.raises(click.BadParameter):
            none("0s")


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
