"""Which class of events comes next: high, normal, low, with a place in ten for what has waited long in a lower one."""

from __future__ import annotations

from collections.abc import Sequence

from pabal.delivery import Delivery
from pabal.kingdom.documents import PRIORITIES
from pabal.kingdom.home import Home
from pabal.kingdom.layout import EVENTS

_LOOK = 60.0  # seconds after which a class that had nothing old is looked at again


class Classes:
    """Leases events of the classes that are let in, in the order in which they are to be dispatched."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._ageing = home.king.ageing
        self._since = 0  # dispatches since one went to an aged event
        self._young_until: dict[str, float] = dict.fromkeys(PRIORITIES, 0.0)

    def lease(self, admitted: Sequence[str], limit: int) -> list[Delivery]:
        """Take up to `limit` events."""
        self._ageing = self._home.king.ageing
        taken: list[Delivery] = []
        while len(taken) < limit:
            some = self._some(admitted, limit - len(taken))
            if not some:
                break
            taken += some
        return taken

    def _some(self, admitted: Sequence[str], limit: int) -> list[Delivery]:
        for place, name in enumerate(admitted):
            lower = admitted[place + 1 :]
            if self._since >= self._ageing.every - 1 and (aged := self._aged(lower)):
                self._since = 0
                return aged
            # Only so many in a row as leave a place for an aged one, if there may be any.
            most = limit if not self._may_be_aged(lower) else max(1, self._ageing.every - 1 - self._since)
            if found := self._home.queue(EVENTS, name).lease(min(limit, most), self._home.config.lease_seconds):
                self._since += len(found)
                return found
        return []

    def _may_be_aged(self, lower: Sequence[str]) -> bool:
        now = self._home.clock.now()
        return any(self._young_until[name] <= now for name in lower)

    def _aged(self, lower: Sequence[str]) -> list[Delivery]:
        """Take the oldest event of the lower classes, if it has waited long enough."""
        now = self._home.clock.now()
        oldest: Delivery | None = None
        for name in lower:
            if self._young_until[name] > now:
                continue
            found = self._home.queue(EVENTS, name).lease(1, self._home.config.lease_seconds)
            if not found:
                self._young_until[name] = now + min(_LOOK, self._ageing.after_seconds)
            elif now - found[0].due_at < self._ageing.after_seconds:
                self._young_until[name] = min(found[0].due_at + self._ageing.after_seconds, now + _LOOK)
                found[0].release()
            elif oldest is None or found[0].due_at < oldest.due_at:
                if oldest is not None:
                    oldest.release()
                oldest = found[0]
            else:
                found[0].release()
        return [oldest] if oldest is not None else []
