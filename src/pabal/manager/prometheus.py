"""The metrics document as Prometheus reads it: text, one line per value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]

_STATES = ("ready", "delayed", "inflight", "dead", "done", "corrupt")
# Key of the document, name of the counter, what it counts.
_COUNTED = (
    ("published", "published", "Messages published through the manager."),
    ("leased", "leased", "Leases given by the manager."),
    ("acked", "acked", "Messages acknowledged."),
    ("retries", "retries", "Failed attempts that come back."),
    ("dropped", "dropped", "Exhausted messages that the policy drops."),
    ("stale", "stale", "Verdicts with a stale receipt, refused."),
)


def prometheus_text(metrics: Document) -> str:
    """Return what the manager answers to `metrics` as text for a scraper."""
    queues: Document = metrics.get("queues", {})
    lines = [*_requests(metrics), *_gauges(queues), *_counters(queues), *_histograms(queues)]
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


def _gauges(queues: Document) -> Iterator[str]:
    yield from _family("pabal_messages", "gauge", "Messages of a queue by state.")
    for queue, found in queues.items():
        for state in _STATES:
            yield _line("pabal_messages", found[state], queue=queue, state=state)
    yield from _family("pabal_oldest_ready_seconds", "gauge", "How long the oldest ready message has been ready.")
    for queue, found in queues.items():
        yield _line("pabal_oldest_ready_seconds", found["oldestReadySeconds"] or 0, queue=queue)
    yield from _family("pabal_paused", "gauge", "1 if nobody may lease from the queue.")
    for queue, found in queues.items():
        yield _line("pabal_paused", int(found["paused"]), queue=queue)


def _counters(queues: Document) -> Iterator[str]:
    for key, name, told in _COUNTED:
        yield from _family(f"pabal_{name}_total", "counter", told)
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


def _family(name: str, kind: str, told: str) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, found: Document, **labels: str) -> Iterator[str]:
    for bound, count in found["buckets"].items():
        yield _line(f"{name}_bucket", count, **labels, le=bound)
    yield _line(f"{name}_sum", found["sum"], **labels)
    yield _line(f"{name}_count", found["count"], **labels)


def _line(name: str, value: float, **labels: str) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{told}}} {value}" if told else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
