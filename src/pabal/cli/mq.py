"""`pabal mq`: the verbs of the mailbox, for people and scripts that know them from `yirangmq`."""

from __future__ import annotations

import sys

import click

from pabal.cli.exits import Exit, Reported
from pabal.cli.mq_dlq import DLQ_VERBS
from pabal.cli.mq_look import LOOKING_VERBS
from pabal.cli.mq_session import Document, ask, missing, queue_needed, shared_options, timeout, verb
from pabal.cli.session import help_if_alone
from pabal.cli.text import ago, body_text, clean, json_text

key_needed = click.option("--message-key", required=True, metavar="KEY", help="Which message: msg:<queue>:<id>.")
lease_option = click.option("--lease-id", default="", metavar="ID", help="The lease, as consume printed it.")
consumer_option = click.option("--consumer-id", default="", metavar="NAME", help="Your name. By default the client's.")


@click.group("mq", invoke_without_command=True)
@shared_options
@click.pass_context
def mq(ctx: click.Context) -> None:
    """Ask a manager through its mailbox, in the words of yirangmq.

    Times are milliseconds where the option says MS, else seconds. The shared options --ipc-root, --timeout, --client-id
    and --url may stand before or after the verb.
    """
    help_if_alone(ctx)


@verb("publish")
@queue_needed
@click.option("--message", required=True, metavar="JSON", help="The message, JSON; - to read it from stdin.")
@click.option("--attributes", default="", metavar="JSON", help="What else is said of it: a JSON object.")
@click.option("--priority", default=0, metavar="N", help="-100 to 100, larger first.")
@click.option("--delay", type=click.IntRange(min=0), default=0, metavar="MS", help="Nobody gets it before.")
@click.option("--target", default="", metavar="NAME", help="Only the consumer of this name may take it.")
def publish(queue: str, message: str, attributes: str, priority: int, delay: int, target: str, as_json: bool) -> None:
    """Put one message into a queue and print its key.

    \b
    Example:
      pabal mq publish --queue telemetry --message '{"temp": 36.5}' --priority 5

    --json: messageId, messageKey, and duplicate if it was there already.
    """
    text = sys.stdin.read() if message == "-" else message
    payload = {
        "queue": queue,
        "message": text,
        "attributes": attributes,
        "priority": priority,
        "delayMs": delay,
        "targetConsumerId": target,
    }
    data = ask("publish", payload)
    click.echo(json_text(data) if as_json else data["messageKey"])


@verb("consume")
@queue_needed
@consumer_option
@click.option(
    "--visibility", type=float, metavar="SECONDS", help="How long it is yours. By default as the policy says."
)
@click.option("--wait", type=click.IntRange(min=0), default=0, metavar="MS", help="How long to wait for a message.")
def consume(queue: str, consumer_id: str, visibility: float | None, wait: int, as_json: bool) -> None:
    """Lease the next message of a queue.

    It is yours until the lease ends; then it comes back. Ends with 1 if there was none.

    \b
    Example:
      pabal mq consume --queue telemetry --consumer-id worker-01 --wait 20000

    --json: message {messageId, messageKey, queue, payload, attributes, priority, attempt, createdAt}, lease {leaseId,
    messageKey, consumerId, leaseUntil}; both null if there was none.
    """
    payload: Document = {"queue": queue, "consumerId": consumer_id, "waitMs": min(wait, max(0, timeout() * 1000 - 500))}
    if visibility is not None:
        payload["visibilityTimeoutSec"] = visibility
    data = ask("consume_next", payload)
    if as_json:
        click.echo(json_text(data))
    elif data["message"] is None:
        click.echo(missing(queue) or f"nothing to take from {queue}", err=True)
    else:
        _show(data["message"], data["lease"])
    if data["message"] is None:
        click.get_current_context().exit(Exit.NOTHING)


def _show(message: Document, lease: Document) -> None:
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
    for name, text in fields:
        click.echo(f"{name:<10}{clean(text)}")


@verb("ack")
@key_needed
@lease_option
@consumer_option
@click.option("--force", is_flag=True, help="Without a lease id: whoever holds it loses it.")
def ack(message_key: str, lease_id: str, consumer_id: str, force: bool, as_json: bool) -> None:
    """Say that a leased message was handled.

    Repeating it is harmless. Ends with 4 if the lease was lost: then somebody else has it and nothing was changed.

    \b
    Example:
      pabal mq ack --message-key msg:telemetry:0199c1d2 --lease-id 8f3a
    """
    payload: Document = {"messageKey": message_key, **_held(lease_id, consumer_id, force)}
    data = ask("ack", payload)
    click.echo(json_text(data) if as_json else f"done {message_key}")


@verb("nack")
@key_needed
@lease_option
@consumer_option
@click.option("--reason", default="", metavar="TEXT", help="Why, kept with the message.")
@click.option("--requeue", is_flag=True, help="Let the policy decide whether and when it comes back.")
@click.option("--delay", type=click.IntRange(min=0), metavar="MS", help="With --requeue: when, instead of the policy.")
@click.option("--force", is_flag=True, help="Without a lease id: whoever holds it loses it.")
def nack(
    message_key: str,
    lease_id: str,
    consumer_id: str,
    reason: str,
    requeue: bool,
    delay: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Say that a leased message failed.

    With --requeue the retry policy of its queue decides; without, it is dead at once.

    \b
    Example:
      pabal mq nack --message-key msg:jobs:0199c1d2 --lease-id 8f3a --requeue
    """
    if delay is not None and not requeue:
        raise click.UsageError("--delay needs --requeue")
    payload: Document = {"messageKey": message_key, "reason": reason, "requeue": requeue}
    payload |= _held(lease_id, consumer_id, force)
    if delay is not None:
        payload["delayMs"] = delay
    data = ask("nack", payload)
    click.echo(json_text(data) if as_json else f"{'failed' if requeue else 'dead'} {message_key}")


@verb("extend-lease")
@key_needed
@click.option("--lease-id", required=True, metavar="ID", help="The lease, as consume printed it.")
@consumer_option
@click.option("--visibility", type=float, default=30.0, show_default=True, metavar="SECONDS", help="From now on.")
def extend_lease(message_key: str, lease_id: str, consumer_id: str, visibility: float, as_json: bool) -> None:
    """Let a lease end later.

    \b
    Example:
      pabal mq extend-lease --message-key msg:jobs:0199c1d2 --lease-id 8f3a
    """
    payload = {"messageKey": message_key, "leaseId": lease_id, "visibilityTimeoutSec": visibility}
    data = ask("extend_lease", payload | ({"consumerId": consumer_id} if consumer_id else {}))
    click.echo(json_text(data) if as_json else f"extended {message_key} by {visibility:g}s from now")


def _held(lease_id: str, consumer_id: str, force: bool) -> Document:
    if not lease_id and not force:
        raise click.UsageError("give --lease-id, as consume printed it, or --force")
    payload: Document = {"leaseId": lease_id} if lease_id else {"force": True}
    return payload | ({"consumerId": consumer_id} if consumer_id else {})


for _command in (publish, consume, ack, nack, extend_lease, *LOOKING_VERBS, *DLQ_VERBS):
    mq.add_command(_command)


def yirangmq() -> None:
    """The way in of the command `yirangmq`."""
    alone = Reported("yirangmq", commands=mq.commands, params=mq.params, help=mq.help, callback=mq.callback)
    alone.invoke_without_command = True
    alone.context_settings = {"help_option_names": ["-h", "--help"]}
    alone(prog_name="yirangmq")
