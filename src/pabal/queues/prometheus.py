"""The metrics document in the text format of Prometheus, one line per value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]

_STATES = ("ready", "delayed", "inflight", "dead", "done", "corrupt")
# Key of the document, name of the counter, what it counts.
_COUNTED = (
    ("published", "published", "Messages published."),
    ("leased", "leased", "Leases given."),
    ("acked", "acked", "Messages acknowledged."),
    ("retries", "retries", "Failed attempts that come back."),
    ("dropped", "dropped", "Exhausted messages that the policy drops."),
    ("stale", "stale", "Verdicts with a stale receipt, refused."),
)


def prometheus_text(metrics: Document) -> str:
    """Return the metrics of a manager, or those of a store alone, as text for Prometheus."""
    queues: Document = metrics.get("queues", {})
    own = _requests(metrics) if "commands" in metrics else ()
    lines = [*own, *_store(metrics.get("store", {})), *_consumers(metrics.get("consumers", []))]
    lines += [*_gauges(queues), *_counters(queues), *_histograms(queues)]
    return "\n".join(lines) + "\n"


def _requests(metrics: Document) -> Iterator[str]:
    yield from _family("pabal_uptime_seconds", "gauge", "Seconds since the manager started.")
    yield _line("pabal_uptime_seconds", metrics["uptimeMs"] / 1000)
    yield from _family("pabal_requests_total", "counter", "Requests answered, by command.")
    for command, count in metrics["commands"].items():
        yield _line("pabal_requests_total", count, command=command)
    yield from _family("pabal_request_errors_total", "counter", "Requests refused, by code.")
    for code, count in metrics["errors"]["codes"].items():
        yield _line("pabal_request_errors_total", count, code=code)
    if found := metrics.get("requestSeconds"):
        yield from _family("pabal_request_seconds", "histogram", "How long requests took.")
        yield from _histogram("pabal_request_seconds", found)
    if found := metrics.get("process"):
        yield from _family("pabal_resident_bytes", "gauge", "Memory of the manager.")
        yield _line("pabal_resident_bytes", found["residentBytes"])
        yield from _family("pabal_cpu_seconds_total", "counter", "Processor time of the manager.")
        yield _line("pabal_cpu_seconds_total", round(found["cpuSeconds"], 3))


def _store(store: Document) -> Iterator[str]:
    if (free := store.get("freeBytes")) is not None:
        yield from _family("pabal_free_bytes", "gauge", "Free bytes on the disk of the store.")
        yield _line("pabal_free_bytes", free)
    if (ballast := store.get("ballast")) is not None:
        yield from _family("pabal_ballast", "gauge", "1 if the space reserved for a full disk is there.")
        yield _line("pabal_ballast", ballast)


def _consumers(consumers: Sequence[Document]) -> Iterator[str]:
    known = [each for each in consumers if each["consumer"] is not None]
    yield from _family("pabal_consumers", "gauge", "Consumers seen in the last hour, or that hold messages.")
    yield _line("pabal_consumers", len(known))
    yield from _family("pabal_consumer_seen_seconds", "gauge", "How long ago a consumer leased, to a minute.")
    for each in known:
        yield _line("pabal_consumer_seen_seconds", each["seenSeconds"], **_labels(each))
    yield from _family("pabal_consumer_messages", "gauge", "Messages that a consumer holds.")
    for each in consumers:
        for queue, held in each["holds"].items():
            yield _line("pabal_consumer_messages", held["messages"], **_labels(each), queue=queue)
    yield from _family("pabal_consumer_held_seconds", "gauge", "How long a consumer has held its oldest message.")
    for each in consumers:
        for queue, held in each["holds"].items():
            yield _line("pabal_consumer_held_seconds", held["seconds"], **_labels(each), queue=queue)


def _labels(consumer: Document) -> dict[str, str]:
    return {key: str(consumer[key] or "") for key in ("consumer", "host", "pid")}


def _gauges(queues: Document) -> Iterator[str]:
    yield from _family("pabal_messages", "gauge", "Messages of a queue by state.")
    for queue, found in queues.items():
        for state in _STATES:
            yield _line("pabal_messages", found[state], queue=queue, state=state)
    yield from _family("pabal_oldest_ready_seconds", "gauge", "How long the oldest ready message has been ready.")
    for queue, found in queues.items():
        yield _line("pabal_oldest_ready_seconds", found["oldestReadySeconds"] or 0, queue=queue)
    yield from _family(
        "pabal_oldest_inflight_seconds", "gauge", "How long the oldest message in flight has been leased."
    )
    for queue, found in queues.items():
        yield _line("pabal_oldest_inflight_seconds", found["oldestInflightSeconds"] or 0, queue=queue)
    yield from _family("pabal_paused", "gauge", "1 if the queue is paused and gives no leases.")
    for queue, found in queues.items():
        yield _line("pabal_paused", int(found["paused"]), queue=queue)


def _counters(queues: Document) -> Iterator[str]:
    for key, name, help in _COUNTED:
        yield from _family(f"pabal_{name}_total", "counter", help)
        for queue, found in queues.items():
            yield _line(f"pabal_{name}_total", found[key], queue=queue)
    yield from _family("pabal_expirations_total", "counter", "Leases and times to live that ran out.")
    for queue, found in queues.items():
        for code, count in found["expirations"].items():
            yield _line("pabal_expirations_total", count, queue=queue, code=code)
    yield from _family("pabal_dead_letters_total", "counter", "Messages that became dead, by reason.")
    for queue, found in queues.items():
        for code, counts in found["deadLetters"].items():
            yield _line("pabal_dead_letters_total", counts["total"], queue=queue, reason=code)


def _histograms(queues: Document) -> Iterator[str]:
    yield from _family("pabal_queue_seconds", "histogram", "How long messages were ready before they were leased.")
    for queue, found in queues.items():
        yield from _histogram("pabal_queue_seconds", found["secondsInQueue"], queue=queue)
    yield from _family("pabal_work_seconds", "histogram", "How long messages were leased before they were settled.")
    for queue, found in queues.items():
        yield from _histogram("pabal_work_seconds", found["secondsInWork"], queue=queue)


def _family(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, found: Document, **labels: str) -> Iterator[str]:
    for bound, count in found["buckets"].items():
        yield _line(f"{name}_bucket", count, **labels, le=bound)
    yield _line(f"{name}_sum", found["sum"], **labels)
    yield _line(f"{name}_count", found["count"], **labels)


def _line(name: str, value: float, **labels: str) -> str:
    found = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{found}}} {value}" if found else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
