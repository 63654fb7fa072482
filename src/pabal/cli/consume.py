"""`consume`, `ack`, `nack` and `extend-lease`, of `pabal` and of `pabal mq`: lease messages and settle them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import click

from pabal.cli.execute import Execution, command_line
from pabal.cli.exits import Exit, complain, end_with_nothing, unwinding_on_sigterm
from pabal.cli.session import command, current_url, json_option, known, opened, queue_argument
from pabal.cli.text import ago, body_text, clean, json_text, span
from pabal.cli.values import FOREVER, duration, lasting, milliseconds, patience, run_timeout
from pabal.cli.verbs import (
    Document,
    Verb,
    answer_timeout,
    ask,
    ask_many,
    extended_line,
    key_needed,
    missing,
    mq_request,
    mq_verb,
    queue_needed,
    reason_option,
)
from pabal.connect import Connection
from pabal.errors import LeaseLost, PabalError, Refused
from pabal.names import check_id, check_name
from pabal.queues.delivery import Delivery
from pabal.queues.documents import delivery_document
from pabal.queues.queue import Queue
from pabal.store import Receipt, State

_BATCH = 100
_SHOWN = ("type", "sender", "group", "thread_id", "reply_to")


@command("consume")
@queue_argument
@click.option(
    "--wait",
    type=patience,
    metavar="TIME",
    help="How long to wait for a message; forever is allowed. By default not at all, with --exec for ever.",
)
@click.option(
    "--count",
    type=click.IntRange(0, 10**9),
    metavar="N",
    help="Stop after N messages, 0 for no end. By default 1, with --exec no end.",
)
@click.option(
    "--lease",
    "seconds",
    type=lasting,
    metavar="TIME",
    help="How long they are yours. By default as the policy sets.",
)
@click.option("--ack", is_flag=True, help="Settle each as done once it is printed.")
@click.option("--exec", "line", metavar="CMD", help="Run CMD on each message and settle by its exit status.")
@click.option("--concurrency", type=click.IntRange(1, 1000), metavar="N", help="With --exec: so many at a time.")
@click.option(
    "--timeout", type=run_timeout, metavar="TIME", help="With --exec: end CMD after so long; that is a failure."
)
@click.option("--consumer", metavar="NAME", default="", help="Your name, for messages addressed to you.")
@json_option
def consume(
    queue: str,
    wait: float | None,
    count: int | None,
    seconds: float | None,
    ack: bool,
    line: str | None,
    concurrency: int | None,
    timeout: float | None,
    consumer: str,
    as_json: bool,
) -> None:
    """Lease messages from QUEUE and print each with its receipt.

    A leased message is yours until the lease runs out; then it comes back. Settle it with `pabal ack RECEIPT` or
    `pabal nack RECEIPT`, or let --ack do it. TIME is seconds, or like 30s, 5m, 2h. Ends with 1 if there
    was nothing.

    \b
    Examples:
      pabal consume jobs --wait 20s
      pabal consume jobs --json --count 10 --ack | jq .body
      pabal consume jobs --exec './resize.sh' --concurrency 4

    --exec runs CMD without a shell, the body on its stdin (JSON, or the bytes as they are) and PABAL_ID, PABAL_QUEUE,
    PABAL_TYPE, PABAL_ATTEMPT and PABAL_URL in its environment. Exit status 0 is an ack, any other a nack whose reason
    is the last line of CMD's stderr. The lease is renewed while CMD runs. After Ctrl-C or SIGTERM running commands may
    finish for 30 seconds; a second one ends them at once and gives their messages back, which counts as an attempt.
    """
    if line is None and (concurrency is not None or timeout is not None):
        raise click.UsageError(f"{'--timeout' if concurrency is None else '--concurrency'} needs --exec")
    if line is not None and (ack or as_json):
        raise click.UsageError(f"{'--ack' if ack else '--json'} and --exec exclude each other")
    argv = [] if line is None else command_line(line)
    patience = (FOREVER if argv else 0.0) if wait is None else wait
    limit = (FOREVER if argv else 1) if count is None else count or FOREVER
    with opened(create=patience > 0, consumer=consumer) as mq:
        source = mq.queue(queue) if patience else known(mq, queue)
        if argv:
            execution = Execution(
                source, argv, current_url(), concurrency=concurrency or 1, seconds=seconds, timeout=timeout
            )
            taken = execution.run(wait=patience, count=limit)
            if execution.signalled is not None:
                click.get_current_context().exit(Exit(128 + execution.signalled))
        else:
            with unwinding_on_sigterm():
                taken = _show_all(source, limit, seconds, patience, ack=ack, as_json=as_json)
        if not taken:
            end_with_nothing(_why_nothing(source))


def _show_all(queue: Queue, count: float, seconds: float | None, wait: float, *, ack: bool, as_json: bool) -> int:
    shown = 0
    while shown < count:
        batch = queue.lease(int(min(_BATCH, count - shown)), visibility=seconds, wait=wait)
        if not batch:
            break
        _show_batch(queue, batch, ack=ack, as_json=as_json, first=shown == 0)
        shown += len(batch)
    return shown


def _show_batch(queue: Queue, batch: list[Delivery], *, ack: bool, as_json: bool, first: bool) -> None:
    held = list(batch)
    try:
        for delivery in batch:
            if as_json:
                click.echo(json_text(delivery_document(delivery)))
            else:
                click.echo(("" if first and delivery is batch[0] else "\n") + "\n".join(_lines(delivery)))
            if not ack:
                held.remove(delivery)  # its receipt is printed: the reader settles it
        sys.stdout.flush()
        if ack:
            queue.ack_many(batch)
            held.clear()
    finally:
        _give_back(held)


def _give_back(deliveries: Iterable[Delivery]) -> None:
    for delivery in deliveries:
        with suppress(PabalError):  # then its lease runs out
            delivery.release()


def _lines(delivery: Delivery) -> list[str]:
    message = delivery.message
    fields = [("id", message.id), ("receipt", str(delivery.receipt)), ("attempt", str(delivery.attempt))]
    if delivery.failure is not None:
        fields.append(("before", f"{delivery.failure.code}: {delivery.failure.reason}"))
    fields += [(name, text) for name in _SHOWN if (text := getattr(message, name))]
    fields.append(("body", body_text(message.body)))
    return [f"{name:<9}{clean(text)}" for name, text in fields]


def _why_nothing(queue: Queue) -> str:
    if queue.paused:
        return f"{queue.name} is paused; pabal resume {queue.name}, unless it was moved to another store"
    counts = queue.counts()
    facts = [f"{counts.get(state, 0)} {state}" for state in (State.READY, State.DELAYED, State.INFLIGHT)]
    due = queue.store.next_due(queue.name)
    soon = f"; next in {span(due)}" if due is not None else ""
    return f"nothing to take from {queue.name}: {', '.join(facts)}{soon}"


receipts_argument = click.argument("receipts", metavar="RECEIPT...", nargs=-1, required=True)


@command("ack")
@receipts_argument
def ack(receipts: tuple[str, ...]) -> None:
    """Acknowledge leased messages: they were handled.

    RECEIPT is what `pabal consume` printed. Repeating an ack is harmless. Ends with 4 if a lease was lost: then
    another consumer has the message, and nothing was changed.

    \b
    Example:
      pabal ack jobs/0199c1d2-.../w3k9...
    """

    def settle(queue: Queue, receipt: Receipt) -> None:
        queue.ack(receipt)
        click.echo(f"done {receipt.id}")

    _each(receipts, settle)


@command("nack")
@receipts_argument
@click.option("--delay", type=duration, metavar="TIME", help="When it comes back, instead of the policy's backoff.")
@reason_option
@click.option("--bury", is_flag=True, help="Do not try again: set it aside as dead.")
def nack(receipts: tuple[str, ...], delay: float | None, reason: str, bury: bool) -> None:
    """Report that leased messages failed.

    The policy of their queue decides whether and when they come back, or are dead.

    \b
    Examples:
      pabal nack jobs/0199c1d2-.../w3k9... --reason 'no such file' --delay 5m
      pabal nack jobs/0199c1d2-.../w3k9... --bury --reason 'cannot be parsed'
    """
    if bury and delay is not None:
        raise click.UsageError("--bury and --delay exclude each other")

    def settle(queue: Queue, receipt: Receipt) -> None:
        if bury:
            queue.bury(receipt, reason)
        else:
            queue.nack(receipt, delay, reason)
        click.echo(_outcome(queue, receipt))

    _each(receipts, settle)


@command("extend-lease")
@click.argument("receipt", metavar="RECEIPT")
@click.argument("seconds", metavar="SECONDS", type=lasting)
def extend_lease(receipt: str, seconds: float) -> None:
    """Let a lease end SECONDS from now.

    For work that takes longer than the lease. SECONDS may be written like 30s, 5m, 2h.

    \b
    Example:
      pabal extend-lease jobs/0199c1d2-.../w3k9... 10m
    """

    def settle(queue: Queue, receipt: Receipt) -> None:
        queue.extend(receipt, seconds)
        click.echo(extended_line(receipt.id, seconds))

    _each([receipt], settle)


inflight_option = click.option(
    "--inflight", is_flag=True, help="Also messages that a consumer holds: its next step fails, the lease is lost."
)


@command("cancel")
@queue_argument
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@inflight_option
@json_option
def cancel(queue: str, ids: tuple[str, ...], inflight: bool, as_json: bool) -> None:
    """Take back messages that still wait, so that nobody gets them.

    Ends with 1 if none of them was waiting. A cancelled message is done, with the failure CANCELLED.

    \b
    Examples:
      pabal cancel jobs 0199c1d2-...
      pabal cancel jobs report-7 --inflight

    --json: queue, cancelled (ids).
    """
    with opened() as mq:
        found = known(mq, queue).cancel(ids, inflight=inflight)
    _echo_cancelled(queue, found, as_json)


def _echo_cancelled(queue: str, ids: Sequence[str], as_json: bool) -> None:
    if as_json:
        click.echo(json_text({"queue": queue, "cancelled": list(ids)}))
    for id in () if as_json else ids:
        click.echo(f"cancelled {id}")
    if not ids:
        end_with_nothing("" if as_json else f"none of them waits in {queue}")


def _each(texts: Sequence[str], settle: Callable[[Queue, Receipt], None]) -> None:
    """Settle all, also when a lease is lost. An invalid receipt is refused before anything is settled."""
    receipts = [_receipt(text) for text in texts]
    lost = False
    with opened() as mq:
        for receipt in receipts:
            lost |= not _settled(mq, receipt, settle)
    if lost:
        click.get_current_context().exit(Exit.LEASE_LOST)


def _settled(mq: Connection, receipt: Receipt, settle: Callable[[Queue, Receipt], None]) -> bool:
    try:
        settle(mq.queue(receipt.queue), receipt)
    except LeaseLost as exc:
        complain(exc)
        return False
    return True


def _receipt(text: str) -> Receipt:
    receipt = Receipt.parse(text)
    check_name(receipt.queue)
    check_id(receipt.id)
    return receipt


def _outcome(queue: Queue, receipt: Receipt) -> str:
    entry = queue.find(receipt.id)
    if entry is None or entry.state is State.DONE:
        return f"dropped {receipt.id}: the policy keeps no dead letters"
    if entry.state is State.DELAYED:
        return f"delayed {receipt.id}: ready {ago(entry.due_at)}"
    return f"{entry.state} {receipt.id}"


lease_option = click.option("--lease-id", default="", metavar="ID", help="The lease, as consume printed it.")
consumer_option = click.option("--consumer-id", default="", metavar="NAME", help="Your name. By default the client's.")
force_option = click.option("--force", is_flag=True, help="Settle it without a lease id, whichever consumer holds it.")


@mq_verb("consume")
@queue_needed
@consumer_option
@click.option(
    "--visibility", type=lasting, metavar="SECONDS", help="How long it is yours. By default as the policy sets."
)
@click.option("--wait", type=milliseconds, default="0", metavar="MS", help="How long to wait for a message.")
@click.option("--count", type=click.IntRange(1, 10**9), default=1, metavar="N", help="Stop after N messages.")
@click.option("--ack", is_flag=True, help="Settle each as done once it is printed.")
def mq_consume(
    queue: str, consumer_id: str, visibility: float | None, wait: int, count: int, ack: bool, as_json: bool
) -> None:
    """Lease the next message of a queue, or with --count several.

    It is yours until the lease ends; then it comes back. Ends with 1 if there was none.

    \b
    Examples:
      pabal mq consume --queue telemetry --consumer-id worker-01 --wait 20000
      pabal mq consume --queue telemetry --count 100 --ack --json

    --json: one document for each message: message {messageId, messageKey, queue, payload, attributes, priority,
    attempt, createdAt}, lease {leaseId, messageKey, consumerId, leaseUntil}; both null if there was none, and paused
    if the queue is.
    """
    payload: Document = {
        "queue": queue,
        "consumerId": consumer_id,
        "waitMs": min(wait, max(0, answer_timeout() * 1000 - 500)),
    }
    if visibility is not None:
        payload["visibilityTimeoutSec"] = visibility
    taken = 0
    while taken < count:
        data = ask("consume_next", {**payload, "limit": min(count - taken, _BATCH)})
        if data["message"] is None:
            break
        found = data.get("messages") or [data]
        for each in found:
            if as_json:
                click.echo(json_text({"message": each["message"], "lease": each["lease"]}))
            else:
                click.echo(("\n" if taken else "") + "\n".join(_mq_lines(each["message"], each["lease"])))
            taken += 1
        sys.stdout.flush()
        if ack:
            _ack_all([each["lease"] for each in found])
    if not taken:
        if as_json:
            click.echo(json_text(data))
        paused = f"{queue} is paused; pabal mq resume --queue {queue}" if data.get("paused") else ""
        end_with_nothing("" if as_json else paused or missing(queue) or f"nothing to take from {queue}")


def _ack_all(leases: Sequence[Document]) -> None:
    """Acknowledge what was printed; raise the first refusal after all were tried."""
    fields = [{"messageKey": lease["messageKey"], "leaseId": lease["leaseId"]} for lease in leases]
    if refused := [found for found in ask_many("ack", fields) if isinstance(found, Refused)]:
        raise refused[0]


def _mq_lines(message: Document, lease: Document) -> list[str]:
    fields = [
        ("key", message["messageKey"]),
        ("lease", lease["leaseId"]),
        ("ends", ago(lease["leaseUntil"] / 1000)),
        ("attempt", str(message["attempt"])),
    ]
    if message["priority"]:
        fields.append(("priority", str(message["priority"])))
    if message["attributes"]:
        fields.append(("about", json_text(message["attributes"])))
    fields.append(("message", body_text(message["payload"])))
    return [f"{name:<10}{clean(text)}" for name, text in fields]


@mq_request("ack", "ack", lambda data, options: f"done {options['message_key']}")
@key_needed
@lease_option
@consumer_option
@force_option
def mq_ack(message_key: str, lease_id: str, consumer_id: str, force: bool) -> Document:
    """Acknowledge a leased message: it was handled.

    Repeating it is harmless. Ends with 4 if the lease was lost: then another has it and nothing was changed.

    \b
    Example:
      pabal mq ack --message-key msg:telemetry:0199c1d2 --lease-id 8f3a
    """
    return {"messageKey": message_key, **_lease_fields(lease_id, consumer_id, force)}


def _nacked_line(data: Document, options: Document) -> str:
    key, state = options["message_key"], data.get("state", "")
    if state == "dlq":
        return f"dead {key}"
    if state == "dropped":
        return f"dropped {key}: the policy keeps no dead letters"
    seconds = data.get("delayMs", 0) / 1000
    return f"failed {key}: again " + (
        f"in {seconds:g} s" if 0 < seconds < 60 else f"in {span(seconds)}" if seconds else "at once"
    )


@mq_request("nack", "nack", _nacked_line)
@key_needed
@lease_option
@consumer_option
@reason_option
@click.option("--requeue", is_flag=True, help="Let the policy decide whether and when it comes back.")
@click.option("--delay", type=milliseconds, metavar="MS", help="With --requeue: when, instead of the policy.")
@force_option
def mq_nack(
    message_key: str, lease_id: str, consumer_id: str, reason: str, requeue: bool, delay: int | None, force: bool
) -> Document:
    """Report that a leased message failed.

    With --requeue the retry policy of its queue decides; without, it is dead at once.

    \b
    Example:
      pabal mq nack --message-key msg:jobs:0199c1d2 --lease-id 8f3a --requeue
    """
    if delay is not None and not requeue:
        raise click.UsageError("--delay needs --requeue")
    payload: Document = {"messageKey": message_key, "reason": reason, "requeue": requeue}
    payload |= _lease_fields(lease_id, consumer_id, force)
    return payload | ({} if delay is None else {"delayMs": delay})


@mq_request(
    "extend-lease", "extend_lease", lambda data, options: extended_line(options["message_key"], options["visibility"])
)
@key_needed
@click.option("--lease-id", required=True, metavar="ID", help="The lease, as consume printed it.")
@consumer_option
@click.option(
    "--visibility", type=lasting, default="30", show_default=True, metavar="SECONDS", help="How long, from now."
)
def mq_extend_lease(message_key: str, lease_id: str, consumer_id: str, visibility: float) -> Document:
    """Let a lease end later.

    \b
    Example:
      pabal mq extend-lease --message-key msg:jobs:0199c1d2 --lease-id 8f3a
    """
    payload: Document = {"messageKey": message_key, "leaseId": lease_id, "visibilityTimeoutSec": visibility}
    return payload | ({"consumerId": consumer_id} if consumer_id else {})


@mq_verb("cancel")
@queue_needed
@click.option("--message-id", "ids", multiple=True, required=True, metavar="ID", help="Which message; may be repeated.")
@inflight_option
def mq_cancel(queue: str, ids: tuple[str, ...], inflight: bool, as_json: bool) -> None:
    """Take back messages that still wait.

    Ends with 1 if none of them was waiting.

    \b
    Example:
      pabal mq cancel --queue jobs --message-id 0199c1d2
    """
    data = ask("cancel", {"queue": queue, "messageIds": list(ids), "inflight": inflight})
    _echo_cancelled(queue, data["cancelled"], as_json)


def _lease_fields(lease_id: str, consumer_id: str, force: bool) -> Document:
    if not lease_id and not force:
        raise click.UsageError("give --lease-id, as consume printed it, or --force")
    payload: Document = {"leaseId": lease_id} if lease_id else {"force": True}
    return payload | ({"consumerId": consumer_id} if consumer_id else {})


CONSUME_VERBS = (
    Verb(consume, mq_consume),
    Verb(ack, mq_ack),
    Verb(nack, mq_nack),
    Verb(extend_lease, mq_extend_lease),
    Verb(cancel, mq_cancel),
)
