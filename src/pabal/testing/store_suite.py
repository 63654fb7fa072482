"""The store contract as tests: a store that passes them keeps G1 to G11 as far as one machine that stays up can show.

To test a store, subclass `StoreSuite` and give two fixtures:

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def reopen(self, tmp_path, clock):
            return lambda: MyStore(tmp_path / "place", clock=clock)

        @pytest.fixture
        def damage(self, tmp_path):
            return lambda queue, id: flip_a_byte_of(tmp_path / "place", queue, id)

`reopen()` opens one more handle on the place of the running test; `clock` is a `ManualClock` that every handle uses. A
store of one process says `shared = False`; one with another codec than JSON names it in `codec`. What only a crash can
show (G1, G7, G9) is in `tests/crash`.
"""

from pabal.testing.store_suite_leases import LeaseTests
from pabal.testing.store_suite_order import OrderTests
from pabal.testing.store_suite_publish import PublishTests
from pabal.testing.store_suite_reviving import ReviveTests
from pabal.testing.store_suite_settle import SettleTests
from pabal.testing.store_suite_sharing import SharingTests
from pabal.testing.store_suite_upkeep import UpkeepTests


class StoreSuite(PublishTests, OrderTests, LeaseTests, SettleTests, ReviveTests, UpkeepTests, SharingTests):
    """Every guarantee by its number, and every line of the contract beside."""
