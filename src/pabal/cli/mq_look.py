"""`pabal mq status`, `health`, `metrics`, `queues`, `pause` and `resume`."""

from __future__ import annotations

import click

from pabal import jsontext
from pabal.cli.exits import Exit
from pabal.cli.mq_session import Document, ask, mailbox_root, missing, queue_needed, verb
from pabal.cli.text import clean, fact_lines, json_text, span, table
from pabal.clock import SystemClock
from pabal.errors import NoAnswer, QueueUnknown


@verb("status")
@click.option("--queue", metavar="QUEUE", help="Which queue. By default all, without their policies.")
def status(queue: str | None, as_json: bool) -> None:
    """Count the messages of a queue by state and show its policy.

    \b
    Example:
      pabal mq status --queue telemetry

    --json: queue, metrics {ready, inflight, delayed, dlq, done, corrupt}, policy; one document per queue. Where the
    policy cannot be read it is null, and fault says why.
    """
    if queue is not None and (problem := missing(queue)):
        raise QueueUnknown(problem)
    names = [queue] if queue is not None else ask("queues")["queues"]
    found = [ask("status", {"queue": name}) for name in names]
    if as_json:
        for document in found:
            click.echo(json_text(document))
        return
    rows = [[document["queue"], *_numbers(document["metrics"]), _note(document)] for document in found]
    for line in table(("QUEUE", "READY", "DELAYED", "INFLIGHT", "DLQ", "DONE", "CORRUPT", ""), rows, right=" rrrrrr"):
        click.echo(line)
    if queue is not None and found[0]["policy"] is not None:
        click.echo("\npolicy\n" + jsontext.pretty(_said(found[0]["policy"])).decode(), nl=False)
    elif not found:
        click.echo("no queues yet; the first publish makes one", err=True)


def _numbers(counts: Document) -> list[str]:
    return [str(counts[state] or "·") for state in ("ready", "delayed", "inflight", "dlq", "done", "corrupt")]


def _note(document: Document) -> str:
    if document["policy"] is None:
        return clean(document["fault"])
    return "paused" if document["policy"]["paused"] else ""


def _said(policy: Document) -> Document:
    """Leave out what says nothing."""
    return {key: value for key, value in policy.items() if value not in (None, False, 0, "")}


@verb("health")
def health(as_json: bool) -> None:
    """Ask whether the manager is well.

    Ends with 6 if it does not answer, and says whether it hangs or is not there.

    \b
    Example:
      pabal mq health

    --json: status, timestamp, nodeId, version, pid, uptimeMs, backend, root, mode, freeBytes, store.
    """
    try:
        data = ask("health")
    except NoAnswer as exc:
        raise NoAnswer(f"{exc}{_pulse()}") from exc
    if as_json:
        click.echo(json_text(data))
        return
    facts = {
        key: str(data[key]) for key in ("status", "nodeId", "version", "pid", "backend", "root", "mode") if key in data
    }
    if "uptimeMs" in data:
        facts["uptime"] = span(data["uptimeMs"] / 1000)
        facts["free"] = _bytes(data["freeBytes"])
        facts |= {f"store {name}": value for name, value in data["store"].items()}
    for line in fact_lines(facts):
        click.echo(line)


def _pulse() -> str:
    from pabal.manager.manager import HEARTBEAT
    from pabal.runtime.heartbeat import read_pulse

    pulse = read_pulse(mailbox_root().parent / HEARTBEAT, SystemClock())
    if pulse.beat is None:
        return "; no manager runs beside it"
    if pulse.state == "gone":
        return f"; its manager, pid {pulse.beat.pid}, is gone"
    return f"; pid {pulse.beat.pid} finished its last pass {span(pulse.silent)} ago"


