"""The suite is itself tested: each listed way of breaking a store must turn the named test red."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from pabal.message import Message, replace
from pabal.store import Dead, Done, Draft, Lease, Outcome, Published, Receipt, Retry, Settlement, State, Verdict
from pabal.stores.memory import WAITING, MemoryStore, Place, Row
from pabal.testing import ManualClock, StoreSuite


class LeasesNeverEnd(MemoryStore):
    def _lapsed(self, row: Row) -> bool:
        return False


class LeasesEndAtOnce(MemoryStore):
    def _lapsed(self, row: Row) -> bool:
        return row.state is State.INFLIGHT


class WallClockLeases(MemoryStore):
    def _grant(self, row: Row, token: str, seconds: float) -> None:
        row.token, row.deadline = token, self._clock.now() + seconds

    def _lapsed(self, row: Row) -> bool:
        return row.state is State.INFLIGHT and row.deadline <= self._clock.now()


class BootIdForgotten(MemoryStore):
    def _lapsed(self, row: Row) -> bool:
        return row.state is State.INFLIGHT and row.deadline <= self._clock.boot()


class NoFencing(MemoryStore):
    def _current(self, receipt: Receipt) -> Row | None:
        row = self._place.rows.get(receipt.queue, {}).get(receipt.id)
        return row if row and row.state is State.INFLIGHT else None


class FencedByTheClock(MemoryStore):
    def _current(self, receipt: Receipt) -> Row | None:
        row = super()._current(receipt)
        return row if row and not self._lapsed(row) else None


class TokenChangesOnExtend(MemoryStore):
    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        outcomes = super().extend(receipts, seconds)
        for receipt in receipts:
            if row := self._current(receipt):
                row.token += "x"
        return outcomes


class ExtendIgnored(MemoryStore):
    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        return [Outcome.APPLIED if self._current(receipt) else Outcome.LOST for receipt in receipts]


class DelayIgnored(MemoryStore):
    def _due(self, row: Row) -> bool:
        return True


class RetryDelayIgnored(MemoryStore):
    def _apply(self, row: Row, verdict: Verdict) -> None:
        super()._apply(row, verdict._replace(delay=0.0) if isinstance(verdict, Retry) else verdict)


class DedupForgottenAfterAck(MemoryStore):
    def _apply(self, row: Row, verdict: Verdict) -> None:
        super()._apply(row, verdict)
        if isinstance(verdict, Done):
            self._place.keys = {key: first for key, first in self._place.keys.items() if first[0] != row.id}


class DedupForEver(MemoryStore):
    def _first_id(self, draft: Draft) -> str | None:
        known = [self._place.keys.get((draft.queue, key), ("", 0.0))[0] for key in self._keys(draft)]
        return next(filter(None, known), None) or super()._first_id(draft)


class GivenIdIsNoKey(MemoryStore):
    def _first_id(self, draft: Draft) -> str | None:
        return super()._first_id(replace(draft, given_id=False))


class KeysSharedByQueues(MemoryStore):
    def _first_id(self, draft: Draft) -> str | None:
        for key in self._keys(draft):
            for (_, other), (id, until) in self._place.keys.items():
                if other == key and self._clock.now() < until:
                    return id
        return super()._first_id(draft)


class GroupOrderIgnored(MemoryStore):
    def _first_of_group(self, queue: str, row: Row) -> bool:
        return True


class GroupBlockedByInflightOnly(MemoryStore):
    def _first_of_group(self, queue: str, row: Row) -> bool:
        busy = {other.group for other in self._rows(queue) if other.state is State.INFLIGHT}
        return not row.group or row.group not in busy


class DeadHeadBlocks(MemoryStore):
    def _first_of_group(self, queue: str, row: Row) -> bool:
        dead = [other for other in self._rows(queue) if other.state is State.DEAD and other.group == row.group]
        return super()._first_of_group(queue, row) and not (row.group and dead)


class RevivedKeepsItsPlace(MemoryStore):
    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        rows = self._place.rows.get(queue, {})
        before = {id: rows[id].seq for id in ids if id in rows}
        revived = super().revive(queue, ids)
        for id in revived:
            rows[id].seq = before[id]
        return revived


class RevivedKeepsItsAttempts(MemoryStore):
    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        rows = self._place.rows.get(queue, {})
        before = {id: rows[id].attempt for id in ids if id in rows}
        revived = super().revive(queue, ids)
        for id in revived:
            rows[id].attempt = before[id]
        return revived


class RevivedAsItsDocumentSays(MemoryStore):
    def _message(self, row: Row) -> Message:
        return self._codec.decode(row.data)


class PriorityIgnored(MemoryStore):
    def _order(self, row: Row) -> tuple[int, float, str]:
        return 0, row.due_at, row.id


class SmallerPriorityFirst(MemoryStore):
    def _order(self, row: Row) -> tuple[int, float, str]:
        return row.priority, row.due_at, row.id


class DueTimeIgnored(MemoryStore):
    def _order(self, row: Row) -> tuple[int, float, str]:
        return -row.priority, 0.0, row.id


class LastInFirstOut(MemoryStore):
    def _order(self, row: Row) -> tuple[int, float, str]:
        return -row.priority, -row.due_at, row.id


class TargetIgnored(MemoryStore):
    def _meant_for(self, row: Row, consumer: str) -> bool:
        return True


class TargetedOnlyByName(MemoryStore):
    def _meant_for(self, row: Row, consumer: str) -> bool:
        return row.target == consumer


class AttemptResetOnRetry(MemoryStore):
    def _apply(self, row: Row, verdict: Verdict) -> None:
        super()._apply(row, verdict)
        if isinstance(verdict, Retry):
            row.attempt = 0


class TakeOverCountsAsAttempt(MemoryStore):
    def expired(self, queue: str, limit: int) -> list[Lease]:
        leases = super().expired(queue, limit)
        for lease in leases:
            self._place.rows[queue][lease.receipt.id].attempt += 1
        return [replace(lease, attempt=lease.attempt + 1) for lease in leases]


class ExpiredDropsMessages(MemoryStore):
    def expired(self, queue: str, limit: int) -> list[Lease]:
        for lease in super().expired(queue, limit):
            del self._place.rows[queue][lease.receipt.id]
        return []


class ExpiredKeepsTheToken(MemoryStore):
    def expired(self, queue: str, limit: int) -> list[Lease]:
        tokens = {row.id: row.token for row in self._rows(queue)}
        leases = super().expired(queue, limit)
        for lease in leases:
            self._place.rows[queue][lease.receipt.id].token = tokens[lease.receipt.id]
        return [self._lease_of(queue, self._place.rows[queue][lease.receipt.id]) for lease in leases]


class ExpiredForgetsTtl(MemoryStore):
    def _outlived(self, row: Row) -> bool:
        return False


class TtlEndsLeases(MemoryStore):
    def _outlived(self, row: Row) -> bool:
        return row.expires_at is not None and row.expires_at <= self._clock.now() and row.state is not State.DONE


class LapsedIsReadyWithoutAJudge(MemoryStore):
    def _rows(self, queue: str) -> list[Row]:
        rows = super()._rows(queue)
        for row in rows:
            if self._lapsed(row):
                self._move(row, State.READY)
        return rows


class LostStillPublishes(MemoryStore):
    def _settle_one(self, receipt: Receipt, verdict: Verdict) -> Outcome:
        outcome = super()._settle_one(receipt, verdict)
        if outcome is Outcome.LOST:
            for draft in verdict.then:
                self._put(draft)
        return outcome


class OneLostDropsAllFollowUps(MemoryStore):
    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        if all(self._current(receipt) for receipt, _ in settlements):
            return super().settle(settlements, durable=durable)
        bare = [Settlement(receipt, verdict._replace(then=())) for receipt, verdict in settlements]
        return super().settle(bare, durable=durable)


class RepeatedPublishesAgain(MemoryStore):
    def _settle_one(self, receipt: Receipt, verdict: Verdict) -> Outcome:
        outcome = super()._settle_one(receipt, verdict)
        if outcome is Outcome.REPEATED:
            for draft in verdict.then:
                self._put(replace(draft, given_id=False, message=_renamed(draft)))
        return outcome


class FollowUpsForgotten(MemoryStore):
    def _settle_one(self, receipt: Receipt, verdict: Verdict) -> Outcome:
        return super()._settle_one(receipt, verdict._replace(then=()))


class FollowUpsObeyMaxWaiting(MemoryStore):
    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        for _, verdict in settlements:
            if verdict.then:
                self._check_room(verdict.then)
        return super().settle(settlements, durable=durable)


class RepeatIsLost(MemoryStore):
    def _settle_one(self, receipt: Receipt, verdict: Verdict) -> Outcome:
        outcome = super()._settle_one(receipt, verdict)
        return Outcome.LOST if outcome is Outcome.REPEATED else outcome


class AnyVerdictRepeats(MemoryStore):
    def _settle_one(self, receipt: Receipt, verdict: Verdict) -> Outcome:
        row = self._place.rows.get(receipt.queue, {}).get(receipt.id)
        if row and row.settled_by and row.settled_by[0] == receipt.token:
            return Outcome.REPEATED
        return super()._settle_one(receipt, verdict)


class AckLeavesTheMessage(MemoryStore):
    def _apply(self, row: Row, verdict: Verdict) -> None:
        if not isinstance(verdict, Done):
            super()._apply(row, verdict)


class DeadDropsTheMessage(MemoryStore):
    def _apply(self, row: Row, verdict: Verdict) -> None:
        super()._apply(row, Done() if isinstance(verdict, Dead) else verdict)


class FailureForgotten(MemoryStore):
    def _apply(self, row: Row, verdict: Verdict) -> None:
        super()._apply(row, verdict)
        row.failure = None


class TokenRepeatLeasesMore(MemoryStore):
    def lease(self, queue: str, limit: int, seconds: float, **more: Any) -> list[Lease]:
        held = super().lease(queue, limit, seconds, **more)
        left = limit - len(held)
        return held + (super().lease(queue, left, seconds, **more | {"token": ""}) if left > 0 else [])


class TokenIgnored(MemoryStore):
    def lease(self, queue: str, limit: int, seconds: float, **more: Any) -> list[Lease]:
        return super().lease(queue, limit, seconds, **more | {"token": ""})


class LimitIgnored(MemoryStore):
    def lease(self, queue: str, limit: int, seconds: float, **more: Any) -> list[Lease]:
        return super().lease(queue, 10**6, seconds, **more)


class SuccessiveIgnored(MemoryStore):
    def _successors(self, queue: str, first: Row, consumer: str) -> list[Row]:
        return []


class SuccessiveOvertakesADelayedOne(MemoryStore):
    def _successors(self, queue: str, first: Row, consumer: str) -> list[Row]:
        rows = [row for row in self._rows(queue) if row.group == first.group and self._may_be_leased(row, consumer)]
        return sorted((row for row in rows if row.seq > first.seq), key=lambda row: row.seq)


class GroupOpensWhenItsFirstIsSettled(MemoryStore):
    def _first_of_group(self, queue: str, row: Row) -> bool:
        others = [other for other in self._rows(queue) if other.group == row.group and other.seq < row.seq]
        return not row.group or not any(other.state in (*WAITING, State.INFLIGHT) for other in others)


class TokenRepeatForgetsTheGroupOrder(MemoryStore):
    def _by_group(self, rows: list[Row]) -> list[Row]:
        return sorted(rows, key=self._order)


class LeasedByAll(MemoryStore):
    def _hold(self, queue: str, row: Row, token: str, seconds: float, attempt: int = 0) -> Lease:
        lease = super()._hold(queue, row, token, seconds, attempt)
        row.state = State.READY
        return lease


class UniqueWhileItWaitsOnly(MemoryStore):
    def _live_id(self, draft: Draft) -> str | None:
        id = super()._live_id(draft)
        return id if id and self._place.rows[draft.queue][id].state in WAITING else None


class UniqueForEver(MemoryStore):
    def _live_id(self, draft: Draft) -> str | None:
        return self._place.unique.get((draft.queue, draft.message.unique)) if draft.message.unique else None


class UniqueIgnored(MemoryStore):
    def _live_id(self, draft: Draft) -> str | None:
        return None


class CancelSparesTheHolder(MemoryStore):
    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        held = {row.id: row.token for row in self._rows(queue) if row.state is State.INFLIGHT}
        found = super().cancel(queue, ids, inflight=inflight)
        for id in filter(held.get, found):
            self._place.rows[queue][id].settled_by = held[id], Done
        return found


class CancelTakesInflight(MemoryStore):
    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        return super().cancel(queue, ids, inflight=True)


class CancelForgets(MemoryStore):
    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        found = super().cancel(queue, ids, inflight=inflight)
        for id in found:
            del self._place.rows[queue][id]
        return found


class PurgeTakesInflight(MemoryStore):
    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        if state is not State.INFLIGHT:
            return super().purge(queue, state, age=age, limit=limit, ids=ids)
        held = [row.id for row in self._rows(queue) if row.state is state]
        for id in held:
            del self._place.rows[queue][id]
        return len(held)


class PurgeIgnoresAge(MemoryStore):
    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        return super().purge(queue, state, limit=limit, ids=ids)


class TrimTrustsTheWallClock(MemoryStore):
    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        return self.purge(queue, state, age=age, limit=limit)


class TrimNever(MemoryStore):
    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        return 0


class SizeInCharacters(MemoryStore):
    def _admit(self, draft: Draft) -> None:
        super()._admit(replace(draft, terms=draft.terms._replace(max_bytes=draft.terms.max_bytes + 1)))


class RoomForOneMore(MemoryStore):
    def _check_room(self, drafts: Sequence[Draft]) -> None:
        terms = drafts[0].terms
        more = terms._replace(max_waiting=terms.max_waiting + 1 if terms.max_waiting else 0)
        super()._check_room([replace(drafts[0], terms=more), *drafts[1:]])


class PartOfABatchStays(MemoryStore):
    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        return [answer for draft in drafts for answer in super(PartOfABatchStays, self).publish([draft])]


class DamagedIsDropped(MemoryStore):
    def _readable(self, row: Row) -> bool:
        if super()._readable(row):
            return True
        row.state = State.DONE
        return False


class BellForgotten(MemoryStore):
    def _ring(self) -> None:
        pass


class BellRingsForReadyOnly(MemoryStore):
    def _put(self, draft: Draft) -> Published:
        bell = self._place.bell
        answer = super()._put(draft)
        if draft.delay > 0:
            self._place.bell = bell
        return answer


class DelaysCountAsNothingDue(MemoryStore):
    def _waits(self, row: Row) -> list[float]:
        return [] if row.state in WAITING else super()._waits(row)


def _renamed(draft: Draft) -> Message:
    return msgspec.structs.replace(draft.message, id=draft.message.id + ".again")


class ClockOfItsOwn(MemoryStore):
    def now(self) -> float:
        return super().now() + 600


# Each mutant with the test that was written against it.
MUTANTS: dict[type[MemoryStore], str] = {
    LeasesNeverEnd: "test_g3_an_expired_lease_is_ready_again",
    LeasesEndAtOnce: "test_g3_an_expired_lease_is_ready_again",
    WallClockLeases: "test_g11_a_step_of_the_wall_clock_ends_no_lease_early_or_late",
    BootIdForgotten: "test_g11_a_lease_of_another_boot_has_run_out",
    NoFencing: "test_g5_every_late_verdict_after_the_take_over_is_lost",
    FencedByTheClock: "test_g5_a_late_ack_before_the_take_over_counts",
    TokenChangesOnExtend: "test_extend_lets_the_lease_end_later_and_keeps_the_token",
    ExtendIgnored: "test_extend_lets_the_lease_end_later_and_keeps_the_token",
    DelayIgnored: "test_a_delayed_message_is_not_leased_before_it_is_due",
    RetryDelayIgnored: "test_retry_brings_it_back_after_its_delay_with_its_failure",
    DedupForgottenAfterAck: "test_g6_a_dedup_key_is_remembered_after_ack_and_death",
    DedupForEver: "test_g6_a_dedup_key_is_forgotten_when_its_window_is_over",
    GivenIdIsNoKey: "test_g6_a_given_id_is_its_own_key_in_every_state",
    KeysSharedByQueues: "test_g6_keys_are_the_queues_own",
    GroupOrderIgnored: "test_g4_a_group_is_delivered_in_publish_order_whatever_the_priority",
    GroupBlockedByInflightOnly: "test_g4_a_delayed_head_blocks_its_group",
    SuccessiveIgnored: "test_g4_a_lease_of_successive_messages_takes_a_group_after_the_other",
    SuccessiveOvertakesADelayedOne: "test_g4_a_lease_of_successive_messages_stops_at_a_delayed_one",
    GroupOpensWhenItsFirstIsSettled: "test_g4_a_group_stays_locked_until_all_of_a_lease_are_settled",
    TokenRepeatForgetsTheGroupOrder: "test_g4_a_repeated_token_gives_a_group_in_order_again",
    DeadHeadBlocks: "test_g4_a_dead_head_lets_the_next_come",
    RevivedKeepsItsPlace: "test_g4_a_revived_message_joins_the_end_of_its_group",
    RevivedKeepsItsAttempts: "test_revive_makes_dead_messages_ready_with_no_attempts",
    RevivedAsItsDocumentSays: "test_a_revived_message_is_given_with_no_time_to_live",
    PriorityIgnored: "test_g4_the_larger_priority_comes_first",
    SmallerPriorityFirst: "test_g4_the_larger_priority_comes_first",
    DueTimeIgnored: "test_g4_at_one_priority_what_was_due_first_comes_first",
    LastInFirstOut: "test_g4_at_one_priority_what_was_due_first_comes_first",
    TargetIgnored: "test_a_message_with_a_target_is_leased_by_its_target_only",
    TargetedOnlyByName: "test_a_message_with_a_target_is_leased_by_its_target_only",
    AttemptResetOnRetry: "test_g8_attempts_rise_with_every_lease",
    TakeOverCountsAsAttempt: "test_g8_attempts_rise_with_every_lease",
    ExpiredDropsMessages: "test_g3_an_expired_lease_is_ready_again",
    ExpiredKeepsTheToken: "test_g5_every_late_verdict_after_the_take_over_is_lost",
    ExpiredForgetsTtl: "test_a_waiting_message_past_its_time_is_taken_over",
    TtlEndsLeases: "test_an_inflight_message_does_not_expire_by_its_ttl",
    LapsedIsReadyWithoutAJudge: "test_g3_a_lease_that_ran_out_waits_for_a_judge",
    LostStillPublishes: "test_g5_a_lost_verdict_drops_its_own_follow_ups_and_no_others",
    OneLostDropsAllFollowUps: "test_g5_a_lost_verdict_drops_its_own_follow_ups_and_no_others",
    RepeatedPublishesAgain: "test_every_verdict_can_have_follow_ups",
    FollowUpsForgotten: "test_follow_ups_go_to_their_queues_with_the_verdict",
    FollowUpsObeyMaxWaiting: "test_follow_ups_are_never_kept_out_by_max_waiting",
    RepeatIsLost: "test_g5_repeating_a_verdict_is_harmless",
    AnyVerdictRepeats: "test_g5_another_verdict_with_the_same_receipt_is_lost",
    AckLeavesTheMessage: "test_done_is_never_delivered_again",
    DeadDropsTheMessage: "test_dead_is_set_aside_with_its_failure",
    FailureForgotten: "test_a_failure_may_say_anything",
    TokenRepeatLeasesMore: "test_a_token_that_holds_messages_gives_those_again",
    TokenIgnored: "test_a_token_that_holds_messages_gives_those_again",
    LimitIgnored: "test_a_lease_takes_no_more_than_its_limit",
    LeasedByAll: "test_g2_a_leased_message_is_nobody_elses",
    UniqueWhileItWaitsOnly: "test_g12_a_unique_key_is_taken_until_its_message_is_done_or_dead",
    UniqueForEver: "test_g12_a_unique_key_is_taken_until_its_message_is_done_or_dead",
    UniqueIgnored: "test_g12_of_publishers_at_the_same_time_one_stores",
    CancelSparesTheHolder: "test_g13_what_waits_is_cancelled_and_what_is_held_only_if_asked",
    CancelTakesInflight: "test_g13_what_waits_is_cancelled_and_what_is_held_only_if_asked",
    CancelForgets: "test_g13_what_waits_is_cancelled_and_what_is_held_only_if_asked",
    ClockOfItsOwn: "test_g14_no_occurrence_is_lost_or_comes_twice_although_clocks_differ",
    PurgeTakesInflight: "test_purge_never_takes_what_is_inflight",
    PurgeIgnoresAge: "test_purge_spares_what_is_younger_than_age",
    TrimTrustsTheWallClock: "test_trim_removes_nothing_for_a_clock_that_jumped",
    TrimNever: "test_trim_removes_what_is_too_old_after_a_while",
    SizeInCharacters: "test_a_document_of_max_bytes_is_the_largest_taken",
    RoomForOneMore: "test_a_queue_takes_exactly_max_waiting",
    PartOfABatchStays: "test_one_too_large_message_keeps_the_whole_batch_out",
    DamagedIsDropped: "test_g10_a_damaged_message_is_set_aside_and_all_else_is_served",
    BellForgotten: "test_a_watch_rings_for_a_queue_that_did_not_exist",
    BellRingsForReadyOnly: "test_a_watch_rings_for_what_another_handle_does",
    DelaysCountAsNothingDue: "test_next_due_is_the_earliest_thing_time_will_do",
}

# Schedules and replies stand on several guarantees: each of them, broken, must show there too.
OTHERS: list[tuple[type[MemoryStore], str]] = [
    (FollowUpsForgotten, "test_g14_no_occurrence_is_lost_or_comes_twice_although_clocks_differ"),
    (LostStillPublishes, "test_g14_a_consumer_that_lost_the_schedule_publishes_nothing"),
    (FollowUpsForgotten, "test_g15_a_reply_comes_with_the_ack_and_can_be_asked_for_again"),
    (LostStillPublishes, "test_g15_the_reply_of_a_consumer_that_lost_its_lease_is_not_sent"),
]


def cases(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Give the arguments of each case of a test, as its `parametrize` lists them."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    if not marks:
        yield {}
    for mark in marks:
        yield from ({mark.args[0]: value} for value in mark.args[1])


def passes(test: str, kind: type[MemoryStore]) -> bool:
    """Run every case of one test of the suite on a store of this kind; say whether all pass."""
    function = getattr(StoreSuite, test)
    for case in cases(function):
        place, clock = Place(), ManualClock()
        store = kind(place, clock=clock)
        given = {"store": store, "clock": clock, "reopen": lambda: kind(place, clock=clock), "damage": store.damage}  # noqa: B023  called within this turn
        names = inspect.signature(function).parameters.keys() - {"self"} - case.keys()
        try:
            function(StoreSuite(), **{name: given[name] for name in names}, **case)
        except Exception:
            return False
        except pytest.fail.Exception:
            return False
    return True


@pytest.mark.parametrize(("mutant", "test"), [*MUTANTS.items(), *OTHERS])
def test_every_mutant_turns_its_test_red(mutant: type[MemoryStore], test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pabal.testing.store_suite_sharing.RING_SECONDS", 0.2)
    assert passes(test, MemoryStore), "the store without the fault must pass"
    assert not passes(test, mutant)
