"""Dispatch: events become tasks, within the resource gate and the limit of soldiers.

An event and its task are settled in one step, and the event's id is the task's dedup key. So a King that is killed at
any moment leaves an event that is pending, or dispatched with exactly one task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple

from pabal.apps.kingdom.documents import ANSWERS, CHATS, PRIORITIES, Event, Notice, Task, event_of, stamp
from pabal.apps.kingdom.health import Health, read_health
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.archive import REPEATED, Archive, Ending
from pabal.apps.kingdom.king.resume import EventOutcome, discarded, resume
from pabal.apps.kingdom.layout import EVENTS, TASKS
from pabal.apps.kingdom.manifests import Routing, Table, external_problems
from pabal.apps.kingdom.outside_tasks import outside_tasks
from pabal.errors import InvalidInput
from pabal.queues.delivery import Delivery
from pabal.store import Draft, FailureCode, Outcome, Retry, Settlement, State

BATCH = 200  # events settled in one call
_ROUNDS = 5  # batches in one pass
_LOOK = 100_000  # waiting events that are read at once
_FEW = 200  # waiting events that are read anew for each dispatch
_CHECK_AGED = 60.0  # seconds after which aged events are searched for again


class Dispatch:
    """A task of the King's service."""

    def __init__(self, home: Home, routing: Routing, archive: Archive) -> None:
        self._home = home
        self._routing = routing
        self._archive = archive
        self._selection = Selection(home)
        self._warning = ""
        self._mistake = ""
        self._more = False

    def step(self) -> None:
        if self._home.king_problem != self._mistake:
            self._mistake = self._home.king_problem
            if self._mistake:
                self._home.journal.note("system.warning", "king", problem=self._mistake)
        if self._routing.refresh():
            table = self._routing.table
            for problem in (*table.problems, *external_problems(self._home, table)):
                self._home.journal.note("system.warning", "king", problem=problem)
        self._archive.catch_up_repeated()
        admission = Admission(self._home, self._routing.table)
        self._warn(admission.health)
        answers = self._home.queue(EVENTS, "answer").lease(BATCH, visibility=self._home.config.lease_seconds)
        # Answers of people do not wait for the gate and the limit.
        admission = self._settle(answers, admission)
        total = 0
        while total < BATCH * _ROUNDS and (found := self._selection.lease(admission)):
            admission = self._settle(found, admission, chosen=self._selection.chosen)
            total += len(found)
        self._more = len(answers) >= BATCH or total >= BATCH * _ROUNDS

    def next_due(self) -> float:
        return 0.0 if self._more else self._home.king.intervals.event_check_seconds

    def _warn(self, health: Health) -> None:
        if health.warning != self._warning:
            self._warning = health.warning
            if health.warning:
                self._home.journal.note("system.resource_warning", "king", reason=health.warning)

    def _settle(self, deliveries: Sequence[Delivery], admission: Admission, chosen: Collection[str] = ()) -> Admission:
        """Settle events in one call, then archive those that were discarded; return what is admitted afterwards."""
        if not deliveries:
            return admission
        queue = self._home.queue(EVENTS)
        handled = self._archive.handled([delivery.message.id for delivery in deliveries])
        self._home.task_ids.expect(len(deliveries))
        self._home.notice_ids.expect(len(deliveries))
        decided: list[tuple[Delivery, EventOutcome]] = []
        settlements: list[Settlement] = []
        for delivery in deliveries:
            try:
                event = event_of(delivery.message)
            except InvalidInput as exc:
                delivery.fail(FailureCode.VALIDATION_ERROR, f"{exc.code}: {exc}", final=True)
                continue
            if event.id not in chosen and event.type not in ANSWERS:  # it came without an address of its own
                if admission.held(event.priority, event.type):
                    self._hold(delivery)
                    continue
                admission.admit(event.type)
            outcome = self._repeated(event) if event.id in handled else self._outcome(event)
            if outcome.held:
                self._hold(delivery)
                continue
            decided.append((delivery, outcome))
            settlements.append(
                Settlement(delivery.receipt, queue.settler.done(outcome.then)._replace(failure=outcome.failure))
            )
        outcomes = self._home.store.settle(settlements) if settlements else []
        done = [pair for pair, applied in zip(decided, outcomes, strict=True) if applied is Outcome.APPLIED]
        self._note(done)
        after = Admission(self._home, self._routing.table)
        self._complete(done, after)
        return after

    def _hold(self, delivery: Delivery) -> None:
        """Give back an event that must wait, until the next look."""
        pause = self._home.king.intervals.event_check_seconds
        self._home.store.settle([Settlement(delivery.receipt, Retry(pause, delivery.failure))])

    def _complete(self, done: Sequence[tuple[Delivery, EventOutcome]], after: Admission) -> None:
        """Archive the events that are over: those that were discarded, and those whose task was made long ago."""
        over = {delivery.message.id: Ending(o.failure.reason) for delivery, o in done if o.failure and not o.repeated}
        tasks = self._home.queue(TASKS)
        for delivery, outcome in done:
            if (task := outcome.task) and task.id not in after.ids and tasks.find(task.id) is None:
                over[delivery.message.id] = Ending("a task was made for an event of this id before")
        self._archive.complete(over)
        again = [(delivery.receipt, o.failure.reason) for delivery, o in done if o.failure and o.repeated]
        self._archive.complete_repeated(again)

    def _note(self, done: Sequence[tuple[Delivery, EventOutcome]]) -> None:
        note = self._home.journal.note
        for delivery, outcome in done:
            if outcome.failure:
                note("event.discarded", "king", event=delivery.message.id, reason=outcome.failure.reason)
            elif outcome.task:
                task = outcome.task
                kind = "task.resumed" if task.type == "resume" else "task.created"
                note("event.dispatched", "king", event=task.event_id, task=task.id)
                note(kind, "king", task=task.id, general=task.target_general, type=task.type)

    def _repeated(self, event: Event) -> EventOutcome:
        reason = f"an event of the id {event.id} was handled before"
        return discarded(self._home, REPEATED, reason)._replace(repeated=True)

    def _outcome(self, event: Event) -> EventOutcome:
        if event.type in ANSWERS:
            return resume(self._home, self._routing.table, event)
        manifest = self._routing.table.find(event.type)
        if manifest is None:
            return self._unclaimed(event)
        task = Task(
            id=self._home.task_ids.take()[0],
            event_id=event.id,
            target_general=manifest.name,
            type=event.type,
            repo=event.repo or manifest.default_repo,
            payload=event.payload,
            priority=event.priority,
            created_at=stamp(self._home.clock.now()),
        )
        start = self._home.draft(start_notice(self._home, task, task.type), key=f"start-{event.id}")
        return EventOutcome((self._home.draft(task), start), task=task)

    def _unclaimed(self, event: Event) -> EventOutcome:
        """Discard an event without a subscriber; the author of a chat message gets an answer."""
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
        return discarded(self._home, "NoSubscriber", reason, then)


