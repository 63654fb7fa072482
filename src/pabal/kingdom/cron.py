"""When schedules come: real cron lines, in the time zone of each (`pip install 'pabal[kingdom]'`)."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from pabal.errors import ExtraMissing, InvalidConfig

_LOCAL = "/etc/localtime"


def check(line: str, zone: str, name: str) -> None:
    """Raise InvalidConfig if the line is none, never comes, or its zone is unknown."""
    try:
        next(_simulator()(line, datetime(2024, 1, 1, tzinfo=_zone(zone))))
    except StopIteration:
        raise InvalidConfig(f"{name}: the cron line {line!r:.60} never comes") from None
    except (ValueError, OSError) as exc:
        raise InvalidConfig(f"{name}: no time zone {zone!r:.60}; write one like Asia/Seoul") from exc
    except Exception as exc:  # the library's own error, whose class may not be there to be named
        if type(exc).__name__ != "CronSimError":
            raise
        raise InvalidConfig(f"{name}: {exc} in the cron line {line!r:.60}") from exc


def last(line: str, zone: str, now: float) -> float | None:
    """Return the latest time at or before `now` at which the line came; None if it never did."""
    until = datetime.fromtimestamp(int(now) + 1, _zone(zone))
    found = next(_simulator()(line, until, reverse=True), None)
    return None if found is None else found.timestamp()


def following(line: str, zone: str, now: float) -> float | None:
    """Return the next time after `now` at which the line comes."""
    found = next(_simulator()(line, datetime.fromtimestamp(now, _zone(zone))), None)
    return None if found is None else found.timestamp()


def _simulator() -> Any:
    try:
        from cronsim import CronSim
    except ImportError as exc:
        raise ExtraMissing("schedules need cronsim: pip install 'pabal[kingdom]'") from exc
    return CronSim


def _zone(name: str) -> tzinfo:
    if name:
        try:
            return ZoneInfo(name)
        except Exception as exc:  # ZoneInfoNotFoundError, ValueError, IsADirectoryError: whatever the name leads to
            raise ValueError(f"no time zone {name!r:.60}") from exc
    try:
        with open(_LOCAL, "rb") as file:
            return ZoneInfo.from_file(file, key="local")
    except (OSError, ValueError):
        return UTC
