"""Instants as text, and values that are read again after a second."""

import pytest

from pabal.clock import Refreshed, iso_stamp, time_of_day

AT = 1_769_851_800.25


def test_an_instant_is_written_in_utc_with_milliseconds_and_z() -> None:
    assert iso_stamp(AT) == "2026-01-31T09:30:00.250Z"
    assert iso_stamp(0) == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("timespec", "text"),
    [
        ("seconds", "2026-01-31T09:30:00"),
        ("milliseconds", "2026-01-31T09:30:00.250"),
        ("microseconds", "2026-01-31T09:30:00.250000"),
        ("auto", "2026-01-31T09:30:00.250000"),
    ],
)
@pytest.mark.parametrize("utc", ["Z", "+00:00"])
def test_the_caller_chooses_precision_and_the_word_for_utc(timespec: str, text: str, utc: str) -> None:
    assert iso_stamp(AT, timespec=timespec, utc=utc) == text + utc  # type: ignore[arg-type]  # all of the literals


def test_a_whole_second_has_no_fraction_where_the_precision_is_automatic() -> None:
    assert iso_stamp(1_769_851_800, timespec="auto", utc="+00:00") == "2026-01-31T09:30:00+00:00"


class Counted(Refreshed[int]):
    """Counts its readings, each of which takes some seconds."""

    def __init__(self, seconds: float = 0.0, *, from_end: bool = False) -> None:
        super().__init__(lambda: self.now, from_end=from_end)
        self.now, self.seconds, self.known = 100.0, seconds, list[int | None]()

    def _read(self, known: int | None) -> int:
        self.now += self.seconds
        self.known.append(known)
        return len(self.known)


def test_a_value_is_read_again_after_a_second_and_not_before() -> None:
    value = Counted()
    assert (value(), value()) == (1, 1)
    value.now += 0.9
    assert value() == 1
    value.now += 0.2
    assert value() == 2
    assert value.known == [None, 1]


def test_a_second_counts_from_the_start_of_a_reading_or_from_its_end() -> None:
    early, late = Counted(2.0), Counted(2.0, from_end=True)
    assert (early(), early()) == (1, 2)
    assert (late(), late()) == (1, 1)


def test_what_was_put_is_not_read_and_what_was_forgotten_is() -> None:
    value = Counted()
    value.put(7)
    assert value() == 7
    value.forget()
    assert value() == 1
    assert value.known == [7]


def test_a_failed_reading_is_tried_again_at_the_next_call() -> None:
    class Failing(Counted):
        def _read(self, known: int | None) -> int:
            if super()._read(known) == 1:
                raise ValueError
            return 2

    value = Failing()
    with pytest.raises(ValueError):
        value()
    assert value() == 2


@pytest.mark.parametrize("seconds", [1e15, 1e300, float("inf"), float("nan"), -1e15, float("-inf")])
def test_an_instant_out_of_the_calendar_is_shown_as_its_end(seconds: float) -> None:
    assert iso_stamp(seconds)[:5] == ("0001-" if seconds < 0 else "9999-")
    assert time_of_day(seconds).count(":") == 2
