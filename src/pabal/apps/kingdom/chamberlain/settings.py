"""`config/chamberlain.yaml`: thresholds, time limits and retention."""

from __future__ import annotations

import msgspec

from pabal.apps.kingdom.config import check_least
from pabal.errors import InvalidConfig

FILE = "config/chamberlain.yaml"


class Health(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Percent of processor or memory above which a level begins. It ends `margin` points below that."""

    yellow: float = 60.0
    orange: float = 80.0
    red: float = 90.0
    margin: float = 5.0
    readings: int = 4  # of the processor, whose average counts
    disk: float = 85.0  # above it an alert is sent

    def __post_init__(self) -> None:
        if not 0 < self.yellow < self.orange < self.red <= 100:
            raise InvalidConfig(
                f"health: 0 < yellow < orange < red <= 100; found {self.yellow}, {self.orange}, {self.red}"
            )
        check_least("health.readings", self.readings, 1)
        if not 0 <= self.margin < self.yellow:
            raise InvalidConfig(f"health.margin must be 0 or more and less than yellow; found {self.margin}")


class Roles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    patience_seconds: float = 120.0  # without a finished pass, after which a role counts as hung
    grace_seconds: float = 10.0  # from SIGTERM to SIGKILL


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Days that files are kept, and the size at which a log is rotated."""

    logs: float = 7.0
    results: float = 7.0
    completed: float = 7.0
    prompts: float = 3.0
    seen: float = 30.0
    questions: float = 30.0
    log_bytes: int = 100_000_000
    hour: int = 3  # of the day in UTC, from which old files are removed

    def __post_init__(self) -> None:
        for name in ("logs", "results", "completed", "prompts", "seen", "questions"):
            if not getattr(self, name) > 0:
                raise InvalidConfig(f"retention.{name} must be more than 0 days; found {getattr(self, name)!r:.40}")
        if not 0 <= self.hour <= 23:
            raise InvalidConfig(f"retention.hour must be 0 to 23; found {self.hour}")


class Alerts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits above which alerts are sent."""

    failures: int = 3  # of one general in a row
    timeouts: int = 5  # of soldiers in `window_seconds`
    window_seconds: float = 3600.0
    waiting_seconds: float = 1800.0  # that an event waits
    question_days: float = 7.0  # that a question is open


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    interval_seconds: float = 30.0
    health: Health = Health()
    roles: Roles = Roles()
    retention: Retention = Retention()
    alerts: Alerts = Alerts()

    def __post_init__(self) -> None:
        check_least("interval_seconds", self.interval_seconds, 0.1)
