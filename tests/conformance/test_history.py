"""The checker is itself tested: sound histories pass, and every harmful change to one is found."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pabal.clock import SystemClock
from pabal.message import Message
from pabal.store import Dead, Done, Draft, Failure, Lease, Outcome, Retry, Settlement, State
from pabal.stores.memory import MemoryStore, Place
from pabal.testing import Event, History, ManualClock, check_history, read_history
from pabal.testing.history import body_hash

QUEUES = ("jobs", "next")
SEEDS = range(80)


class Simulation:
    """Processes that work on the model and write down what they do, one step at a time; some die at it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(Place(), clock=self.clock)
        self.events: list[Event] = []
        self.held: list[Lease] = []
        self.made = 0

    def note(self, op: str, phase: str = "ok", **facts: Any) -> float:
        self.clock.advance(0.001)
        self.events.append(Event(t=self.clock.boot(), op=op, phase=phase, proc="sim", **facts))
        return self.clock.boot()

    def run(self) -> list[Event]:
        steps = [self.publish, self.publish, self.lease, self.lease, self.settle, self.settle, self.extend, self.sweep]
        for _ in range(60):
            self.random.choice(steps)()
            self.clock.advance(self.random.choice((0.0, 0.01, 1.0, 12.0)))
        self.held.clear()
        self.finish()
        return self.events

    def draft(self, queue: str) -> Draft:
        self.made += 1
        group = self.random.choice(("", "", "red", "blue"))
        return Draft(queue, Message(id=f"m-{self.made:03d}", body=self.made, group=group and f"{queue} {group}"))

    def publish(self) -> None:
        drafts = [self.draft("jobs") for _ in range(self.random.choice((1, 1, 3)))]
        self.invoke_publish(drafts)
        if self.random.random() < 0.9:
            self.store.publish(drafts)
        elif self.random.random() < 0.5:
            return  # killed before it was written
        if self.random.random() < 0.9 and all(self.store.find(d.queue, d.message.id) for d in drafts):
            for draft in drafts:
                self.note("publish", id=draft.message.id)

    def invoke_publish(self, drafts: list[Draft], receipt: str = "") -> None:
        for draft in drafts:
            facts = {"group": draft.message.group, "body_hash": body_hash(draft.message.body)}
            self.note("publish", "invoke", id=draft.message.id, receipt=receipt, **facts)

    def lease(self) -> None:
        since, seconds = self.clock.boot(), self.random.choice((5.0, 20.0))
        leases = self.store.lease(self.random.choice(QUEUES), 2, seconds)
        if self.random.random() < 0.9:
            self.note_leases("lease", leases, since, seconds)
            self.held += leases

    def note_leases(self, op: str, leases: list[Lease], since: float, seconds: float) -> None:
        for lease in leases:
            message = lease.message
            facts: dict[str, Any] = {
                "id": message.id,
                "receipt": str(lease.receipt),
                "group": message.group,
                "since": since,
            }
            self.note(op, body_hash=body_hash(message.body), attempt=lease.attempt, seconds=seconds, **facts)

    def settle(self) -> None:
        if self.held:
            lease = self.held.pop(self.random.randrange(len(self.held)))
            self.judge(lease, self.random.choice(("ack", "ack", "ack", "nack", "dead")))

    def judge(self, lease: Lease, op: str) -> None:
        then = tuple(self.draft("next") for _ in range(self.random.choice((0, 0, 2))))
        failure = Failure("NACKED")
        verdict = {"ack": Done(then), "nack": Retry(2.0, failure, then), "dead": Dead(failure, then)}[op]
        facts = {"id": lease.receipt.id, "receipt": str(lease.receipt)}
        self.note(op, "invoke", **facts)
        self.invoke_publish(list(then), receipt=str(lease.receipt))
        if self.random.random() < 0.05:
            return  # killed before it was written
        (outcome,) = self.store.settle([Settlement(lease.receipt, verdict)])  # type: ignore[arg-type]  # one of three
        if self.random.random() < 0.9:
            phase = "fail" if outcome is Outcome.LOST else "ok"
            self.note(op, phase, **facts)
            for draft in then:
                self.note("publish", phase, id=draft.message.id, receipt=str(lease.receipt))

    def extend(self) -> None:
        for lease in self.held[:1]:
            facts = {"id": lease.receipt.id, "receipt": str(lease.receipt), "seconds": 20.0}
            since = self.note("extend", "invoke", **facts)
            (outcome,) = self.store.extend([lease.receipt], 20.0)
            self.note("extend", "fail" if outcome is Outcome.LOST else "ok", since=since, **facts)

    def sweep(self) -> None:
        for queue in QUEUES:
            since = self.clock.boot()
            leases = self.store.expired(queue, 10)
            self.note_leases("expired", leases, since, 30.0)
            for lease in leases:
                self.judge(lease, "nack")

    def finish(self) -> None:
        for _ in range(8):
            self.clock.advance(100)
            self.sweep()
            for queue in QUEUES:
                while leases := self.store.lease(queue, 10, 20.0):
                    self.note_leases("lease", leases, self.clock.boot() - 0.001 * len(leases), 20.0)
                    for lease in leases:
                        self.note("ack", "invoke", id=lease.receipt.id, receipt=str(lease.receipt))
                        self.store.settle([Settlement(lease.receipt, Done())])
                        self.note("ack", id=lease.receipt.id, receipt=str(lease.receipt))
        for queue in QUEUES:
            for state in State:
                for entry in self.store.browse(queue, state, limit=1000):
                    whole = body_hash(entry.message.body) if entry.message else ""
                    self.note("stored", id=entry.id, state=str(state), body_hash=whole)
        self.note("drain")


