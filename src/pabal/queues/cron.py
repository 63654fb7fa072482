"""Times of schedules: cron lines with a time zone (extra `schedule`)."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from importlib.util import find_spec
from typing import Any
from zoneinfo import ZoneInfo

from pabal.errors import ExtraMissing, InvalidConfig

_LOCAL = "/etc/localtime"
_ZONES = "/zoneinfo/"  # in the path of a zone's file, before its name


def available() -> bool:
    """Return whether the library for cron lines is installed."""
    return find_spec("cronsim") is not None


def check(line: str, zone: str, name: str) -> None:
    """Raise InvalidConfig if the cron line is invalid or never comes, or the time zone is unknown."""
    if (count := len(line.split())) != 5:
        fields = "five fields, minute hour day month weekday"
        raise InvalidConfig(f"{name}: a cron line has {fields}; found {count} in {line!r:.60}")
    try:
        next(_simulator()(line, datetime(2024, 1, 1, tzinfo=_zone(zone))))
    except StopIteration:
        raise InvalidConfig(f"{name}: the cron line {line!r:.60} never comes") from None
    except (ValueError, OSError) as exc:
        raise InvalidConfig(f"{name}: no time zone {zone!r:.60}; write one like Asia/Seoul") from exc
    except Exception as exc:  # the library's own error, whose class cannot be named without the library
        if type(exc).__name__ != "CronSimError":
            raise
        raise InvalidConfig(f"{name}: {exc} in the cron line {line!r:.60}") from exc


def local_zone() -> str:
    """Return the name of the time zone of this machine, so that others can use it; empty if it has none."""
    name = os.path.realpath(_LOCAL).rpartition(_ZONES)[2]
    try:
        _zone(name)
    except ValueError:
        return ""
    return name


def last(line: str, zone: str, now: float) -> float | None:
    """Return the latest time at or before `now` that the line matches; None if there is none."""
    until = datetime.fromtimestamp(int(now) + 1, _zone(zone))
    found = next(_simulator()(line, until, reverse=True), None)
    return None if found is None else found.timestamp()


def following(line: str, zone: str, now: float) -> float | None:
    """Return the next time after `now` that the line matches."""
    found = next(_simulator()(line, datetime.fromtimestamp(now, _zone(zone))), None)
    return None if found is None else found.timestamp()


def _simulator() -> Any:
    try:
        from cronsim import CronSim
    except ImportError as exc:
        raise ExtraMissing("cron lines need cronsim: install Pabal with its extra 'schedule' (README, Extras)") from exc
    return CronSim


def _zone(name: str) -> tzinfo:
    if name:
        try:
            return ZoneInfo(name)
        except Exception as exc:  # ZoneInfoNotFoundError, ValueError, IsADirectoryError: a name may lead to many errors
            raise ValueError(f"no time zone {name!r:.60}") from exc
    try:
        with open(_LOCAL, "rb") as file:
            return ZoneInfo.from_file(file, key="local")
    except (OSError, ValueError):
        return UTC
