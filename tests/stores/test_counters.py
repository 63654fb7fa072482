"""The files of the counters: forks, damage, and a folder that cannot be written to."""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.queues.queue import Queue
from pabal.store import Published
from pabal.stores.counters import FileCounters
from pabal.testing.store_place import QUEUE, ack, draft, publish, take_one
from tests.openers import OPENERS
from tests.steps import growth

KINDS = {"files": "spool/.counters", "sqlite": "pabal.db.counters", "hybrid": "hybrid/pabal.db.counters"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_counts_for_itself(kind: str, tmp_path: Path) -> None:
    with closing(OPENERS[kind].open(tmp_path, SystemClock())) as store:
        publish(store, 1, 2)
        lease = take_one(store)  # only noted: it is the parent's
        if (pid := os.fork()) == 0:
            publish(store, 3)
            ack(store, take_one(store))
            store.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        ack(store, lease)
        found = store.counters(QUEUE)
    assert (found.published, found.delivered, found.acked) == (3, 2, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_handles_one_after_the_other_share_a_file(kind: str, tmp_path: Path) -> None:
    for _ in range(3):
        with closing(OPENERS[kind].open(tmp_path, SystemClock())) as store:
            publish(store, 1)
    assert os.listdir(tmp_path / KINDS[kind]) == ["1"]
    assert (tmp_path / KINDS[kind] / "1").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("harm", [b"", b"rubbish" * 100, b"\xff" * 2048])
def test_a_damaged_file_is_left_as_it_is_and_counting_goes_on(harm: bytes, tmp_path: Path) -> None:
    folder = tmp_path / KINDS["sqlite"]
    with closing(OPENERS["sqlite"].open(tmp_path, SystemClock())) as store:
        publish(store, 1)
    (folder / "1").write_bytes(harm)
    with closing(OPENERS["sqlite"].open(tmp_path, SystemClock())) as store:
        publish(store, 2)
        assert store.counters(QUEUE).published == 1
    assert not harm or (folder / "1").read_bytes() == harm


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / KINDS["sqlite"]).write_text("in the way")
    with closing(OPENERS["sqlite"].open(tmp_path, SystemClock())) as store:
        publish(store, 1)
        ack(store, take_one(store))
        assert store.counters(QUEUE).published == 1  # as far as this handle knows
        (tmp_path / KINDS["sqlite"]).unlink()
    with closing(OPENERS["sqlite"].open(tmp_path, SystemClock())) as store:
        found = store.counters(QUEUE)
        assert (found.published, found.delivered, found.acked) == (1, 1, 1)  # written when it could be


def test_looking_makes_no_folder(tmp_path: Path) -> None:
    counters = FileCounters(str(tmp_path / "counters"), SystemClock())
    assert counters.total(QUEUE).published == 0
    counters.close()
    assert os.listdir(tmp_path) == []


def test_queues_with_names_in_each_other_are_counted_apart(tmp_path: Path) -> None:
    with closing(OPENERS["sqlite"].open(tmp_path, SystemClock())) as store:
        for many, queue in enumerate(("jobs", "a.jobs", "jobs.a", "a.jobs.a", "a"), 1):
            Queue(queue, store).publish_many(range(many))
        found = [store.counters(queue).published for queue in ("jobs", "a.jobs", "jobs.a", "a.jobs.a", "a", "none")]
    assert found == [1, 2, 3, 4, 5, 0]


def test_the_counters_of_all_queues_cost_no_whole_file_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, pread = Counter[int](), os.pread

    def reading(fd: int, size: int, place: int) -> bytes:
        read[number] += len(data := pread(fd, size, place))
        return data

    monkeypatch.setattr(os, "pread", reading)
    number = 0

    def work(size: int) -> Callable[[], object]:
        folder = tmp_path / str(size)
        for many in (1, 2):
            counters = FileCounters(str(folder), SystemClock())
            stack.enter_context(closing(counters))
            for queue in range(size):
                counters.published([draft(queue, queue=f"queue-{queue}")] * many, [Published("m")] * many)

        def look() -> None:
            nonlocal number
            number = size
            assert {counters.total(f"queue-{queue}").published for queue in range(size)} == {3}

        return look

    with ExitStack() as stack:
        assert growth(work, 50) < 5
    assert read[200] < 5 * read[50]


@pytest.mark.parametrize("change", ["in place", "another file", "longer", "shorter"])
def test_a_file_that_was_replaced_is_read_anew(change: str, tmp_path: Path) -> None:
    def made(name: str, queues: list[str]) -> Path:
        with closing(FileCounters(str(tmp_path / name), SystemClock())) as counters:
            for queue in queues:
                counters.published([draft(1, queue=queue)], [Published("m")])
        return tmp_path / name / "1"

    old = made("old", ["a", "b"])
    new = made("new", {"longer": ["b", "c", "a"], "shorter": ["c"]}.get(change, ["b", "c"]))
    counters = FileCounters(str(tmp_path / "old"), SystemClock())
    assert [counters.total(queue).published for queue in "abc"] == [1, 1, 0]
    if change == "another file":
        new.rename(old)
    else:
        old.write_bytes(new.read_bytes())
    found = [counters.total(queue).published for queue in "abc"]
    assert found == {"longer": [1, 1, 1], "shorter": [0, 0, 1]}.get(change, [0, 1, 1])
