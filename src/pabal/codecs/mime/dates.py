"""Dates as RFC 2822 writes them, to the second and in UTC; any zone is read. The day's name is not held against it."""

import re
from datetime import UTC, datetime, timedelta

from pabal.errors import InvalidDate

_DAYS = "Mon Tue Wed Thu Fri Sat Sun".split()
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_NUMBERS = {name.lower(): number for number, name in enumerate(_MONTHS, 1)}
_ZONES = {"gmt": 0, "ut": 0, "utc": 0, "z": 0}
_date = re.compile(
    r"(?:[A-Za-z]{3},\s*)?(\d{1,2})\s+([A-Za-z]{3})\s+(\d{4})\s+(\d{2}):(\d{2})(?::(\d{2}))?"
    r"\s+(?:([+-])(\d{2})(\d{2})|([A-Za-z]{1,3}))(?:\s*\([^()]*\))?",
    re.ASCII,
).fullmatch


def date_text(instant: datetime) -> str:
    """Return an instant as `Tue, 10 Feb 2026 03:00:00 +0000`."""
    day, month = _DAYS[instant.weekday()], _MONTHS[instant.month - 1]
    return f"{day}, {instant.day:02} {month} {instant.year:04} {instant:%H:%M:%S} +0000"


def read_date(text: str) -> datetime:
    """Return the instant that a date names; raise InvalidDate if it names none."""
    found = _date(text)
    try:
        if found is None:
            raise ValueError
        day, month, year, hour, minute, second, sign, hours, minutes, zone = found.groups()
        offset = _ZONES[zone.lower()] if zone else int(hours) * 60 + int(minutes)
        local = datetime(int(year), _NUMBERS[month.lower()], int(day), int(hour), int(minute), int(second or 0), 0, UTC)
        return local - timedelta(minutes=-offset if sign == "-" else offset)
    except (ValueError, KeyError, OverflowError) as exc:
        raise InvalidDate(f"Date must be like Tue, 10 Feb 2026 12:00:00 +0900; found {text!r:.60}") from exc
