"""Consumers: who leases, what each one holds and since when, and whose lease ran out."""

import os
import socket

import pytest

from pabal.ids import consumer_tag
from pabal.names import local_name
from pabal.store import Consumer, State, Store
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import QUEUE, Child, Reopen, StorePlace, ack, publish, take, take_one

_HOUR = 3600.0


def _named(store: Store, name: str) -> list[Consumer]:
    return [consumer for consumer in store.consumers() if consumer.name == name]


class ConsumerTests(StorePlace):
    def test_consumers_are_named_with_host_and_process_and_what_they_hold(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        assert store.consumers() == [] and store.queues() == []
        publish(store, 1, 2, 3)
        publish(store, 4, queue="others")
        start = clock.now()
        other = reopen()
        first = take_one(store, consumer="worker-1")
        clock.advance(30)
        take(store, 1, consumer="worker-1")
        take_one(store, consumer="worker-1", queue="others")
        take_one(other, 600.0)
        one, two = _named(store, "worker-1")[0], _named(other, local_name(os.getpid()))[0]
        assert {(each.host, each.pid) for each in (one, two)} == {(socket.gethostname(), os.getpid() * self.direct)}
        assert (one.holds[QUEUE].messages, one.holds["others"].messages, two.holds[QUEUE].messages) == (2, 1, 1)
        assert abs(one.since - start) < 5 and start - 5 <= one.holds[QUEUE].since <= clock.now()
        assert sum(each.holds[QUEUE].messages for each in store.consumers()) == store.counts(QUEUE)[State.INFLIGHT]
        # The tokens of a consumer begin alike, and those of another otherwise; the rest differs in each.
        tokens = {entry.token for entry in store.browse(QUEUE, State.INFLIGHT)}
        assert len(tokens) == 3 and len({consumer_tag(token) for token in tokens}) == 2
        assert ack(store, first).name == "APPLIED"
        assert _named(other, "worker-1")[0].holds[QUEUE].messages == 1
        # One that finds nothing was seen too.
        assert take(store, consumer="idle") == [] and _named(store, "idle")[0].holds == {}
        other.close()

    def test_consumers_are_seen_by_leases_and_extensions_and_forgotten_after_an_hour(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        publish(store, 1, 2, 3, 4)
        start = clock.now()
        held = take_one(store, 10 * _HOUR, consumer="long")
        ack(store, take_one(store, consumer="short"))
        clock.advance(100)
        assert take(store, queue="nothing", consumer="short") == []  # there is no such queue
        ack(store, take_one(store, consumer="short"))
        seen = {each.name: each.seen - start for each in store.consumers()}
        assert seen["long"] < 50 < seen["short"]
        store.extend([held.receipt], 10 * _HOUR)
        assert _named(store, "long")[0].seen - start > 50
        clock.advance(_HOUR + 1)
        assert [each.name for each in store.consumers()] == ["long"]
        store.expired(QUEUE, 10)  # where stores maintain themselves
        assert [each.name for each in reopen().consumers()] == ["long"]
        ack(store, held)
        clock.advance(_HOUR)
        store.expired(QUEUE, 10)
        assert store.consumers() == []
        ack(store, take_one(store, consumer="short"))
        assert [each.name for each in store.consumers()] == ["short"]

    def test_an_expired_lease_names_the_consumer_that_had_it(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        publish(store, 1, 2)
        publish(store, 3, expires_at=clock.now() + 5, delay=100)
        take_one(store, 10, consumer="died")
        take_one(store, 10, consumer="died-too")
        clock.advance(20)
        sweeper = reopen()
        found = sweeper.expired(QUEUE, 10)
        assert sorted((lease.message.body, lease.consumer) for lease in found) == [
            (1, "died"),
            (2, "died-too"),
            (3, ""),
        ]
        assert len({lease.receipt.token for lease in found}) == 3
        # The process that noticed it dies before it settles: the consumer that had the lease is still known.
        clock.advance(60)
        again = store.expired(QUEUE, 10)
        assert sorted((lease.message.body, lease.consumer) for lease in again)[:2] == [(1, "died"), (2, "died-too")]
        assert all(ack(sweeper, lease).name == "LOST" for lease in found)
        assert all(ack(store, lease).name == "APPLIED" for lease in again)

    def test_a_token_of_the_callers_choice_stands_for_its_consumer(self, store: Store, clock: ManualClock) -> None:
        publish(store, 1, 2, 3)
        take_one(store, consumer="client", token="Cli3nt0000000001")
        take_one(store, consumer="client", token="Cli3nt0000000002")
        take_one(store, 10, token="0123456789abcdef" * 2)
        client = _named(store, "client")
        assert len(client) == 1 and client[0].holds[QUEUE].messages == 2 and client[0].pid == 0
        assert sum(each.holds[QUEUE].messages for each in store.consumers()) == 3
        clock.advance(20)
        assert [lease.consumer for lease in store.expired(QUEUE, 10)] == [local_name(os.getpid())]

    def test_a_forked_child_is_a_consumer_of_its_own(self, store: Store) -> None:
        self.need_processes()
        if not self.direct:
            pytest.skip("the process that leases is not known")
        publish(store, 1, 2)
        take_one(store, consumer="worker")

        def lease() -> int:
            take_one(store, consumer="worker")
            return os.getpid()

        pid = Child(lease).result()
        assert {(each.pid, each.holds[QUEUE].messages) for each in _named(store, "worker")} == {
            (os.getpid(), 1),
            (pid, 1),
        }
