"""Alerts, told once and again only when they change; the end of one is a change too.

What was told is remembered with a number that grows. It is part of the dedup key of the next notice, so that a
chamberlain who dies between telling and remembering does not tell twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pabal.kingdom.documents import Urgency
from pabal.kingdom.home import Home
from pabal.kingdom.layout import MESSAGES
from pabal.kingdom.records import Record

FILE = "state/chamberlain/alerts.json"


class Alert(msgspec.Struct, frozen=True):
    """Something that people should know: `state` is what is compared, `text` what is told."""

    key: str
    state: str
    text: str
    urgency: Urgency = "high"


class Told(msgspec.Struct, frozen=True):
    """What stands at this time, by key."""

    number: int = 0
    standing: dict[str, Alert] = {}


class Alerts:
    """Tells what is new, what changed and what is over."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._told = Record(home.root / FILE, Told)

    @property
    def standing(self) -> list[Alert]:
        return list(self._told.value.standing.values())

    def tell(self, current: Sequence[Alert]) -> int:
        """Tell of the difference to what was told before; return how many notices were made."""
        told = self._told.value
        now = {alert.key: alert for alert in current}
        changed = [
            each for key, each in now.items() if key not in told.standing or told.standing[key].state != each.state
        ]
        over = [
            Alert(each.key, "over", f"over: {each.text}", "normal")
            for key, each in told.standing.items()
            if key not in now
        ]
        if not changed and not over:
            return 0
        drafts = [
            self._home.draft(
                self._home.notice(
                    "notification", f"[alert] {alert.text}", task_id=f"alert-{alert.key}", urgency=alert.urgency
                ),
                key=f"alert-{told.number}-{alert.key}",
            )
            for alert in (*changed, *over)
        ]
        self._home.queue(MESSAGES).publish_many(drafts)
        for alert in changed:
            self._home.journal.note("system.resource_warning", "chamberlain", alert=alert.key, reason=alert.text)
        kept = {key: told.standing.get(key, alert) for key, alert in now.items()}
        self._told.save(Told(told.number + 1, {**kept, **{alert.key: alert for alert in changed}}))
        return len(drafts)
