"""What the four queues do with their documents: nothing is given up for being tried often, except a task that kills.

A task that brought its general down ten times is not tried again: its result says so, as one step with its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pabal.errors import InvalidInput
from pabal.judge import Letters
from pabal.kingdom.config import System
from pabal.kingdom.documents import Result, Task, read, stamp
from pabal.kingdom.layout import EVENTS, MESSAGES, RESULTS, TASKS
from pabal.message import Message
from pabal.policy import Backoff, DeadLetterPolicy, Policy, RetryPolicy
from pabal.store import Draft, Failure

if TYPE_CHECKING:
    from pabal.kingdom.home import Home

_DAY = 86400.0
_ALWAYS = 1_000_000
CRASHES = 10  # of its general, after which a task is taken to be the cause


def of(config: System) -> dict[str, Policy]:
    """Return the policy of each queue."""

    def policy(tries: int, keep_days: float, *, poison: int = 0) -> Policy:
        return Policy(
            visibility=config.lease_seconds,
            retry=RetryPolicy(limit=tries, backoff=Backoff.FIXED, initial=0.0, max=0.0, poison_limit=poison),
            dead_letters=DeadLetterPolicy(retention_days=30),
            dedup_window=7 * _DAY,
            done_retention=keep_days * _DAY,
        )

    tasks = policy(_ALWAYS, 7, poison=CRASHES)
    return {EVENTS: policy(_ALWAYS, 30), TASKS: tasks, RESULTS: policy(_ALWAYS, 7), MESSAGES: policy(_ALWAYS, 7)}


def no_letters(policy: Policy, queue: str, message: Message, failure: Failure) -> tuple[Draft, ...]:
    return ()


def letters(home: Home) -> Letters:
    """Return what is published when a task dies: the result that says why."""

    def write(policy: Policy, queue: str, message: Message, failure: Failure) -> tuple[Draft, ...]:
        try:
            task = read(Task, message.body)
        except InvalidInput:
            return ()
        result = Result(
            task_id=task.id,
            status="failed",
            summary="given up",
            error=f"{failure.code}: {failure.reason}"[:2000],
            event_id=task.event_id,
            target_general=task.target_general,
            type=task.type,
            repo=task.repo,
            completed_at=stamp(failure.at),
        )
        return (home.draft(result),)

    return write
