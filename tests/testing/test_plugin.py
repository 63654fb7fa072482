"""What Pabal ships for the tests of its users: fixtures that pytest finds by itself, and `drain`."""

import pytest

import pabal
from pabal.testing import ManualClock, drain

pytest_plugins = ["pytester"]


def test_fixtures_are_found_by_a_project_of_a_user(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pabal.testing import drain

        def test_a_handler(pabal_queue, pabal_clock, pabal_connection):
            pabal_queue.publish({"n": 1}, delay=3600)
            seen = []
            assert drain(pabal_queue, seen.append) == 0
            assert drain(pabal_queue, lambda delivery: seen.append(delivery.body), clock=pabal_clock) == 1
            assert seen == [{"n": 1}] and pabal_connection.queues() == ["test"]
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_drain_runs_retries_to_their_end(pabal_queue: pabal.Queue, pabal_clock: ManualClock) -> None:
    attempts = []

    def handle(delivery: pabal.Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.body == "bad":
            raise ValueError("never")

    pabal_queue.publish_many(["good", "bad"])
    assert drain(pabal_queue, handle, clock=pabal_clock) == 1
    assert sorted(attempts) == [1, 1, 2, 3, 4, 5]
    assert pabal_queue.counts()[pabal.State.DEAD] == 1


def test_drain_ends_where_a_handler_publishes_without_end(pabal_queue: pabal.Queue, pabal_clock: ManualClock) -> None:
    pabal_queue.publish("x")
    with pytest.raises(AssertionError, match="without end"):
        drain(pabal_queue, lambda delivery: pabal_queue.publish("again", delay=1), clock=pabal_clock)
