"""Alerts to people: sent once, and again only when they change. The end of an alert is a change too.

The alerts that were sent are remembered with a number that grows. The number is part of the dedup key of the next
notices, so a chamberlain that dies between sending and remembering does not send twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pabal.apps.kingdom.documents import Urgency
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import MESSAGES
from pabal.runtime.state_file import StateFile

FILE = "state/chamberlain/alerts.json"


class Alert(msgspec.Struct, frozen=True):
    """Something that people should know: `state` is compared, `text` is sent."""

    key: str
    state: str
    text: str
    urgency: Urgency = "high"


class SentAlerts(msgspec.Struct, frozen=True):
    """The current alerts, by key."""

    number: int = 0
    standing: dict[str, Alert] = {}


class Alerts:
    """Sends alerts that are new, changed or over."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._sent = StateFile(home.root / FILE, SentAlerts)

    @property
    def standing(self) -> list[Alert]:
        return list(self._sent.value.standing.values())

    def send(self, current: Sequence[Alert]) -> int:
        """Send the difference to the alerts before; return how many notices were made."""
        before = self._sent.value
        now = {alert.key: alert for alert in current}
        changed = [
            each for key, each in now.items() if key not in before.standing or before.standing[key].state != each.state
        ]
        over = [
            Alert(each.key, "over", f"over: {each.text}", "normal")
            for key, each in before.standing.items()
            if key not in now
        ]
        if not changed and not over:
            return 0
        drafts = [
            self._home.draft(
                self._home.notice(
                    "notification", f"[alert] {alert.text}", task_id=f"alert-{alert.key}", urgency=alert.urgency
                ),
                key=f"alert-{before.number}-{alert.key}",
            )
            for alert in (*changed, *over)
        ]
        self._home.queue(MESSAGES).publish_many(drafts)
        for alert in changed:
            self._home.journal.note("system.resource_warning", "chamberlain", alert=alert.key, reason=alert.text)
        kept = {key: before.standing.get(key, alert) for key, alert in now.items()}
        self._sent.save(SentAlerts(before.number + 1, {**kept, **{alert.key: alert for alert in changed}}))
        return len(drafts)
