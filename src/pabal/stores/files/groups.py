"""Groups: which member of each group may be leased next.

Only the earliest waiting member of a group leads, and only while no member is in flight.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from pabal.stores.files.names import Slot
from pabal.stores.files.order import Order
from pabal.stores.files.settlement_folder import is_committed, read_plan

if TYPE_CHECKING:
    from pabal.stores.files.root import Root


class Member(NamedTuple):
    """A waiting message of a group, and whether its name has a due time that counts."""

    stamp: int
    id: str  # decides between plain names of one instant: the entry has the due time, which a retry changes
    entry: str
    delayed: bool


@dataclass(slots=True)
class _Group:
    waiting: dict[str, Member] = field(default_factory=dict)  # by entry
    order: list[Member] = field(default_factory=list)  # a heap; some of it may wait no longer
    held: set[str] = field(default_factory=set)  # names in flight
    offered: str = ""

    def first(self) -> Member | None:
        order = self.order
        while order and self.waiting.get(order[0].entry) is not order[0]:
            heappop(order)
        return order[0] if order else None

    def head(self) -> Member | None:
        return None if self.held else self.first()


class Groups:
    """The groups of one queue."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._holders: dict[str, tuple[str, str]] = {}  # name in flight -> group, id

    def clear(self) -> None:
        self._groups.clear()
        self._holders.clear()

    def join(self, order: Order, entry: str, *, delayed: bool) -> None:
        """Add a waiting message to its group."""
        group, member = self._groups.setdefault(order.group, _Group()), Member(order.stamp, order.id, entry, delayed)
        group.waiting[entry] = member
        heappush(group.order, member)

    def leave(self, key: str, entry: str) -> None:
        """Remove a message that no longer waits from its group."""
        group = self._groups.get(key)
        if group is not None:
            group.waiting.pop(entry, None)

    def hold(self, order: Order, name: str) -> None:
        """Note that a member is in flight under this name."""
        self._groups.setdefault(order.group, _Group()).held.add(name)
        self._holders[name] = order.group, order.id

    def holder(self, name: str) -> tuple[str, str] | None:
        """Return group and id of the message in flight under this name."""
        return self._holders.get(name)

    def release(self, name: str) -> str:
        """Note that no message is in flight under this name any more; return its group."""
        key, _ = self._holders.pop(name, ("", ""))
        if key in self._groups:
            self._groups[key].held.discard(name)
        return key

    def successor(self, key: str) -> Member | None:
        """Return the first waiting member, whichever others are in flight."""
        group = self._groups.get(key)
        return None if group is None else group.first()

    def to_offer(self, key: str) -> Member | None:
        """Return the member that leads, if it was not offered yet."""
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
        """Say whether this member may be leased; it is no longer offered then."""
        group = self._groups.get(key)
        if group is None:
            return False
        if group.offered == entry:
            group.offered = ""
        head = group.head()
        return head is not None and head.entry == entry


class UnfinishedSettlements:
    """Members that were settled with follow-ups but whose folder is not finished: each counts as in flight until then.

    The verdict may be a retry, and then the message comes back to the head of its group.
    """

    def __init__(self, root: Root, queue: str) -> None:
        self._root = root
        self._queue = queue
        self.names: dict[str, str] = {}  # by folder: the name under which its message was in flight
        self._others: set[str] = set()  # folders whose message is of no group

    def add(self, id: str, token: str, name: str) -> bool:
        """Say whether the message lies in such a folder and is held under this name until that is finished.

        If it is held under another name by now, this one is free.
        """
        prefix = f"{id}~{token}~"
        for each in os.listdir(self._root.settling):
            folder = f"{self._root.settling}/{each}"
            if each.startswith(prefix) and is_committed(folder):
                return self.names.setdefault(folder, name) == name
        return False

    def finished(self) -> Iterator[str]:
        """Yield the names of the messages whose folders are finished by now, and forget them."""
        for folder, name in list(self.names.items()):
            if not is_committed(folder):
                del self.names[folder]
                yield name

    def clear(self) -> None:
        self.names.clear()
        self._others.clear()

    def pass_over(self, folder: str) -> None:
        """Note that the message in a folder is of no group."""
        self._others.add(folder)

    def lying(self, token: str = "") -> Iterator[tuple[str, str, Slot]]:
        """Yield folder, name and slot of each message of this queue that lies in a folder, of all leases or of one
        token, unless it is known already.
        """
        for each in os.listdir(self._root.settling):
            folder = f"{self._root.settling}/{each}"
            if token and f"~{token}~" not in each or folder in self._others or folder in self.names:
                continue
            plan = read_plan(folder)
            slot = None if plan is None else self._root.names.parse(plan["name"])
            if plan is not None and plan["queue"] == self._queue and slot is not None and is_committed(folder):
                yield folder, plan["name"], slot
