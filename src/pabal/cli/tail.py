"""`pabal tail`: show messages as they arrive without taking them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator

import click

from pabal.cli.exits import end_with_nothing
from pabal.cli.session import command, json_option, known, opened, queue_argument
from pabal.cli.text import clean, fitted, glance, json_text
from pabal.clock import time_of_day
from pabal.queues.documents import entry_document
from pabal.queues.queue import Queue
from pabal.store import Entry, State, Watch

# In the order in which messages pass through them: a message that moves meanwhile is seen twice rather than missed.
_ORDER = (State.DELAYED, State.READY, State.INFLIGHT, State.DEAD, State.DONE, State.CORRUPT)
_POLL = 1.0
_REMEMBERED = 60.0  # seconds that a message is remembered as shown after it was last seen
_SHARE = 4  # reading takes at most one part in so many of the time, so that it does not load a store with a long queue


@command("tail")
@queue_argument
@click.option("-f", "--follow", is_flag=True, help="Go on showing messages as they come, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(0, 10**9), default=10, show_default=True, help="Begin with the last N."
)
@json_option
def tail(queue: str, follow: bool, lines: int, as_json: bool) -> None:
    """Show messages of QUEUE as they arrive, without taking them.

    First come the newest that are there; with -f it goes on. Each message is shown once, in the state it was first
    seen in. Of one that was done at once only the id is left, unless the policy keeps done messages
    (doneRetentionSec).

    \b
    Examples:
      pabal tail jobs -n 3
      pabal tail -f jobs --json | jq .body

    --json: as `pabal peek`.
    """
    with opened() as mq:
        source = known(mq, queue)
        follower = Follower(source)
        newest = heapq.nlargest(max(1, lines), follower.fresh(), key=_created_at)[
            :lines
        ]  # nlargest(0) would read nothing
        for entry in reversed(newest):
            _show(entry, as_json=as_json)
        if follow:
            _follow(source, follower, as_json=as_json)
        elif not newest and lines:
            end_with_nothing(f"{queue} holds no messages")


class Follower:
    """Remembers which messages of a queue were seen already."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._seen: dict[str, float] = {}

    def fresh(self) -> Iterator[Entry]:
        """Go through the whole queue and yield the messages that were not seen before."""
        now = time.monotonic()
        for state in _ORDER:
            for entry in self._queue.entries(state):
                if entry.id not in self._seen:
                    yield entry
                self._seen[entry.id] = now
        # Also those not seen this time: a message that changes its state meanwhile can be missed once.
        self._seen = {id: at for id, at in self._seen.items() if at >= now - _REMEMBERED}


def _follow(queue: Queue, follower: Follower, *, as_json: bool) -> None:
    watch = queue.watch()
    try:
        while True:
            started = time.monotonic()
            counts = queue.counts()
            for entry in sorted(follower.fresh(), key=_created_at):
                _show(entry, as_json=as_json)
            time.sleep((time.monotonic() - started) * (_SHARE - 1))
            while not _woken(watch) and queue.counts() == counts:
                pass  # counting is cheap compared with reading a long queue
    finally:
        if watch is not None:
            watch.close()


def _woken(watch: Watch | None) -> bool:
    if watch is not None:
        return watch.wait(_POLL)
    time.sleep(_POLL)
    return False


def _created_at(entry: Entry) -> tuple[float, str]:
    return (entry.message.created_at if entry.message else entry.due_at, entry.id)


def _show(entry: Entry, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(entry_document(entry)))
        return
    at = time_of_day(_created_at(entry)[0])
    body = glance(entry.message.body) if entry.message else f"{len(entry.data)} bytes" if entry.data else "not kept"
    state = "" if entry.state is State.READY else str(entry.state)
    kind = clean(entry.message.type) if entry.message else ""
    click.echo(fitted("  ".join(filter(None, (at, clean(entry.id), state, kind, body)))))
