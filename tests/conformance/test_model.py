"""The memory store keeps the contract, so that it can stand as the model of it."""

import pytest

from pabal.stores.memory import MemoryStore, Place
from pabal.testing import ManualClock, StoreSuite
from pabal.testing.store_place import Damage, Reopen


class TestMemoryStore(StoreSuite):
    shared = False

    @pytest.fixture
    def place(self) -> Place:
        return Place()

    @pytest.fixture
    def reopen(self, place: Place, clock: ManualClock) -> Reopen:
        return lambda: MemoryStore(place, clock=clock)

    @pytest.fixture
    def damage(self, place: Place, clock: ManualClock) -> Damage:
        return MemoryStore(place, clock=clock).damage