def start_notice(home: Home, task: Task, type: str) -> Notice:
    """Return the notice that opens the thread of a task."""
    content = f"[start] {type}" + (f" — {task.repo}" if task.repo else "")
    return home.notice("thread_start", content, task_id=task.id)


def health_of(home: Home) -> Health:
    """Return the health that the gate uses."""
    gate = home.king.gate
    return read_health(home.root, home.clock.now(), gate.stale_seconds) if gate.enabled else Health("green")


class Admission:
    """Which events may be dispatched now: by the gate, the limit of soldiers, and the tasks that each general has.

    A task that runs counts as a soldier, and so does one that is about to start: one that is ready, up to the number of
    soldiers that its general may have. Tasks that wait for a retry, and those of generals that are gone, do not count.
    """

    def __init__(self, home: Home, table: Table) -> None:
        self.health = health_of(home)
        self.most = home.king.concurrency.max_soldiers
        self._table = table
        queue = home.queue(TASKS)
        entries = [entry for state in (State.READY, State.INFLIGHT) for entry in queue.entries(state)]
        outside = outside_tasks(home)
        self.ids = {*(entry.id for entry in entries), *outside}
        self._tasks = Counter(entry.message.target for entry in entries if entry.message)
        self._tasks.update(task.target_general for task in outside.values())

    @property
    def soldiers(self) -> int:
        """How many soldiers run or are about to start."""
        known = self._table.generals
        return sum(min(known[name].max_soldiers, count) for name, count in self._tasks.items() if name in known)

    def held(self, priority: str, type: str) -> str:
        """Return why an event of this priority and type waits; empty if it may be dispatched."""
        if why := self.health.held(priority):
            return why
        if self.soldiers >= self.most:
            return f"held: {self.soldiers} of {self.most} soldiers busy"
        manifest = self._table.find(type)
        if manifest is None and self._table.unusable:
            return f"held: no general subscribes to it, and {', '.join(self._table.unusable)} cannot be used"
        if manifest is not None and (count := self._tasks[manifest.name]) >= max(self.most, manifest.max_soldiers):
            return f"held: {manifest.name} has {count} tasks to do"
        return ""

    def admit(self, type: str) -> None:
        """Count an event that is dispatched."""
        if (manifest := self._table.find(type)) is not None:
            self._tasks[manifest.name] += 1