# A mutation returns a changed history; it raises LookupError where the history has nothing to change that way.
Mutation: TypeAlias = Callable[[list[Event], random.Random], list[Event]]


def put(events: list[Event], *more: Event) -> list[Event]:
    return sorted([*events, *more], key=lambda event: event.t)


def change(events: list[Event], event: Event, **facts: Any) -> list[Event]:
    return put([each for each in events if each is not event], event._replace(**facts))


def some(events: list[Event], chance: random.Random, test: Callable[[Event], bool]) -> Event:
    return chance.choice([event for event in events if test(event)])


def acked(events: list[Event], chance: random.Random) -> Event:
    published = {event.id for event in events if (event.op, event.phase) == ("publish", "ok")}
    return some(events, chance, lambda event: (event.op, event.phase) == ("ack", "ok") and event.id in published)


def leased(events: list[Event], chance: random.Random) -> Event:
    return some(events, chance, lambda event: event.op == "lease")


def lose(events: list[Event], chance: random.Random) -> list[Event]:
    event = acked(events, chance)
    return [each for each in events if each.id != event.id or each.op == "publish"]


def drop_an_ack(events: list[Event], chance: random.Random) -> list[Event]:
    event = acked(events, chance)
    return [each for each in events if each.id != event.id or each.op not in ("ack", "dead")]


def replay_a_delivery(events: list[Event], chance: random.Random) -> list[Event]:
    event = acked(events, chance)
    lease = next(each for each in events if each.receipt == event.receipt)
    return put(events, lease._replace(op="lease", t=event.t + 0.0005, since=event.t + 0.0004))


def deliver_anew(events: list[Event], chance: random.Random) -> list[Event]:
    event = acked(events, chance)
    anew = Event(t=event.t + 5, op="lease", id=event.id, receipt="jobs/x/new", seconds=9.0, since=event.t + 4)
    return put(events, anew)


def give_it_to_two(events: list[Event], chance: random.Random) -> list[Event]:
    event = leased(events, chance)
    return put(events, event._replace(t=event.t + 0.0003, receipt="jobs/x/new"))


def accept_a_stale_ack(events: list[Event], chance: random.Random) -> list[Event]:
    leases = [event for event in events if event.op in ("lease", "expired")]
    pairs = [
        (old, new)
        for new in leases
        for old in leases
        if old.id == new.id and old.t < new.since and old.receipt != new.receipt
    ]
    old, new = chance.choice(pairs)
    event = Event(t=new.t + 0.0004, op=chance.choice(("ack", "nack", "extend")), id=old.id, receipt=old.receipt)
    return put(events, event._replace(phase="invoke", t=new.t + 0.0003), event)


def forge_a_receipt(events: list[Event], chance: random.Random) -> list[Event]:
    event = acked(events, chance)
    return change(events, event, receipt=event.receipt + "x")


