"""The ledger from the event loop: calls in threads, and a memory of memberships and sessions.

- A database that hangs holds its callers for seconds. When a call has waited that long and all threads are busy,
  further calls fail at once instead of waiting behind it.
- A known membership or session is answered from memory, however old it is; the ledger is asked in the background. So
  the database never delays a message of a member, whether it is slow, hung or down.
- What other gateways changed usually comes as an event. `recheck` finds what did not, for all sockets at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, ParamSpec, TypeVar

from pabal.aio.calls import THREADS, Threads
from pabal.apps.chat.ledger import Ledger
from pabal.clock import Clock
from pabal.errors import Outage

log = logging.getLogger("pabal.chat")

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")

_MOMENT = 1.0  # seconds that an outage is remembered
_SLOW = 3.0  # seconds after which a call that has not returned means that the database hangs
LASTS = 30.0  # seconds after which the ledger is asked again
_FIRST_ANSWER = 1.0  # seconds that the first question about something may take
_MANY = 200_000  # answers above which the older half is forgotten
_TOGETHER = 500  # questions in one statement


class LedgerCalls:
    """Runs methods of a ledger: `await calls(calls.ledger.room, room_id)`."""

    def __init__(self, ledger: Ledger, clock: Clock, *, threads: int = THREADS) -> None:
        self.ledger = ledger
        self._clock = clock
        self._most = threads
        self._threads = Threads("pabal-chat-ledger", threads)
        self._down_until = 0.0
        self._down_since: float | None = None
        self._began: dict[object, float] = {}  # calls that have not returned, the oldest first

    @property
    def down(self) -> bool:
        """Whether the database was down a moment ago, or does not return."""
        return self._clock.boot() < self._down_until or self._stuck

    @property
    def _stuck(self) -> bool:
        oldest = next(iter(self._began.values()), None)
        return oldest is not None and self._clock.boot() - oldest > _SLOW

    async def __call__(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._stuck and len(self._began) >= self._most:
            raise Outage("the chat's database does not return")
        call = object()
        self._began[call] = self._clock.boot()
        try:
            found = await self._threads(method, *args, **kwargs)
        except Outage as exc:
            self._down_until = self._clock.boot() + _MOMENT
            if self._down_since is None:
                self._down_since = self._began[call]
                log.warning("the database does not answer: %(error)s", {"error": str(exc)})
            raise
        finally:
            began = self._began.pop(call)
        if self._down_since is not None and began > self._down_since:
            log.info("the database answers again after %(seconds).1f seconds", {"seconds": began - self._down_since})
            self._down_since = None
        return found

    def close(self) -> None:
        """Take no more calls; those under way end by themselves, after the limits of the ledger."""
        self._threads.abandon()


class _Known(NamedTuple):
    value: bool
    until: float


class Remembered(Generic[K]):
    """Questions to the ledger with yes or no, answered from memory where possible. For one event loop."""

    def __init__(self, calls: LedgerCalls, clock: Clock, true_of: Callable[[Sequence[K]], Collection[K]]) -> None:
        """`true_of` asks the ledger. `calls` are for such questions alone: users must not wait behind them."""
        self._calls, self._clock, self._true_of = calls, clock, true_of
        self._known: dict[K, _Known] = {}
        self._asking: dict[K, asyncio.Task[bool]] = {}

    def known(self, key: K) -> bool | None:
        """Return what is known, however old it is, and ask again in the background if it is old; None if nothing is."""
        known = self._known.get(key)
        if known is None:
            return None
        if known.until <= self._clock.boot() and not self._calls.down:
            self._ask(key)
        return known.value

    async def answer(self, key: K) -> bool:
        """Return the answer; Outage if it is not known and the ledger does not answer."""
        known = self.known(key)
        if known is not None:
            return known
        if self._calls.down:
            raise Outage("this is not known, and the chat's database does not answer")
        try:
            asked = await asyncio.wait_for(asyncio.shield(self._ask(key)), _FIRST_ANSWER)
        except TimeoutError as exc:
            raise Outage("this is not known, and the chat's database does not answer") from exc
        learned = self._known.get(key)  # what was learned meanwhile is newer
        return asked if learned is None else learned.value

    async def recheck(self, keys: Sequence[K]) -> list[K]:
        """Ask the ledger about many things together; return those whose answer is no. Outage: it does not answer."""
        if self._calls.down:
            raise Outage("the chat's database does not answer")
        for start in range(0, len(keys), _TOGETHER):
            page = keys[start : start + _TOGETHER]
            before = {key: self._known.get(key) for key in page}
            found = await self._calls(self._true_of, page)
            for key, known in before.items():
                if self._known.get(key) is known:  # else what was learned meanwhile is newer
                    self._remember(key, key in found)
        return [key for key in keys if (known := self._known.get(key)) is not None and not known.value]

    def learn(self, key: K, value: bool) -> None:
        """Note an answer that is newer than what the ledger may be answering at the moment."""
        self._asking.pop(key, None)
        self._remember(key, value)

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()

    def _ask(self, key: K) -> asyncio.Task[bool]:
        """Ask the ledger, unless this is under way."""
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._answer(key))
            asking.add_done_callback(_seen)
        return asking

    async def _answer(self, key: K) -> bool:
        this = asyncio.current_task()
        try:
            value = key in await self._calls(self._true_of, [key])
            if self._asking.get(key) is this:
                self._remember(key, value)
            return value
        finally:
            if self._asking.get(key) is this:
                del self._asking[key]

    def _remember(self, key: K, value: bool) -> None:
        if len(self._known) > _MANY:
            for old in list(self._known)[: _MANY // 2]:
                del self._known[old]
        self._known.pop(key, None)
        self._known[key] = _Known(value, self._clock.boot() + LASTS)


class Memberships:
    """Whether users are members of rooms."""

    def __init__(self, calls: LedgerCalls, clock: Clock) -> None:
        self._asked = Remembered[tuple[str, str]](calls, clock, lambda pairs: calls.ledger.memberships(pairs))
        self.close, self.recheck = self._asked.close, self._asked.recheck

    async def has(self, room_id: str, user_id: str) -> bool:
        """Return whether a user is a member; Outage if it is not known and the ledger does not answer."""
        return await self._asked.answer((room_id, user_id))

    def learn(self, room_id: str, user_id: str, member: bool) -> None:
        """Note that a user joined or left."""
        self._asked.learn((room_id, user_id), member)


class LiveSessions:
    """Whether the sessions of tokens were ended. While the ledger does not answer, an unknown one counts as live."""

    def __init__(self, calls: LedgerCalls, clock: Clock) -> None:
        self._asked = Remembered[str](calls, clock, lambda sessions: calls.ledger.live_sessions(sessions))
        self.close, self.recheck = self._asked.close, self._asked.recheck

    async def live(self, session: str) -> bool:
        try:
            return await self._asked.answer(session)
        except Outage:
            return True

    def ended(self, session: str) -> bool:
        """Return whether a session is known to be ended, without waiting."""
        return self._asked.known(session) is False

    def learn(self, session: str, live: bool) -> None:
        self._asked.learn(session, live)


def _seen(task: asyncio.Task[bool]) -> None:
    """Take the error of a question that nobody waits for any more: the answer from the cache stands."""
    if not task.cancelled():
        task.exception()
