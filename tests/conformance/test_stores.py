"""The store contract on every store. A new store is a line in `tests/openers.py`."""

from pathlib import Path

import pytest

from pabal.testing import ManualClock, StoreSuite
from pabal.testing.store_place import Damage, Reopen
from tests.openers import OPENERS, Opener


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
class TestStore(StoreSuite):
    @pytest.fixture
    def reopen(self, opener: Opener, tmp_path: Path, clock: ManualClock) -> Reopen:
        return lambda: opener.open(tmp_path, clock)

    @pytest.fixture
    def damage(self, opener: Opener, tmp_path: Path) -> Damage:
        return lambda queue, id: opener.damage(tmp_path, queue, id)