def settle_twice_differently(events: list[Event], chance: random.Random) -> list[Event]:
    event = acked(events, chance)
    again = event._replace(op="nack", t=event.t + 1)
    return put(events, again._replace(phase="invoke"), again)


def alter_a_body(events: list[Event], chance: random.Random) -> list[Event]:
    event = some(events, chance, lambda each: each.op in ("lease", "expired", "stored") and bool(each.body_hash))
    return change(events, event, body_hash=event.body_hash[::-1] + "0")


def swap_two_bodies(events: list[Event], chance: random.Random) -> list[Event]:
    one = leased(events, chance)
    two = some(events, chance, lambda each: each.op == "lease" and each.body_hash != one.body_hash)
    return change(change(events, one, body_hash=two.body_hash), two, body_hash=one.body_hash)


def deliver_a_ghost(events: list[Event], chance: random.Random) -> list[Event]:
    return change(events, leased(events, chance), id="ghost")


def deliver_what_was_refused(events: list[Event], chance: random.Random) -> list[Event]:
    id = acked(events, chance).id
    said = some(events, chance, lambda each: each.id == id and (each.op, each.phase) == ("publish", "ok"))
    return change(events, said, phase="fail")


def deliver_before_publish(events: list[Event], chance: random.Random) -> list[Event]:
    return change(events, leased(events, chance), t=0.5)


def swap_two_of_a_group(events: list[Event], chance: random.Random) -> list[Event]:
    first: dict[str, Event] = {}
    for event in events:
        if event.op == "lease" and event.group:
            first.setdefault(event.id, event)
    said = {event.id: event.t for event in reversed(events) if (event.op, event.phase) == ("publish", "ok")}
    asked = {event.id: event.t for event in reversed(events) if (event.op, event.phase) == ("publish", "invoke")}
    pairs = [
        (one, two)
        for one in first.values()
        for two in first.values()
        if one.group == two.group and one.t < two.t and one.id in said and said[one.id] < asked[two.id]
    ]
    one, two = chance.choice(pairs)
    return change(change(events, one, t=two.t), two, t=one.t)


def bring_back_at_the_end(events: list[Event], chance: random.Random) -> list[Event]:
    id = acked(events, chance).id
    return change(events, some(events, chance, lambda each: each.op == "stored" and each.id == id), state="ready")


def leave_one_stuck(events: list[Event], chance: random.Random) -> list[Event]:
    id = acked(events, chance).id
    kept = [each for each in events if each.id != id or each.op in ("publish", "stored")]
    found = some(kept, chance, lambda each: each.op == "stored" and each.id == id)
    return change(kept, found, state=chance.choice(("ready", "delayed", "inflight")))


def tear_a_verdict(events: list[Event], chance: random.Random) -> list[Event]:
    there = {event.id for event in events if event.op == "stored"}
    child = some(events, chance, lambda each: each.op == "publish" and bool(each.receipt) and each.id in there)
    # The answer is torn off too: an uncertain verdict must not be half done either.
    unsaid = [each for each in events if each.receipt != child.receipt or each.phase == "invoke" or each.op == "lease"]
    return [each for each in unsaid if each.id != child.id or each.op == "publish"]


def count_back(events: list[Event], chance: random.Random) -> list[Event]:
    event = some(events, chance, lambda each: each.op == "lease" and each.attempt > 1 and twice_told(events, each))
    return change(events, event, attempt=chance.randrange(0, event.attempt))


def twice_told(events: list[Event], lease: Event) -> bool:
    """Say whether the lease before this one was told too, so that it is known what this one should count."""
    return any(each.op == "lease" and each.id == lease.id and each.attempt == lease.attempt - 1 for each in events)


def keep_a_lost_follow_up(events: list[Event], chance: random.Random) -> list[Event]:
    child = some(events, chance, lambda each: (each.op, each.phase) == ("publish", "fail"))
    return put(events, Event(t=events[-1].t, op="stored", id=child.id, state="ready"))


