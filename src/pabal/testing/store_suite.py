"""The store contract as tests: a store that passes them keeps G1 to G15 as far as one machine that stays up can show.

To test a store, subclass `StoreSuite` and give two fixtures:

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def reopen(self, tmp_path, clock):
            return lambda: MyStore(tmp_path / "place", clock=clock)

        @pytest.fixture
        def damage(self, tmp_path):
            return lambda queue, id: flip_a_byte_of(tmp_path / "place", queue, id)

`reopen()` opens one more handle on the place of the running test; `clock` is a `ManualClock` that every handle uses. A
store of one process says `shared = False`, one that a server keeps `direct = False` if the server does not learn which
process leases; one with another codec than JSON names it in `codec`. Guarantees
that only a crash can test (G1, G7, G9) are in `tests/crash`.
"""

from pabal.testing.store_suite_cancel import CancelTests
from pabal.testing.store_suite_consumers import ConsumerTests
from pabal.testing.store_suite_counters import CounterTests
from pabal.testing.store_suite_leases import LeaseTests
from pabal.testing.store_suite_order import OrderTests
from pabal.testing.store_suite_publish import PublishTests
from pabal.testing.store_suite_replies import ReplyTests
from pabal.testing.store_suite_reviving import ReviveTests
from pabal.testing.store_suite_schedules import ScheduleTests
from pabal.testing.store_suite_settle import SettleTests
from pabal.testing.store_suite_sharing import SharingTests
from pabal.testing.store_suite_unique import UniqueTests
from pabal.testing.store_suite_upkeep import UpkeepTests


class StoreSuite(
    PublishTests,
    UniqueTests,
    OrderTests,
    LeaseTests,
    SettleTests,
    ReviveTests,
    CancelTests,
    ScheduleTests,
    ReplyTests,
    UpkeepTests,
    CounterTests,
    ConsumerTests,
    SharingTests,
):
    """Every guarantee by its number, and the rest of the contract."""