class Waiting(NamedTuple):
    """An event that waits: its place in the order of classes, and how the King leases it."""

    id: str
    rank: int
    type: str
    address: str
    since: float


class Selection:
    """Leases the events that may be dispatched: high, normal, low, and the older first.

    One dispatch in ten goes to an event of a lower class that has waited for long. Waiting events are looked at without
    a lease. They are addressed by class and type, so those that have to wait longer are not touched. Of one address the
    first ones are enough. A long list is used again until the next poll: to read it for each dispatch would take time
    that grows with its square.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._since = 0  # dispatches since one went to an aged event
        self._aged: list[Waiting] = []  # the oldest last
        self._search_at = float("-inf")
        self._list: list[Waiting] = []
        self._read_at = float("-inf")
        self.chosen: set[str] = set()

    def lease(self, admission: Admission) -> list[Delivery]:
        """Lease up to a batch of events, in the order of their dispatch. Their ids are in `chosen`.

        An event that is not among them was leased because it has no address of its own.
        """
        if not admission.health.admitted or admission.soldiers >= admission.most:
            return []
        wanted = self._choose(admission)
        self.chosen = {each.id for each in wanted}
        places = {each.id: place for place, each in enumerate(wanted)}
        seconds = self._home.config.lease_seconds
        taken: list[Delivery] = []
        for (address, rank), count in Counter((each.address, each.rank) for each in wanted).items():
            found = self._home.queue(EVENTS, address).lease(count, visibility=seconds)
            if len(found) < count:  # addressed by its class alone, by an earlier version
                found += self._home.queue(EVENTS, PRIORITIES[rank]).lease(count - len(found), visibility=seconds)
            taken += found
        gone = self.chosen | {delivery.message.id for delivery in taken}
        self._list = [each for each in self._list if each.id not in gone]
        return sorted(taken, key=lambda delivery: places.get(delivery.message.id, len(places)))

    def _choose(self, admission: Admission) -> list[Waiting]:
        chosen: dict[str, Waiting] = {}
        every = self._waiting()
        present = {each.id for each in every}
        self._aged = [each for each in self._aged if each.id in present]
        for waiting in every:
            if len(chosen) >= BATCH or admission.soldiers >= admission.most:
                break
            if waiting.id in chosen:
                continue
            due = self._since >= self._home.king.ageing.every - 1
            if due and (old := self._pop_aged(waiting.rank, admission, chosen.keys())):
                self._since = 0
                chosen[old.id] = old
                admission.admit(old.type)
                if admission.soldiers >= admission.most:
                    break
            if not admission.held(PRIORITIES[waiting.rank], waiting.type) and waiting.id not in chosen:
                chosen[waiting.id] = waiting
                self._since += 1
                admission.admit(waiting.type)
        return list(chosen.values())

    def _waiting(self) -> list[Waiting]:
        now = self._home.clock.boot()
        if len(self._list) <= _FEW or now - self._read_at >= self._home.king.intervals.event_check_seconds:
            self._list, self._read_at = self._read(), now
        return self._list

    def _read(self) -> list[Waiting]:
        found = []
        of_address: Counter[str] = Counter()
        for entry in islice(self._home.queue(EVENTS).entries(State.READY), _LOOK):
            try:
                event = event_of(entry.message) if entry.message else None
            except InvalidInput:
                event = None  # it is refused when it is leased
            message = entry.message
            if message is None or message.target == "answer":
                continue
            of_address[message.target] += 1
            if of_address[message.target] > BATCH:
                continue
            rank = PRIORITIES.index(event.priority) if event else 1
            found.append(Waiting(entry.id, rank, event.type if event else "", message.target, entry.due_at))
        return sorted(found, key=lambda waiting: waiting.rank)

    def _pop_aged(self, rank: int, admission: Admission, taken: Collection[str]) -> Waiting | None:
        """Return the oldest event of a lower class than `rank` that has waited long enough and may be dispatched."""
        now, after = self._home.clock.now(), self._home.king.ageing.after_seconds
        if not self._aged and now >= self._search_at:
            self._search_at = now + min(_CHECK_AGED, after)
            oldest = self._home.store.oldest(EVENTS, State.READY)
            if oldest is not None and now - oldest >= after:
                old = [each for each in self._waiting() if each.rank and now - each.since >= after]
                self._aged = sorted(old, key=lambda each: each.since, reverse=True)
        for place in range(len(self._aged) - 1, -1, -1):
            each = self._aged[place]
            if each.rank > rank and each.id not in taken and not admission.held(PRIORITIES[each.rank], each.type):
                return self._aged.pop(place)
        return None
