"""`pabal mq`: ask a manager through its mailbox, for people and scripts that know the verbs from `yirangmq`."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import click

from pabal.cli.consume import CONSUME_VERBS
from pabal.cli.dlq import DLQ_VERBS
from pabal.cli.exits import Reported
from pabal.cli.policy import POLICY_VERBS
from pabal.cli.publish import PUBLISH_VERBS
from pabal.cli.queues import PAUSE_VERBS, QUEUE_VERBS
from pabal.cli.session import help_if_alone
from pabal.cli.text import clean, fact_lines, json_text, span, table
from pabal.cli.verbs import Document, ask, count_cells, mailbox_root, mq_verb, shared_options
from pabal.clock import SystemClock
from pabal.errors import NoAnswer


@click.group("mq", invoke_without_command=True)
@shared_options
@click.version_option(package_name="pabal", message="pabal %(version)s")
@click.pass_context
def mq(ctx: click.Context) -> None:
    """Ask a manager through its mailbox, in the words of yirangmq.

    Times are milliseconds where the value is MS, else seconds, and may have a unit: 500ms, 30s, 5m. The shared options
    --ipc-root, --timeout, --client-id and --url may stand before or after the verb.
    """
    help_if_alone(ctx)


@mq_verb("health")
def health(as_json: bool) -> None:
    """Ask whether the manager is well.

    Ends with 6 if it does not answer, and prints whether it hangs or is not there.

    \b
    Example:
      pabal mq health

    --json: status, timestamp, nodeId, version, pid, uptimeMs, backend, root, mode, freeBytes, store.
    """
    try:
        data = ask("health")
    except NoAnswer as exc:
        raise NoAnswer(f"{exc}{_heartbeat_note()}") from exc
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


def _heartbeat_note() -> str:
    from pabal.mailbox.settings import read_layout
    from pabal.runtime.heartbeat import read_pulse

    path = read_layout(mailbox_root()).heartbeat
    if path and not os.access(os.path.dirname(path), os.X_OK):
        return ""  # the data of another user: whether its manager runs cannot be seen from here
    pulse = read_pulse(Path(path), SystemClock())
    if pulse.beat is None:
        return "; no manager serves it"
    if pulse.state == "gone":
        return f"; its manager, pid {pulse.beat.pid}, is gone"
    return f"; pid {pulse.beat.pid} finished its last pass {span(pulse.silent)} ago"


@mq_verb("metrics")
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
        from pabal.queues.prometheus import prometheus_text

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
    return [*fact_lines(facts), *_queue_lines(queues), *_dead_letter_lines(queues)]


def _queue_lines(queues: Document) -> list[str]:
    heads = "QUEUE READY DELAYED INFLIGHT DEAD OLDEST IN/S OUT/S FAILED WAITED WORKED".split()
    rows = [_queue_row(name, found) for name, found in queues.items()]
    return ["", *table((*heads, ""), rows, right=" rrrrrrrrrr")] if rows else []


def _dead_letter_lines(queues: Document) -> list[str]:
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
        *count_cells(found, ("ready", "delayed", "inflight", "dead")),
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


_VERBS = chain(PUBLISH_VERBS, CONSUME_VERBS, QUEUE_VERBS, PAUSE_VERBS, DLQ_VERBS, POLICY_VERBS)
for _command in (*(verb.mq for verb in _VERBS if verb.mq is not None), health, metrics):
    mq.add_command(_command)


def yirangmq() -> None:
    """The entry point of the command `yirangmq`."""
    alone = Reported("yirangmq", commands=mq.commands, params=mq.params, help=mq.help, callback=mq.callback)
    alone.invoke_without_command = True
    alone.context_settings = {"help_option_names": ["-h", "--help"]}
    alone(prog_name="yirangmq")
