"""The figures of a queue as a document: messages by state, ages, and the cumulative counts of its store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pabal.clock import in_calendar
from pabal.errors import InvalidPolicy, QueueDamaged, StoreRefused
from pabal.queues.queue import Queue
from pabal.store import DURATIONS, Counters, State, Store

log = logging.getLogger("pabal")

UNUSABLE = (QueueDamaged, StoreRefused)  # the errors of one queue; all others can be used


def queue_metrics(queue: Queue, counters: Counters, now: float) -> dict[str, Any]:
    """Return the figures of a queue. They are those of the store, whichever process publishes and consumes."""
    counts = queue.counts()
    return {
        **{str(state): counts.get(state, 0) for state in State},
        "oldestReadySeconds": age_of_oldest(queue, State.READY, now),
        "oldestInflightSeconds": age_of_oldest(queue, State.INFLIGHT, now),
        "paused": _paused(queue),
        "published": counters.published,
        "leased": counters.delivered,
        "acked": counters.acked,
        "retries": counters.retried,
        "expirations": counters.expired,
        "dropped": counters.dropped,
        "stale": counters.stale,
        "deadLetters": {code: {"total": count} for code, count in counters.dead.items()},
        "secondsInQueue": histogram_document(counters.in_queue.buckets, counters.in_queue.seconds),
        "secondsInWork": histogram_document(counters.in_work.buckets, counters.in_work.seconds),
    }


def queues_metrics(store: Store, queues: Iterable[Queue], now: float) -> dict[str, Any]:
    """Return the figures of these queues, and of all consumers of their store."""
    return {
        "consumers": consumers_metrics(store, now),
        "queues": dict(usable_queues(store, queues, now)),
    }


def usable_queues(store: Store, queues: Iterable[Queue], now: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and figures of these queues, without those that are damaged."""
    for queue in queues:
        try:
            yield queue.name, queue_metrics(queue, store.counters(queue.name), now)
        except UNUSABLE as exc:
            log.warning("no figures of %(queue)s: %(error)s", {"queue": queue.name, "error": str(exc)})


def consumers_metrics(store: Store, now: float) -> list[dict[str, Any]]:
    """Return who leases and what each one holds. Consumers of one name in one process count as one."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for each in store.consumers():
        seen = max(0.0, round(now - each.seen, 3)) if each.name else None
        about = {"consumer": each.name or None, "host": each.host or None, "pid": each.pid or None}
        own = found.setdefault((each.name, each.host, each.pid), {**about, "seenSeconds": seen, "holds": {}})
        own["seenSeconds"] = seen if seen is None else min(seen, own["seenSeconds"])
        for queue, held in each.holds.items():
            before = own["holds"].get(queue, {"messages": 0, "seconds": 0.0})
            seconds = max(before["seconds"], round(now - held.since, 3))
            own["holds"][queue] = {"messages": before["messages"] + held.messages, "seconds": seconds}
    return list(found.values())


def age_of_oldest(queue: Queue, state: State, now: float) -> float | None:
    """Return for how many seconds the oldest message of a state has been in it; None if there is none."""
    since = queue.store.oldest(queue.name, state)
    return None if since is None else max(0.0, round(now - in_calendar(since), 3))


def histogram_document(buckets: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return a histogram as a document: count, sum, quantiles, and cumulative buckets by their upper bound."""
    cumulative, seen = {}, 0
    for bound, count in zip([*(f"{bound:g}" for bound in DURATIONS), "+Inf"], buckets, strict=True):
        seen += count
        cumulative[bound] = seen
    quantiles = {f"p{part}": quantile(buckets, part / 100) for part in (50, 90, 99)}
    return {"count": seen, "sum": round(seconds, 6), **quantiles, "buckets": cumulative}


def quantile(buckets: Sequence[int], part: float) -> float | None:
    """Return the bound of the bucket that holds this quantile; None if there are no durations."""
    total, seen = sum(buckets), 0
    for bound, count in zip(DURATIONS, buckets, strict=False):
        seen += count
        if seen and seen >= part * total:
            return bound
    return DURATIONS[-1] if total else None


def _paused(queue: Queue) -> bool:
    try:
        return queue.paused
    except InvalidPolicy:
        return False  # the sweeper and `pabal status` report it; all other numbers are valid
