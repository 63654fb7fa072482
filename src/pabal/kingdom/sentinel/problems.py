"""What is wrong with the watchers at this time, for who asks how the kingdom stands."""

from __future__ import annotations

import msgspec

FILE = "state/sentinel/problems.json"


class Problems(msgspec.Struct, frozen=True):
    """What cannot be looked at and why, by watcher."""

    watchers: dict[str, str] = {}
