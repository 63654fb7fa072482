"""Publish: fields that are kept, input that is refused, duplicates (G6)."""

import pytest

from pabal.errors import InvalidInput, InvalidName, NameTaken, QueueFull, QueueUnknown, TooLarge
from pabal.message import Message, replace
from pabal.store import Checkable, Done, Draft, Published, State, Store, Terms
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import (
    FAILED,
    QUEUE,
    Reopen,
    StorePlace,
    ack,
    bodies,
    bury,
    count,
    draft,
    drain,
    publish,
    settle,
    state_of,
    take,
    take_one,
    waiting,
)


class PublishTests(StorePlace):
    def test_a_published_message_comes_back_whole(self, store: Store, clock: ManualClock) -> None:
        message = Message(
            id="evt-github-123-2026-02-07T10:00:00Z",
            body={"temp": 36.5, "tags": ["a", None, True], "deep": {"er": [{}]}},
            type="reading",
            version=3,
            sender="sensor-1",
            target="worker-1",
            attributes={"zone": "north", "priority": 7, "list": [1, 2]},
            headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
            priority=-3,
            group="line 1 / Ω",
            dedup_key="device-001:1705112460",
            thread_id="t-1",
            trace_id="tr-1",
            reply_to="answers",
            created_at=1_700_000_000.25,
            expires_at=clock.now() + 1000,
        )
        assert store.publish([Draft(QUEUE, message)]) == [Published(message.id)]
        assert take_one(store, consumer="worker-1").message == message

    @pytest.mark.parametrize(
        "body",
        [
            None,
            False,
            0,
            -(2**63),
            2**63 - 1,
            1e-300,
            "",
            "한글 \N{GRINNING FACE} \x00 \u2028",
            [],
            {},
            {"": ""},
            [[[[[1]]]]],
            b"",
            b"\x00\xff\n",
            bytes(range(256)),
        ],
        ids=lambda body: repr(body)[:20],
    )
    def test_every_kind_of_body_comes_back(self, store: Store, body: object) -> None:
        store.publish([Draft(QUEUE, Message(id="m", body=body))])  # type: ignore[arg-type]  # every legal kind
        found = take_one(store).message.body
        assert found == body and type(found) is type(body)

    def test_a_body_of_a_mebibyte_comes_back(self, store: Store) -> None:
        terms = Terms(max_bytes=2 << 20)
        big, binary = "x" * (1 << 20), b"\xa5" * (1 << 20)
        publish(store, big, binary, terms=terms)
        assert drain(store) == [big, binary]

    def test_publish_answers_in_order_for_a_batch_over_several_queues(self, store: Store) -> None:
        batch = [draft(n, queue=f"q{n % 3}") for n in range(30)]
        assert [answer.id for answer in store.publish(batch)] == [each.message.id for each in batch]
        assert [drain(store, f"q{n}") for n in range(3)] == [list(range(n, 30, 3)) for n in range(3)]

    def test_an_empty_batch_is_no_work(self, store: Store) -> None:
        assert store.publish([]) == []

    def test_g1_what_was_published_is_there_after_reopening(self, store: Store, reopen: Reopen) -> None:
        publish(store, "now")
        publish(store, "later", delay=60)
        store.close()
        again = reopen()
        assert (count(again, State.READY), count(again, State.DELAYED)) == (1, 1)
        again.close()

    def test_a_delayed_message_is_not_leased_before_it_is_due(self, store: Store, clock: ManualClock) -> None:
        (id,) = publish(store, "later", delay=10)
        assert state_of(store, id) is State.DELAYED
        clock.advance(9.9)
        assert take(store) == []
        clock.advance(0.2)
        lease = take_one(store)
        assert lease.due_at == pytest.approx(clock.now() - 0.1, abs=0.01)

    def test_delays_follow_the_wall_clock(self, store: Store, clock: ManualClock) -> None:
        publish(store, "tomorrow", delay=86_400)
        clock.step_wall(86_401)
        assert bodies(take(store)) == ["tomorrow"]

    def test_delayed_messages_come_in_the_order_they_are_due(self, store: Store, clock: ManualClock) -> None:
        for delay in (30.0, 10.0, 20.0):
            publish(store, delay, delay=delay)
        clock.advance(60)
        publish(store, "now")
        assert drain(store) == [10.0, 20.0, 30.0, "now"]

    def test_g6_the_same_dedup_key_gives_the_first_id_and_stores_nothing(self, store: Store) -> None:
        (first,) = publish(store, "a", dedup_key="k")
        assert store.publish([draft("b", dedup_key="k")]) == [Published(first, duplicate=True)]
        assert drain(store) == ["a"]

    def test_g6_a_dedup_key_is_remembered_after_ack_and_death(self, store: Store) -> None:
        (done,) = publish(store, "done", dedup_key="k1")
        ack(store, take_one(store))
        (dead,) = publish(store, "dead", dedup_key="k2")
        bury(store, take_one(store))
        answers = store.publish([draft("x", dedup_key="k1"), draft("y", dedup_key="k2")])
        assert answers == [Published(done, duplicate=True), Published(dead, duplicate=True)]
        assert waiting(store) == 0

    def test_g6_a_dedup_key_is_remembered_by_every_state_and_handle(self, store: Store, reopen: Reopen) -> None:
        (inflight,) = publish(store, "inflight", dedup_key="k1")
        take_one(store)
        (delayed,) = publish(store, "delayed", dedup_key="k2", delay=60)
        other = reopen()
        answers = other.publish([draft("x", dedup_key="k1"), draft("y", dedup_key="k2")])
        assert answers == [Published(inflight, duplicate=True), Published(delayed, duplicate=True)]
        other.close()

    def test_g6_a_dedup_key_is_forgotten_when_its_window_is_over(self, store: Store, clock: ManualClock) -> None:
        terms = Terms(dedup_window=100)
        publish(store, "first", dedup_key="k", terms=terms)
        clock.advance(99)
        assert store.publish([draft("early", dedup_key="k", terms=terms)])[0].duplicate
        clock.advance(2)
        (again,) = store.publish([draft("late", dedup_key="k", terms=terms)])
        assert not again.duplicate
        clock.advance(99)
        assert store.publish([draft("early", dedup_key="k", terms=terms)]) == [Published(again.id, duplicate=True)]
        assert drain(store) == ["first", "late"]

    def test_g6_a_window_over_after_ack_lets_the_key_be_used_again(self, store: Store, clock: ManualClock) -> None:
        terms = Terms(dedup_window=100)
        publish(store, "first", dedup_key="k", terms=terms)
        ack(store, take_one(store))
        clock.advance(101)
        assert not store.publish([draft("second", dedup_key="k", terms=terms)])[0].duplicate
        assert drain(store) == ["second"]

    def test_g6_of_two_that_a_stepped_clock_brought_back_into_the_window_the_last_counts(
        self, store: Store, clock: ManualClock
    ) -> None:
        publish(store, "first", dedup_key="k")
        clock.step_wall(3600)
        (last,) = publish(store, "last", dedup_key="k")
        clock.step_wall(-3600)
        assert store.publish([draft("again", dedup_key="k")]) == [Published(last, duplicate=True)]

    def test_g6_keys_are_the_queues_own(self, store: Store) -> None:
        publish(store, "a", dedup_key="k")
        assert not store.publish([draft("b", queue="other", dedup_key="k")])[0].duplicate
        assert not store.publish([draft("c", dedup_key="K")])[0].duplicate

    def test_g6_a_key_twice_in_one_batch_is_one_message(self, store: Store) -> None:
        batch = [draft("a", dedup_key="k"), draft("b", dedup_key="k"), draft("c")]
        first = batch[0].message.id
        assert store.publish(batch)[:2] == [Published(first), Published(first, duplicate=True)]
        assert sorted(drain(store)) == ["a", "c"]

    def test_g6_any_text_can_be_a_dedup_key(self, store: Store) -> None:
        keys = ["../../etc/passwd", "a/b", "한글", "k" * 1024, " ", "~", "%s'\"--", "."]
        publish_all = [draft(key, dedup_key=key) for key in keys]
        assert not any(answer.duplicate for answer in store.publish(publish_all))
        assert all(answer.duplicate for answer in store.publish([draft("x", dedup_key=key) for key in keys]))

    def test_g6_a_given_id_is_its_own_key_in_every_state(self, store: Store) -> None:
        for id in ("ready", "delayed", "inflight", "done", "dead"):
            publish(store, id, id=id, delay=60 if id == "delayed" else 0, priority=9 if id != "ready" else 0)
            if id in ("inflight", "done", "dead"):
                lease = take_one(store)
                assert lease.message.body == id
                if id == "done":
                    ack(store, lease)
                if id == "dead":
                    bury(store, lease)
        for id in ("ready", "delayed", "inflight", "done", "dead"):
            assert store.publish([draft("again", id=id)]) == [Published(id, duplicate=True)], id
        assert drain(store) == ["ready"]

    def test_g6_a_given_id_is_known_while_its_tombstone_is(self, store: Store, clock: ManualClock) -> None:
        publish(store, "first", id="given")
        ack(store, take_one(store))
        clock.advance(1000)
        assert store.publish([draft("second", id="given")]) == [Published("given", duplicate=True)]
        assert store.purge(QUEUE, State.DONE) == 1
        assert store.publish([draft("third", id="given")]) == [Published("given")]
        assert drain(store) == ["third"]

    def test_g6_a_given_id_twice_in_one_batch_is_one_message(self, store: Store) -> None:
        answers = store.publish([draft("a", id="given"), draft("b", id="given")])
        assert answers == [Published("given"), Published("given", duplicate=True)]
        assert drain(store) == ["a"]

    def test_g6_the_same_id_in_two_queues_is_two_messages(self, store: Store) -> None:
        answers = store.publish([draft("a", id="given"), draft("b", id="given", queue="other")])
        assert not any(answer.duplicate for answer in answers)
        assert (drain(store), drain(store, "other")) == (["a"], ["b"])

    def test_g6_repeating_an_unsure_batch_completes_it(self, store: Store) -> None:
        batch = [draft(n, id=f"m-{n}") for n in range(6)]
        store.publish(batch[:3])
        assert [answer.duplicate for answer in store.publish(batch)] == [True] * 3 + [False] * 3
        assert drain(store) == list(range(6))

    @pytest.mark.parametrize("spare", [-1, 0, 1])
    def test_a_document_of_max_bytes_is_the_largest_taken(self, store: Store, spare: int) -> None:
        message = Message(id="m", body="x" * 100)
        size = len(self.codec.encode(message, queue=QUEUE))
        over = Draft(QUEUE, message, terms=Terms(max_bytes=size + spare))
        if spare < 0:
            with pytest.raises(TooLarge):
                store.publish([over])
            assert store.find(QUEUE, "m") is None
        else:
            assert store.publish([over]) == [Published("m")]

    def test_one_too_large_message_keeps_the_whole_batch_out(self, store: Store) -> None:
        with pytest.raises(TooLarge):
            store.publish([draft("a"), draft("x" * 1000, terms=Terms(max_bytes=500)), draft("b", queue="other")])
        assert (drain(store), drain(store, "other")) == ([], [])

    def test_a_queue_takes_exactly_max_waiting(self, store: Store) -> None:
        terms = Terms(max_waiting=3)
        publish(store, 1, 2, terms=terms)
        publish(store, 3, terms=terms, delay=60)
        with pytest.raises(QueueFull):
            publish(store, 4, terms=terms)
        assert publish(store, "elsewhere", queue="other", terms=terms)
        ack(store, take_one(store))
        publish(store, 5, terms=terms)
        with pytest.raises(QueueFull):
            publish(store, 6, terms=terms)
        assert drain(store) == [2, 5]

    def test_a_batch_over_max_waiting_is_kept_out_whole(self, store: Store) -> None:
        terms = Terms(max_waiting=3)
        with pytest.raises(QueueFull):
            store.publish([draft(n, terms=terms) for n in range(4)])
        assert waiting(store) == 0
        store.publish([draft(n, terms=terms) for n in range(3)])
        assert waiting(store) == 3

    def test_a_name_that_differs_in_case_only_is_taken(self, store: Store) -> None:
        publish(store, 1, queue="jobs")
        with pytest.raises(NameTaken):
            publish(store, 2, queue="Jobs")
        with pytest.raises(NameTaken):
            store.configure("JOBS", {})
        assert store.queues() == ["jobs"]

    @pytest.mark.parametrize(
        "name",
        ["", ".", "..", "../x", "/etc/x", "a/b", ".hidden", "-x", "a\nb", "a\x00b", "é", "q" * 201, "a..b", "a."],
    )
    def test_a_queue_name_that_is_no_name_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(InvalidName):
            publish(store, 1, queue=name)
        with pytest.raises(InvalidName):
            store.configure(name, {})
        assert store.queues() == []

    @pytest.mark.parametrize("id", ["../x", "a/b", ".", "..", ".m", "a~b", "a b", "m\n", "x" * 129])
    def test_an_id_that_is_no_id_is_refused(self, store: Store, id: str) -> None:
        with pytest.raises(InvalidInput):
            publish(store, 1, id=id)
        assert waiting(store) == 0

    def test_the_longest_and_oddest_legal_names_work(self, store: Store) -> None:
        for queue, id in (("q" * 200, "i" * 128), ("A.b-c_1", "a:b.c-d_e:"), ("_", "_"), ("0", "CON")):
            publish(store, queue, queue=queue, id=id)
            lease = take_one(store, queue=queue)
            assert (lease.receipt.queue, lease.receipt.id) == (queue, id)
            ack(store, lease)

    def test_a_draft_with_a_failure_is_stored_as_dead(self, store: Store, reopen: Reopen, clock: ManualClock) -> None:
        unfit = [replace(draft(n, id=f"unfit-{n}", group="g", dedup_key=f"k{n}"), failure=FAILED) for n in range(2)]
        answers = store.publish([unfit[0], draft("next", id="next", group="g"), unfit[0]])
        assert answers == [Published("unfit-0"), Published("next"), Published("unfit-0", duplicate=True)]
        entry = reopen().find(QUEUE, "unfit-0")
        assert entry is not None and entry.message is not None
        assert (entry.message.body, entry.message.group, entry.message.dedup_key) == (0, "g", "k0")
        assert (entry.state, entry.failure, entry.attempt) == (State.DEAD, FAILED, 0)
        assert [each.id for each in store.browse(QUEUE, State.DEAD)] == ["unfit-0"]
        assert store.publish([draft(3, dedup_key="k0")]) == [Published("unfit-0", duplicate=True)]
        # It does not lead its group, and may be a follow-up too.
        lease = take_one(store)
        assert lease.message.id == "next"
        settle(store, lease, Done(then=(unfit[1],)))
        assert state_of(store, "unfit-1") is State.DEAD and count(store, State.DEAD) == 2
        found = store.counters(QUEUE)
        assert (found.published, found.dead[FAILED.code]) == (3, 2)
        assert take(store) == []
        clock.advance(120)  # what a process that died may have left is looked at
        assert (isinstance(store, Checkable) and store.check(repair=True)) in ([], False)
        assert store.revive(QUEUE, ["unfit-0", "unfit-1"]) == ["unfit-0", "unfit-1"]
        assert drain(store) == [0, 1]

    def test_a_draft_for_an_existing_queue_does_not_make_it(self, store: Store) -> None:
        wanted = replace(draft("x", queue="wanted"), existing=True)
        for others in ([], [draft("y")]):
            with pytest.raises(QueueUnknown):
                store.publish([*others, wanted])
        assert "wanted" not in store.queues() and count(store, State.READY) == 0
        publish(store, "first", queue="wanted")
        assert store.publish([wanted]) == [Published(wanted.message.id)]
        store.delete("wanted", force=True)
        with pytest.raises(QueueUnknown):
            store.publish([replace(draft("z", queue="wanted"), existing=True)])
        assert "wanted" not in store.queues()
        store.configure("wanted", {"ttl": 9})
        again = replace(draft("z", queue="wanted"), existing=True)
        assert store.publish([again]) == [Published(again.message.id)]
