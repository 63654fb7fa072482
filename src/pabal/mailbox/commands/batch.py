"""Runs requests that wait together with as few store calls as their order allows; each gets its own answer.

The requests of one client are run in their order. Between clients there is no order to keep, since none of them was
answered yet: their requests of one kind become one store call, and so one commit.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from pabal.errors import PabalError, Refused, StoreFailed, Uncertain
from pabal.mailbox.commands.context import Command, Context, Kind, Work
from pabal.mailbox.protocol import Code, Request
from pabal.store import Draft

log = logging.getLogger("pabal")


class Job:
    """A request and its result: the data of the answer, `Later`, or the error that refuses it."""

    __slots__ = ("command", "request", "result")

    def __init__(self, request: Request, command: Command) -> None:
        self.request = request
        self.command = command
        self.result: Any = None


def run(context: Context, jobs: Iterable[Job]) -> None:
    """Give every job its result."""
    for kind, group in _rounds(jobs):
        if kind is Kind.OTHER:
            for job in group:
                _attempt(job, partial(job.command.handler, context, job.request))
        else:
            _run_together(context, kind, group)


def _rounds(jobs: Iterable[Job]) -> Iterator[tuple[Kind, list[Job]]]:
    waiting: dict[str, deque[Job]] = {}
    for job in jobs:
        waiting.setdefault(job.request.client, deque()).append(job)
    while waiting:
        found: dict[Kind, list[Job]] = {}
        for client, own in list(waiting.items()):
            kind = own[0].command.kind
            while own and own[0].command.kind is kind:
                found.setdefault(kind, []).append(own.popleft())
            if not own:
                del waiting[client]
        yield from found.items()


def _run_together(context: Context, kind: Kind, jobs: list[Job]) -> None:
    works: list[tuple[Job, Work]] = []
    for job in jobs:
        _attempt(job, partial(job.command.handler, context, job.request))
        if isinstance(job.result, Work):
            works.append((job, job.result))
    if kind is Kind.EXTEND:
        works.sort(key=lambda pair: pair[1].seconds)
        for seconds, same in groupby(works, key=lambda pair: pair[1].seconds):
            _share(list(same), partial(context.store.extend, seconds=seconds))
    elif kind is Kind.SETTLE:
        durable = any(work.durable for _, work in works)
        _share(works, partial(context.store.settle, durable=durable))
    else:
        _share(works, context.store.publish)


def _share(works: Sequence[tuple[Job, Work]], call: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    """Make one call for all. If it raises, try each half, to find the request at fault: repeating an effect is safe.

    If the store itself failed, no request is at fault. Halves would only wait for the store once more, and report that
    nothing was done although something may have been.
    """
    try:
        results = call([item for _, work in works for item in work.items])
    except Exception as exc:
        if len(works) == 1:
            works[0][0].result = _error_for(works[0][0], exc)
        elif isinstance(exc, StoreFailed | Uncertain):
            for job, work in works:
                job.result = _part_of(exc, work)
        else:
            _share(works[: len(works) // 2], call)
            _share(works[len(works) // 2 :], call)
        return
    start = 0
    for job, work in works:
        part = results[start : start + len(work.items)]
        start += len(work.items)
        _attempt(job, partial(work.finish, part))


def _attempt(job: Job, action: Callable[[], Any]) -> None:
    """Set the result or the error of a job: no request stops those after it."""
    try:
        job.result = action()
    except Exception as exc:
        job.result = _error_for(job, exc)


def _error_for(job: Job, exc: Exception) -> PabalError:
    """Return the error that the client of this job gets."""
    if isinstance(exc, PabalError):
        return exc
    fields = {"request": job.request.id, "client": job.request.client, "command": job.request.command}
    log.error("request %(request)s of %(client)s failed", fields, exc_info=exc)
    return Refused(Code.INTERNAL_ERROR, f"{type(exc).__name__}: see the manager's log", kind="PabalError")


def _part_of(exc: StoreFailed | Uncertain, work: Work) -> PabalError:
    """Return an error of a shared call for one of its requests: with the ids of its own messages only."""
    if isinstance(exc, StoreFailed):
        return exc
    own = {item.message.id for item in work.items if isinstance(item, Draft)}
    return Uncertain(str(exc), tuple(id for id in exc.ids if id in own))