@verb("metrics")
@click.option("--prometheus", is_flag=True, help="Print them as text for Prometheus.")
def metrics(prometheus: bool, as_json: bool) -> None:
    """Show what the manager has done so far.

    \b
    Examples:
      pabal mq metrics
      pabal mq metrics --prometheus > /var/lib/node_exporter/pabal.prom

    --json: uptimeMs, requests {total, success, error}, commands, errors {parse, validation, timeout, internal, codes},
    timing {total, avg, last} in milliseconds, requestSeconds, queues {…}, process {…}.
    """
    data = ask("metrics")
    if prometheus:
        from pabal.manager.prometheus import prometheus_text

        click.echo(prometheus_text(data), nl=False)
    elif as_json:
        click.echo(json_text(data))
    else:
        click.echo("\n".join(_metric_lines(data)))


def _metric_lines(data: Document) -> list[str]:
    requests, timing = data["requests"], data["timing"]
    facts = {
        "uptime": span(data["uptimeMs"] / 1000),
        "requests": f"{requests['total']}, {requests['error']} refused",
        "each took": f"{timing['avg']:.1f} ms on average, the last {timing['last']:.1f} ms",
        "commands": ", ".join(f"{count} {name}" for name, count in data["commands"].items()) or "none",
    }
    if data["errors"]["codes"]:
        facts["refused"] = ", ".join(f"{count} {code}" for code, count in data["errors"]["codes"].items())
    if process := data.get("process"):
        facts["process"] = f"{_bytes(process['residentBytes'])}, {process['cpuSeconds']:.1f} s of processor time"
    queues = data.get("queues", {})
    return [*fact_lines(facts), *_queue_lines(queues), *_death_lines(queues)]


def _queue_lines(queues: Document) -> list[str]:
    heads = "QUEUE READY DELAYED INFLIGHT DEAD OLDEST IN/S OUT/S FAILED WAITED WORKED".split()
    rows = [_queue_row(name, found) for name, found in queues.items()]
    return ["", *table((*heads, ""), rows, right=" rrrrrrrrrr")] if rows else []


def _death_lines(queues: Document) -> list[str]:
    rows = [
        [name, code, str(counts["total"]), str(counts["lastHour"])]
        for name, found in queues.items()
        for code, counts in found["deadLetters"].items()
    ]
    return ["", *table(("DEAD IN", "REASON", "TOTAL", "LAST HOUR"), rows, right="  rr")] if rows else []


def _queue_row(name: str, found: Document) -> list[str]:
    oldest = found["oldestReadySeconds"]
    return [
        clean(name),
        *(str(found[state] or "·") for state in ("ready", "delayed", "inflight", "dead")),
        "·" if oldest is None else span(oldest),
        f"{found['inPerSecond']:.1f}",
        f"{found['outPerSecond']:.1f}",
        f"{found['failureRate'] * 100:.0f}%",
        _typical(found["secondsInQueue"]),
        _typical(found["secondsInWork"]),
        "paused" if found["paused"] else "",
    ]


def _typical(histogram: Document) -> str:
    return "·" if histogram["p50"] is None else f"<{histogram['p50']:g}s"


def _bytes(count: float) -> str:
    size, unit = count, "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if size >= 10 or unit == "bytes" else f"{size:.1f} {unit}"


@verb("queues")
def queues(as_json: bool) -> None:
    """Name every queue.

    Ends with 1 if there is none.

    \b
    Example:
      pabal mq queues

    --json: queues.
    """
    data = ask("queues")
    click.echo(json_text(data) if as_json else "\n".join(data["queues"]), nl=bool(as_json or data["queues"]))
    if not data["queues"]:
        click.get_current_context().exit(Exit.NOTHING)


@verb("pause")
@queue_needed
def pause(queue: str, as_json: bool) -> None:
    """Let nobody take messages from a queue.

    \b
    Example:
      pabal mq pause --queue telemetry
    """
    data = ask("pause", {"queue": queue})
    click.echo(json_text(data) if as_json else f"{queue} is paused")


@verb("resume")
@queue_needed
def resume(queue: str, as_json: bool) -> None:
    """Let consumers take messages from a queue again.

    \b
    Example:
      pabal mq resume --queue telemetry
    """
    data = ask("resume", {"queue": queue})
    click.echo(json_text(data) if as_json else f"{queue} is running")


LOOKING_VERBS = (status, health, metrics, queues, pause, resume)
