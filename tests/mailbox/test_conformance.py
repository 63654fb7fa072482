"""The store contract, kept through a mailbox by every store behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.mailbox.store import MailboxStore
from pabal.testing import ManualClock, StoreSuite
from pabal.testing.store_place import Damage, Reopen
from tests.mailbox.room import Room
from tests.openers import OPENERS, Opener


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
class TestMailboxStore(StoreSuite):
    direct = False

    @pytest.fixture
    def served(self, opener: Opener, tmp_path: Path, clock: ManualClock) -> Iterator[Room]:
        place = tmp_path / "place"
        place.mkdir()
        room = Room(tmp_path / "ipc", opener.open(place, clock), clock=clock).serve()
        yield room
        room.close()

    @pytest.fixture
    def reopen(self, served: Room) -> Reopen:
        return lambda: MailboxStore(served.client(timeout=10.0))

    @pytest.fixture
    def damage(self, opener: Opener, tmp_path: Path) -> Damage:
        return lambda queue, id: opener.damage(tmp_path / "place", queue, id)
