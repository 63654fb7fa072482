"""Every time-dependent feature, in processes whose wall clocks differ, step, and stand in other centuries.

On the embedded stores dates are those of the process that asks: a delay, a time to live and a dedup window follow its
wall clock. On PostgreSQL all are the server's, whatever the clock of a client shows. Leases follow no wall clock.
"""

from datetime import UTC, datetime

import pytest

from tests.clocks.conftest import Start

DATES = {
    "1970": datetime(1970, 1, 3, tzinfo=UTC),
    "2038": datetime(2038, 1, 19, 3, 14, 0, tzinfo=UTC),  # 8 seconds before 2**31
    "DST begins": datetime(2026, 3, 29, 0, 59, 55, tzinfo=UTC),  # in Berlin; the tests set TZ
    "DST ends": datetime(2026, 10, 25, 0, 59, 55, tzinfo=UTC),
    "2112": datetime(2112, 9, 17, 23, 53, 40, tzinfo=UTC),  # 16**13 microseconds come 7 seconds later
}
DAY = 86400
TAKE = "[(d.body, d.ack())[0] for d in q.lease(10)]"


@pytest.mark.parametrize("name", DATES)
def test_all_features_work_across_a_date(
    start: Start, name: str, url: str, own_clock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    child = start()
    child.set(DATES[name])
    child("q.publish('before', id='b').id")
    child("[q.publish(n, group='g', id=f'g{n}').id for n in range(3)]")
    child("q.publish('later', delay=100).id")
    child("q.publish('short', ttl=50, id='short').id")
    child.step(10)  # past the date
    assert child("q.publish('again', id='b').duplicate") is True
    child("[q.publish(n, group='g', id=f'g{n}').id for n in range(3, 6)]")
    assert child("q.publish('urgent', priority=9).id")
    assert child("[(d.body, d.ack())[0] for d in q.lease(1)]") == ["urgent"]
    in_order = []
    for _ in range(8):
        in_order += child(TAKE)
    assert [body for body in in_order if isinstance(body, int)] == [0, 1, 2, 3, 4, 5]
    assert sorted(body for body in in_order if isinstance(body, str)) == ["before", "short"]
    assert child("q.publish('failing', id='f').id == 'f' and [d.nack(delay=30) for d in q.lease(1)]") == [None]
    # The file store has due times in whole milliseconds, rounded up.
    assert child(TAKE) == [] and 0 < child("q.store.next_due('jobs')") <= 30.001
    child.step(31)
    assert child(TAKE) == (["failing"] if own_clock else [])
    child("q.publish('for a while', ttl=60, id='t').id")
    child.step(61)
    assert child(TAKE) == (["later"] if own_clock else ["for a while"])
    child("q.sweep()")
    assert child("q.counts()[State.DEAD]") == (1 if own_clock else 0)
    assert child("mq.store.check(repair=False)") == []


@pytest.mark.parametrize("skew", [-7200, 7200, 20 * 365 * DAY])
def test_processes_with_different_clocks_hold_their_leases_and_keep_the_order(start: Start, skew: float) -> None:
    ours, theirs = start(), start(skew)
    for number in range(8):
        (ours, theirs)[number % 2](f"q.publish({number}, group='g').id")
    ours("held.update(d=q.lease(1, visibility=60)[0])")
    assert theirs("q.lease(1)") == [] and theirs("q.sweep()") == 0
    assert 50 < theirs("q.store.next_due('jobs')") <= 60
    for seconds in (3600, -7200, 15 * DAY, -15 * DAY):
        ours.step(seconds)
        theirs.step(-seconds)
        assert theirs("q.lease(1)") == [] and ours("q.sweep()") == 0
        assert 40 < ours("q.store.next_due('jobs')") <= 60
    ours("held['d'].extend(60)")
    assert ours("held['d'].body") == 0
    ours("held['d'].ack()")
    found = [body for number in range(7) for body in (theirs, ours)[number % 2](TAKE)]
    assert found == list(range(1, 8))


@pytest.mark.parametrize("skew", [-7200, 7200])
def test_a_message_is_there_at_once_whatever_the_clock_of_its_publisher(start: Start, skew: float) -> None:
    ours, theirs = start(), start(skew)
    theirs("q.publish('x').id")
    assert ours(TAKE) == ["x"]
    assert ours("q.publish('y', id='y').duplicate") is False and theirs("q.publish('y', id='y').duplicate") is True
    assert theirs(TAKE) == ["y"]


def test_a_delay_a_ttl_and_a_dedup_window_follow_the_clock_that_judges_them(start: Start, own_clock: bool) -> None:
    child = start()
    child("q.publish('late', delay=1000).id")
    child("q.publish('ttl', ttl=500, delay=400, id='ttl').id")
    child("q.publish('key', dedup_key='k', id='first').id")
    assert child("q.publish('key', dedup_key='k').id") == "first"
    assert child(TAKE) == ["key"]
    child.step(-3600)
    assert child("q.publish('key', dedup_key='k').id") == "first" and child(TAKE) == []
    child.step(3600 + 450)
    assert child("q.publish('key', dedup_key='k').duplicate") is not own_clock
    assert child("[d.body for d in q.lease(2, visibility=1000)]") == (["ttl", "key"] if own_clock else [])
    child.step(1000)
    assert child(TAKE) == (["late"] if own_clock else [])


def test_a_clock_that_jumps_removes_no_dead_letter_and_no_kept_message(start: Start, own_clock: bool) -> None:
    child, other = start(), start()
    child("q.configure(Policy(done_retention=86400, dead_letters=DeadLetterPolicy(retention_days=14)))")
    child("[q.publish(n, id=f'm{n}').id for n in range(4)]")
    child("[d.bury() if d.body < 2 else d.ack() for d in q.lease(4)]")
    for _ in range(2):
        child.step(15 * DAY)
        assert child("[q.sweep(), q.lease(1), q.sweep()]") == [0, [], 0]
        child.step(-15 * DAY)
        assert other("q.sweep()") == 0
    assert child("[q.counts()[State.DEAD], q.counts()[State.DONE]]") == [2, 2]
    assert child("q.purge(State.DEAD)") == 2  # an operator's purge is immediate
    child.step(2 * DAY)
    assert child("q.purge(State.DONE, age=86400)") == (2 if own_clock else 0)


def test_a_topic_keeps_its_records_when_the_clock_of_a_publisher_jumps(start: Start, url: str) -> None:
    if not url.startswith("sqlite:"):
        pytest.skip("topics are on SQLite and Kafka only")
    child = start()
    child(f"held.update(t=topics({url!r}), new=lambda: [NewRecord(b'x')])")
    child("held['t'].create('log', Shape(1, max_age=86400.0))")
    for seconds in (10 * DAY, -10 * DAY, 20 * DAY, -20 * DAY):
        child("str(held['t'].append('log', held['new']()))")
        child.step(seconds)
        child("held['t']._trimmed.clear()")  # it looks every ten seconds
    assert child("[(b.first, b.next) for b in held['t'].bounds('log')]") == [[0, 4]]