HARM: dict[Mutation, str] = {
    lose: "lost",
    drop_an_ack: "lost",
    replay_a_delivery: "resurrected",
    deliver_anew: "resurrected",
    give_it_to_two: "double_held",
    accept_a_stale_ack: "stale_accepted",
    forge_a_receipt: "stale_accepted",
    settle_twice_differently: "stale_accepted",
    alter_a_body: "altered",
    swap_two_bodies: "altered",
    deliver_a_ghost: "phantom",
    deliver_what_was_refused: "phantom",
    deliver_before_publish: "phantom",
    swap_two_of_a_group: "reordered",
    bring_back_at_the_end: "resurrected",
    leave_one_stuck: "stuck",
    tear_a_verdict: "half",
    count_back: "recounted",
    keep_a_lost_follow_up: "phantom",
}


def test_sound_histories_pass() -> None:
    for seed in SEEDS:
        report = check_history(Simulation(seed).run())
        assert report.harm == {}, f"seed {seed}"
        assert report.published > 10 and report.acked > 10


def test_every_harmful_change_is_found() -> None:
    missed, tried = [], dict.fromkeys(HARM, 0)
    for seed in SEEDS:
        events = Simulation(seed).run()
        for mutation, harm in HARM.items():
            try:
                mutated = mutation(events, random.Random(seed))
            except LookupError:
                continue
            tried[mutation] += 1
            if harm not in check_history(mutated).harm:
                missed.append((seed, mutation.__name__))
    assert missed == []
    assert sum(tried.values()) >= 1000 and min(tried.values()) >= 10, tried


def test_only_unsure_and_repeated_work_is_told_but_no_harm() -> None:
    reports = [check_history(Simulation(seed).run()) for seed in SEEDS]
    assert sum(report.uncertain for report in reports) > 100 and sum(report.duplicate for report in reports) > 100


def test_a_power_cut_may_undo_a_plain_ack_and_no_durable_one() -> None:
    def history(durable: bool) -> list[Event]:
        return [
            Event(t=1, op="publish", phase="invoke", id="m", body_hash="h"),
            Event(t=2, op="publish", id="m"),
            Event(t=3, op="lease", since=2.5, seconds=60, body_hash="h", id="m", receipt="q/m/t"),
            Event(t=4, op="ack", phase="invoke", durable=durable, id="m", receipt="q/m/t"),
            Event(t=5, op="ack", durable=durable, id="m", receipt="q/m/t"),
            Event(t=6, op="cut"),
            Event(t=7, op="stored", id="m", state="ready", body_hash="h"),
        ]

    assert check_history(history(durable=False)).harm == {}
    assert check_history(history(durable=True)).harm == {"resurrected": ("m",)}


@pytest.mark.parametrize(("cut", "harm"), [(2.0, {"double_held": ("m",), "recounted": ("m",)}), (3.0, {}), (4.5, {})])
def test_a_cut_may_undo_a_lease_that_was_asked_for_before_it_and_no_other(cut: float, harm: dict[str, object]) -> None:
    history = [
        Event(t=0, op="publish", phase="invoke", id="m", body_hash="h"),
        Event(t=1, op="publish", id="m"),
        Event(t=cut, op="cut"),
        Event(t=4, op="lease", since=2.5, seconds=60, body_hash="h", id="m", receipt="q/m/t", attempt=1),
        Event(t=6, op="lease", since=5, seconds=60, body_hash="h", id="m", receipt="q/m/u", attempt=1),
    ]
    assert check_history(sorted(history, key=lambda event: event.t)).harm == harm


def test_each_process_writes_its_own_file_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    one, two = (History(tmp_path / f"{name}.jsonl", clock=SystemClock(), seed=7) for name in ("one", "two"))
    one.note("publish", "invoke", id="m", group="g", body_hash="h")
    two.note("cut")
    one.note("publish", id="m")
    one.close()
    two.close()
    with (tmp_path / "one.jsonl").open("ab") as file:
        file.write(b'{"t": 99, "op": "pub')
    events = read_history(tmp_path.glob("*.jsonl"))
    assert [(event.proc, event.op, event.phase) for event in events] == [
        ("one", "publish", "invoke"),
        ("two", "cut", "ok"),
        ("one", "publish", "ok"),
    ]
    assert {event.seed for event in events} == {7}


@pytest.mark.parametrize("body", [None, {"b": [1, 2.5]}, b"\x00\xff", "text"])
def test_a_body_has_one_hash(body: Any) -> None:
    assert body_hash(body) == body_hash(body) != body_hash([body])
