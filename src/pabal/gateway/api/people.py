"""What waits for a person, teams and kingdoms: the calls for the applications that the gateway was handed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from pabal.apps.needs import Need, Place, in_order
from pabal.clock import iso_stamp
from pabal.errors import MessageUnknown, PabalError
from pabal.gateway.api import types

log = logging.getLogger("pabal.gateway")

FindPlaces = Callable[[], Sequence[Place]]
T = TypeVar("T")

_FIRST = 3  # needs that the overview shows
_FRESH = 0.9  # seconds for which all who ask get the same look
_SHARE = 50  # a look is followed by a rest of at least so many times its length
_LONGEST_REST = 10.0  # seconds


class _Look(Generic[T]):
    """Reads something in a thread, once for all who ask, and not again for some time that grows with its cost."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._looking: asyncio.Task[T] | None = None
        self._due = float("-inf")

    def begin(self) -> asyncio.Task[T]:
        """Return the look of now, which may be under way; a new one if it is due."""
        if self._looking is None or (self._looking.done() and time.monotonic() >= self._due):
            begun = time.monotonic()
            self._looking = asyncio.create_task(asyncio.to_thread(self._read))
            self._looking.add_done_callback(lambda done: self._done(done, time.monotonic() - begun))
        return self._looking

    async def result(self) -> T:
        looking = self.begin()
        await asyncio.wait([looking])  # and not for the task itself, which others may wait for
        return looking.result()

    def expire(self) -> None:
        """Let the next one who asks get a new look."""
        self._looking = None

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def _done(self, done: asyncio.Task[T], cost: float) -> None:
        if not done.cancelled() and done.exception() is not None:
            log.error("an application beside the store cannot be read", exc_info=done.exception())
        self._due = time.monotonic() + max(_FRESH, min(cost * _SHARE, _LONGEST_REST))


class People:
    """The applications beside the store. They are found again for each look."""

    def __init__(self, find: FindPlaces, person: str) -> None:
        self._find = find
        self._person = person  # the name of who answers, if keys do not say
        self._needs = _Look(self._read_needs)
        self._reports = {source: _Look(partial(self._read_reports, source)) for source in ("ignite", "kingdom")}
        self._latest: types.People | None = None

    def glance(self) -> types.People | None:
        """Return what the navigation and the overview show, as it was at the last look; None before the first.

        A slow application must not hold up the figures of queues, so it does not wait.
        """
        looking = self._needs.begin()
        if looking.done() and not looking.cancelled() and looking.exception() is None:
            found = looking.result()
            first = found["needs"][:_FIRST]
            self._latest = {"places": found["places"], "waiting": found["waiting"], "first": first}
        return self._latest

    def close(self) -> None:
        self._needs.close()
        for look in self._reports.values():
            look.close()

    async def needs(self) -> types.Needs:
        return await self._needs.result()

    async def answer(self, given: types.NeedAnswer) -> types.NeedAnswered:
        person = given.responder or self._person

        def answered() -> str:
            for place in self._find():
                if _name(place) == given.place:
                    return place.answer(given.id, given.text, person=person, via="dashboard")
            raise MessageUnknown(f"no team or kingdom {given.place!r:.140}; GET /needs lists them")

        try:
            return {"answer": await asyncio.to_thread(answered), "responder": person}
        finally:
            self._needs.expire()  # also if it was answered by another person

    async def reports(self, source: str) -> list[types.Reported]:
        return await self._reports[source].result()

    def _read_needs(self) -> types.Needs:
        every: list[tuple[str, Need]] = []
        places: list[types.PlaceOut] = []
        for place in self._find():
            found, fault = _tried(place.needs)
            needs, more = found or ([], 0)
            every += [(_name(place), need) for need in needs]
            waiting = len(needs) + more
            places.append({"place": _name(place), "source": place.source, "waiting": waiting, "fault": fault})
        order = {id(need): at for at, need in enumerate(in_order(need for _, need in every))}
        every.sort(key=lambda each: order[id(each[1])])
        waiting = sum(each["waiting"] for each in places)
        return {"places": places, "waiting": waiting, "needs": [_document(*each) for each in every]}

    def _read_reports(self, source: str) -> list[types.Reported]:
        found: list[types.Reported] = []
        for place in self._find():
            if place.source == source:
                report, fault = _tried(place.report)
                found.append({"place": _name(place), "fault": fault, "report": report})
        return found


def _name(place: Place) -> str:
    return str(Path(place.path).absolute())


def _tried(act: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return act(), None
    except PabalError as exc:
        return None, f"{exc.code}: {exc}"


def _document(place: str, need: Need) -> types.NeedOut:
    return {
        "place": place,
        "source": need.source,
        "kind": need.kind,
        "id": need.id,
        "sender": need.sender,
        "text": need.text,
        "since": iso_stamp(need.at),
        "expires_at": iso_stamp(need.expires_at) if need.expires_at is not None else None,
        "urgent": need.urgent,
        "options": list(need.options),
        "body": need.body,
        "command": need.answer,
    }
