"""Serves the library's calls, one command for each row of the table in `pabal.mailbox.calls`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from pabal.errors import InvalidRequest
from pabal.mailbox import calls
from pabal.mailbox.calls import A, Call, R, draft_of, receipt_of, settlement_of, wire_entry, wire_lease
from pabal.mailbox.commands.context import MAX_MESSAGES, Command, Context, Kind, Work
from pabal.mailbox.protocol import Request
from pabal.message import replace
from pabal.store import Checkable, Draft, Lease, State

_MAX_PURGED = 100_000


def _publish(context: Context, request: Request) -> Work:
    try:
        asked: calls.PublishArguments | calls.PlainPublishArguments = request.read(calls.PlainPublishArguments)
    except InvalidRequest:
        asked = request.read(calls.PublishArguments)
    drafts = [draft_of(found, repeated=request.repeated) for found in asked.drafts]
    _check_senders(context, request, drafts)
    return Work(drafts, list)


def _settle(context: Context, request: Request) -> Work:
    asked = request.read(calls.SettleArguments)
    settlements = [settlement_of(found) for found in asked.settlements]
    _check_senders(context, request, (draft for _, verdict in settlements for draft in verdict.then))
    return Work(settlements, list, durable=asked.durable)


def _extend(context: Context, request: Request) -> Work:
    asked = request.read(calls.ExtendArguments)
    return Work([receipt_of(text) for text in asked.receipts], list, seconds=asked.seconds)


def _check_senders(context: Context, request: Request, drafts: Iterable[Draft]) -> None:
    for draft in drafts:
        context.check_sender(request, draft.message.sender)


def _lease(context: Context, request: Request) -> list[calls.WireLease]:
    asked = request.read(calls.LeaseArguments)
    token = asked.token or context.token(request, asked.consumer)
    limit = min(asked.limit, MAX_MESSAGES)
    leases = context.store.lease(
        asked.queue, limit, asked.seconds, consumer=asked.consumer, token=token, successive=asked.successive
    )
    return [wire_lease(lease) for lease in leases]


def _expired(context: Context, asked: calls.ExpiredArguments) -> list[calls.WireLease]:
    now, leases = context.clock.now(), context.store.expired(asked.queue, min(asked.limit, MAX_MESSAGES))
    return [wire_lease(lease if lease.expired is not None else _judged(lease, now)) for lease in leases]


def _judged(lease: Lease, now: float) -> Lease:
    """Say whether the time to live is over, by the clock of the manager: that of the client may differ."""
    expires_at = lease.message.expires_at
    return replace(lease, expired=expires_at is not None and expires_at <= now)


def _browse(context: Context, asked: calls.BrowseArguments) -> list[calls.WireEntry]:
    limit = min(asked.limit, MAX_MESSAGES)
    return [wire_entry(each) for each in context.store.browse(asked.queue, asked.state, after=asked.after, limit=limit)]


def _find(context: Context, asked: calls.FindArguments) -> calls.Maybe[calls.WireEntry]:
    entry = context.store.find(asked.queue, asked.id)
    return calls.Maybe(None if entry is None else wire_entry(entry))


def _purge(context: Context, asked: calls.PurgeArguments) -> int:
    limit = min(asked.limit, _MAX_PURGED)
    return context.store.purge(asked.queue, asked.state, age=asked.age, limit=limit, ids=asked.ids)


def _trim(context: Context, asked: calls.TrimArguments) -> int:
    return context.store.trim(asked.queue, asked.state, age=asked.age, limit=min(asked.limit, _MAX_PURGED))


def _settings(context: Context, asked: calls.OfQueue) -> calls.Maybe[dict[str, object]]:
    found = context.store.settings(asked.queue)
    return calls.Maybe(None if found is None else dict(found))


def _configure(context: Context, asked: calls.ConfigureArguments) -> bool:
    known = ... if asked.known is msgspec.UNSET else asked.known
    return context.store.configure(asked.queue, asked.settings, known=known)


def _command(call: Call[A, R], serve: Callable[[Context, A], R]) -> dict[str, Command]:
    """Return the command of a call that needs nothing of its request but the arguments."""
    return {call.command: Command(lambda context, request: serve(context, request.read(call.arguments)))}


STORE_COMMANDS: Mapping[str, Command] = {
    calls.PUBLISH.command: Command(_publish, Kind.PUBLISH),
    calls.SETTLE.command: Command(_settle, Kind.SETTLE),
    calls.EXTEND.command: Command(_extend, Kind.EXTEND),
    calls.LEASE.command: Command(_lease),
    **_command(calls.EXPIRED, _expired),
    **_command(calls.NOW, lambda context, asked: context.store.now()),
    **_command(calls.NEXT_DUE, lambda context, asked: calls.Maybe(context.store.next_due(asked.queue))),
    **_command(calls.COUNTS, lambda context, asked: context.store.counts(asked.queue)),
    **_command(calls.COUNTERS, lambda context, asked: context.store.counters(asked.queue)),
    **_command(calls.CONSUMERS, lambda context, asked: context.store.consumers()),
    **_command(calls.OLDEST, lambda context, asked: calls.Maybe(context.store.oldest(asked.queue, State(asked.state)))),
    **_command(calls.BROWSE, _browse),
    **_command(calls.FIND, _find),
    **_command(calls.REVIVE, lambda context, asked: context.store.revive(asked.queue, asked.ids)),
    **_command(
        calls.CANCEL,
        lambda context, asked: context.store.cancel(asked.queue, asked.ids, inflight=asked.inflight),
    ),
    **_command(calls.PURGE, _purge),
    **_command(calls.TRIM, _trim),
    **_command(calls.DELETE, lambda context, asked: context.delete(asked.queue, force=asked.force)),
    **_command(calls.QUEUES, lambda context, asked: context.store.queues()),
    **_command(calls.SETTINGS, _settings),
    **_command(calls.CONFIGURE, _configure),
    **_command(calls.FACTS, lambda context, asked: dict(context.store.facts())),
    **_command(
        calls.CHECK,
        lambda context, asked: context.store.check(repair=asked.repair) if isinstance(context.store, Checkable) else [],
    ),
    **_command(calls.WATCH, lambda context, asked: [context.register_wakeup(queue) for queue in asked.queues]),
}
