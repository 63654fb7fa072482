"""Request and reply: one reply, if and only if the request is done (G15)."""

from functools import partial

import pytest

from pabal.errors import LeaseLost, NoReply, RequestFailed
from pabal.queues.queue import Queue
from pabal.queues.replies import SUFFIX
from pabal.store import State, Store
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import QUEUE, Reopen, StorePlace, in_threads, soon, state_of

PATIENCE = 60.0  # seconds: only a failing test waits for so long


def replies(store: Store) -> list[object]:
    """Return the bodies of the replies that are kept."""
    found = store.browse(f"{QUEUE}{SUFFIX}", State.READY)
    return [entry.message.body for entry in found if entry.message is not None]


def asked(store: Store, id: str) -> bool:
    return state_of(store, id) is not None


class ReplyTests(StorePlace):
    def test_g15_a_reply_comes_with_the_ack_and_can_be_asked_for_again(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        other = reopen()
        queue, consumer = Queue(QUEUE, store, clock=clock), Queue(QUEUE, other, clock=clock)
        answers: list[object] = []

        def ask() -> None:
            answers.append(queue.request(20, PATIENCE, id="r"))

        def serve() -> None:
            assert soon(partial(asked, other, "r"), PATIENCE)
            [delivery] = consumer.lease()
            assert replies(other) == [] and delivery.message.reply_to == f"{QUEUE}{SUFFIX}"
            delivery.reply(delivery.body + 1)
            assert replies(other) == [21] and state_of(other, "r") is State.DONE
            with pytest.raises(LeaseLost):
                delivery.bury("too late")

        in_threads(ask, serve)
        # Asking again, as a requester does that was killed, is answered from what is kept; nobody works again.
        assert consumer.request(20, PATIENCE, id="r") == 21
        assert answers == [21] and consumer.lease() == []
        other.close()

    def test_g15_the_reply_of_a_consumer_that_lost_its_lease_is_not_sent(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        other = reopen()
        first, second = Queue(QUEUE, store, clock=clock), Queue(QUEUE, other, clock=clock)
        first.publish(1, id="r", reply_to=f"{QUEUE}{SUFFIX}")
        [slow] = first.lease(visibility=10.0)
        clock.advance(11)
        second.sweep()
        clock.advance(1000)  # the pause before the next attempt
        [quick] = second.lease()
        with pytest.raises(LeaseLost):
            slow.reply("slow")
        assert replies(store) == []
        quick.reply("quick")
        with pytest.raises(LeaseLost):
            slow.reply("slow")
        assert replies(store) == ["quick"] and second.request(1, PATIENCE, id="r") == "quick"
        other.close()

    def test_g15_a_requester_learns_that_no_reply_will_come(self, store: Store, clock: ManualClock) -> None:
        queue = Queue(QUEUE, store, clock=clock)
        for id in ("dead", "done", "cancelled"):
            queue.publish(1, id=id, reply_to=f"{QUEUE}{SUFFIX}")
        assert queue.cancel(["cancelled"]) == ["cancelled"]
        for delivery in queue.lease(2):
            delivery.ack() if delivery.message.id == "done" else delivery.bury("no")
        for id in ("dead", "done", "cancelled"):
            with pytest.raises(RequestFailed):
                queue.request(1, PATIENCE, id=id)
        # What nobody has taken in time is taken back, unless it may be asked for again.
        with pytest.raises(NoReply):
            queue.request("nobody", 0.01)
        with pytest.raises(NoReply):
            queue.request("nobody", 0.01, id="kept")
        assert [delivery.message.id for delivery in queue.lease(10)] == ["kept"]
