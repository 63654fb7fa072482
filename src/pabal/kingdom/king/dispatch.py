"""Events become tasks: leased by class, judged by gate and cap, each settled together with its task in one step.

Killed at any moment, a King leaves an event pending or dispatched with exactly one task: the two are one settlement,
and the event's id is the task's dedup key as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from pabal.delivery import Delivery
from pabal.errors import InvalidInput
from pabal.kingdom.documents import ANSWERS, CHATS, Event, Notice, Task, read, stamp
from pabal.kingdom.gate import Health, read_health
from pabal.kingdom.home import Home
from pabal.kingdom.king.archive import Archive
from pabal.kingdom.king.classes import Classes
from pabal.kingdom.king.resume import Orders, discarded, resume
from pabal.kingdom.layout import EVENTS, TASKS
from pabal.kingdom.routing import Routing
from pabal.store import Draft, FailureCode, Outcome, Settlement, State

BATCH = 200  # events settled in one call
_ROUNDS = 5  # batches in one pass
_ACTIVE = (State.READY, State.DELAYED, State.INFLIGHT)


class Dispatch:
    """A task of the King's service."""

    def __init__(self, home: Home, routing: Routing, archive: Archive) -> None:
        self._home = home
        self._routing = routing
        self._archive = archive
        self._classes = Classes(home)
        self._warning = ""
        self._mistake = ""
        self._more = False

    def step(self) -> None:
        if self._home.king_problem != self._mistake:
            self._mistake = self._home.king_problem
            if self._mistake:
                self._home.journal.note("system.warning", "king", problem=self._mistake)
        if self._routing.refresh():
            for problem in self._routing.table.problems:
                self._home.journal.note("system.warning", "king", problem=problem)
        self._more = any([self._answers() >= BATCH, self._rounds() >= BATCH * _ROUNDS])

    def next_due(self) -> float:
        return 0.0 if self._more else self._home.king.intervals.event_check_seconds

    def _answers(self) -> int:
        """People who answered do not wait for gate and cap."""
        found = self._home.queue(EVENTS, "answer").lease(BATCH, self._home.config.lease_seconds)
        self._settle(found)
        return len(found)

    def _rounds(self) -> int:
        admitted = self._health().admitted
        room = min(BATCH * _ROUNDS, room_for_tasks(self._home)) if admitted else 0
        total = 0
        while total < room:
            found = self._classes.lease(admitted, min(BATCH, room - total))
            self._settle(found)
            total += len(found)
            if len(found) < BATCH:
                break
        return total

    def _health(self) -> Health:
        health = health_of(self._home)
        if health.warning != self._warning:
            self._warning = health.warning
            if health.warning:
                self._home.journal.note("system.resource_warning", "king", reason=health.warning)
        return health

    def _settle(self, deliveries: Sequence[Delivery]) -> None:
        """Settle all of them in one call, then archive those of which nothing comes."""
        if not deliveries:
            return
        queue = self._home.queue(EVENTS)
        ids = iter(self._home.task_ids.take(len(deliveries)))
        self._home.notice_ids.expect(len(deliveries))
        given: list[tuple[Delivery, Orders]] = []
        for delivery in deliveries:
            try:
                given.append((delivery, self._orders(read(Event, delivery.message.body), next(ids))))
            except InvalidInput as exc:
                delivery.fail(FailureCode.VALIDATION_ERROR, f"{exc.code}: {exc}", final=True)
        settlements = [
            Settlement(delivery.receipt, queue.done(orders.then)._replace(failure=orders.failure))
            for delivery, orders in given
        ]
        outcomes = self._home.store.settle(settlements) if settlements else []
        done = [pair for pair, outcome in zip(given, outcomes, strict=True) if outcome is Outcome.APPLIED]
        self._note(done)
        self._archive.complete({d.message.id: o.failure.reason for d, o in done if o.failure})

    def _note(self, done: Sequence[tuple[Delivery, Orders]]) -> None:
        note = self._home.journal.note
        for delivery, orders in done:
            if orders.failure:
                note("event.discarded", "king", event=delivery.message.id, reason=orders.failure.reason)
            elif orders.task:
                task = orders.task
                kind = "task.resumed" if task.type == "resume" else "task.created"
                note("event.dispatched", "king", event=task.event_id, task=task.id)
                note(kind, "king", task=task.id, general=task.target_general, type=task.type)

    def _orders(self, event: Event, task_id: str) -> Orders:
        if event.type in ANSWERS:
            return resume(self._home, self._routing.table, event, task_id)
        manifest = self._routing.table.find(event.type)
        if manifest is None:
            return self._unclaimed(event)
        task = Task(
            id=task_id,
            event_id=event.id,
            target_general=manifest.name,
            type=event.type,
            repo=event.repo or manifest.default_repo,
            payload=event.payload,
            priority=event.priority,
            created_at=stamp(self._home.clock.now()),
        )
        return Orders((self._home.draft(task), self._home.draft(start_notice(self._home, task, task.type))), task=task)

    def _unclaimed(self, event: Event) -> Orders:
        """Nobody subscribes to it: a person who wrote is told so, anything else is told to the journal alone."""
        reason = f"no general subscribes to {event.type}"
        then: tuple[Draft, ...] = ()
        payload = event.payload
        if event.type in CHATS and payload.get("channel"):
            generals = ", ".join(sorted(self._routing.table.generals)) or "none yet"
            answer = self._home.notice(
                "thread_reply",
                f"No general takes messages like this one. There are: {generals}.",
                channel=str(payload["channel"]),
                thread_ts=str(payload.get("thread_ts") or payload.get("message_ts") or ""),
            )
            then = (self._home.draft(answer),)
        return discarded(self._home, event, "NoSubscriber", reason, then)


def start_notice(home: Home, task: Task, type: str) -> Notice:
    """Return the notice that opens the thread of a task."""
    content = f"[start] {type}" + (f" — {task.repo}" if task.repo else "")
    return home.notice("thread_start", content, task_id=task.id)


def health_of(home: Home) -> Health:
    """Read the gate."""
    gate = home.king.gate
    return read_health(home.root, home.clock.now(), gate.stale_seconds) if gate.enabled else Health("green")


def room_for_tasks(home: Home) -> int:
    """Return how many more tasks the cap allows: those that wait for their general count like those that run."""
    counts = home.queue(TASKS).counts()
    return max(0, home.king.concurrency.max_soldiers - sum(counts[state] for state in _ACTIVE))
