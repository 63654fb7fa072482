"""Order within a queue: what each message says of it, and which member of a group may be next.

Of a group only the earliest waiting member leads, and only while none that came before it is held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

from pabal.stores.files.names import Slot


class DocumentOrder(NamedTuple):
    """What the document of a plain name says of when it comes, and to whom."""

    id: str
    priority: int = 0
    due: int = 0
    group: str = ""
    stamp: int = 0
    target: str = ""
    expires: int = 0

    def at(self, slot: Slot) -> DocumentOrder:
        """Return the order under the name that the document has now."""
        order = self._replace(due=slot.due) if slot.due else self
        return order._replace(expires=0) if slot.revived else order


Order: TypeAlias = Slot | DocumentOrder  # a native name says it all by itself
# Reads the document of a plain name (directory, name, slot) and remembers its order.
Learn: TypeAlias = Callable[[str, str, Slot], DocumentOrder | None]


class Member(NamedTuple):
    """One that waits, and whether it lies with the delayed ones."""

    stamp: int
    entry: str
    delayed: bool


@dataclass(slots=True)
class _Group:
    waiting: list[Member] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)  # name in flight -> stamp
    offered: str = ""

    def head(self) -> Member | None:
        if not self.waiting or any(stamp < self.waiting[0].stamp for stamp in self.held.values()):
            return None
        return self.waiting[0]


class Groups:
    """The groups of one queue."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._holders: dict[str, tuple[str, str]] = {}  # name in flight -> group, id

    def clear(self) -> None:
        self._groups.clear()
        self._holders.clear()

    def join(self, order: Order, entry: str, *, delayed: bool) -> None:
        """Let a message wait in its group."""
        heappush(self._groups.setdefault(order.group, _Group()).waiting, Member(order.stamp, entry, delayed))

    def leave(self, key: str, entry: str) -> None:
        """Take a message that waits no longer out of its group."""
        group = self._groups.get(key)
        if group is None:
            return
        if group.waiting and group.waiting[0].entry == entry:
            heappop(group.waiting)
        else:
            group.waiting = [member for member in group.waiting if member.entry != entry]
            heapify(group.waiting)

    def hold(self, order: Order, name: str) -> None:
        """Note that a member is in flight under this name."""
        self._groups.setdefault(order.group, _Group()).held[name] = order.stamp
        self._holders[name] = order.group, order.id

    def holder(self, name: str) -> tuple[str, str] | None:
        """Return group and id of what is in flight under this name."""
        return self._holders.get(name)

    def release(self, name: str) -> str:
        """Note that nothing is in flight under this name any more; return the group that goes on."""
        key, _ = self._holders.pop(name, ("", ""))
        if key in self._groups:
            self._groups[key].held.pop(name, None)
        return key

    def to_offer(self, key: str) -> Member | None:
        """Return the member that leads and was not offered yet."""
        group = self._groups.get(key)
        if group is None:
            return None
        if not group.waiting and not group.held:
            del self._groups[key]
            return None
        head = group.head()
        return None if head is None or head.entry == group.offered else head

    def offered(self, key: str, entry: str) -> None:
        self._groups[key].offered = entry

    def leads(self, key: str, entry: str) -> bool:
        """Say whether this one may be leased; it is no longer on offer then."""
        group = self._groups.get(key)
        if group is None:
            return False
        if group.offered == entry:
            group.offered = ""
        head = group.head()
        return head is not None and head.entry == entry
