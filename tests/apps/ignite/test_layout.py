"""The store's promises hold on a team's tree too, with the words of the protocol in every file."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from pabal.apps.ignite.layout import IgniteLayout
from pabal.codec import Codec
from pabal.codecs.mime import MimeCodec
from pabal.message import replace
from pabal.store import Draft, Outcome, Published, Settlement, State
from pabal.stores.files import FileStore
from pabal.testing import ManualClock, StoreSuite
from pabal.testing.store_place import QUEUE, Damage, Reopen, publish

_counters: WeakKeyDictionary[ManualClock, Iterator[int]] = WeakKeyDictionary()  # small numbers: few dates are ahead


class Dated(FileStore):
    """Dates what is published undated, as every sender of a team does: plain names take their order from documents."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        # Where a removed file is done, a receipt of a message that is nowhere cannot be called lost.
        super().__init__(root, clock=clock, layout=IgniteLayout(removal_acks=False))
        self._clock = clock

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        return super().publish([self._dated(each) for each in drafts])

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        dated = [
            Settlement(receipt, verdict._replace(then=tuple(map(self._dated, verdict.then))))
            for receipt, verdict in settlements
        ]
        return super().settle(dated, durable=durable)

    def _dated(self, draft: Draft) -> Draft:
        if draft.message.created_at:
            return draft
        at = round(self._clock.now() + next(_counters.setdefault(self._clock, count(1))) / 1000, 3)
        return replace(draft, message=replace(draft.message, created_at=at))


class TestIgniteStore(StoreSuite):
    codec: Codec = MimeCodec()

    # What plain names cannot give: the order of groups and keys is read from documents that nobody writes anew.
    test_g4_a_revived_message_joins_the_end_of_its_group = None  # type: ignore[assignment]  # not for this layout
    test_g6_a_dedup_key_is_forgotten_when_its_window_is_over = None  # type: ignore[assignment]  # likewise
    test_next_due_is_the_earliest_thing_time_will_do = None  # type: ignore[assignment]  # asks to look once more
    test_a_document_of_max_bytes_is_the_largest_taken = None  # type: ignore[assignment]  # `Dated` makes it larger

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: ManualClock) -> Reopen:
        return lambda: Dated(tmp_path, clock)

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Damage:
        def damage(queue: str, id: str) -> None:
            """Break the header that says how the body is written: plain names carry no checksum."""
            for path in tmp_path.rglob("*.mime"):
                data = path.read_bytes()
                if f"<{id}@ignite.local>".encode() in data:
                    path.write_bytes(data.replace(b"MIME-Version: 1.0", b"MIME-Version: \x010", 1))

        return damage


def test_the_head_of_a_group_stays_ready_when_the_clock_steps_back(tmp_path: Path, clock: ManualClock) -> None:
    with closing(Dated(tmp_path, clock)) as store:
        publish(store, 1, 2, group="g")
        assert store.counts(QUEUE)[State.READY] == 2
        clock.step_wall(-60)
        store._root.let_go()  # its folders are listed again, as they are where inotify is not to be had
        first, second = store.lease(QUEUE, 2, 60.0, successive=True)
        assert (first.message.body, second.message.body) == (1, 2)
