"""The topic contract as tests: a driver that passes them keeps T1 to T11 as far as one machine that stays up can show.

To test a driver, subclass `TopicSuite` and give a fixture:

    class TestMyTopics(TopicSuite):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda: MyTopics(tmp_path / "place")

`reopen()` opens one more handle on the place of the running test, which may be a server shared by all tests: every test
makes topics of its own. A fixture `damage` that flips a byte of a record adds T10. The tests use real time, since a
server has its own clock; they wait for events, not for fixed times.
"""

from pabal.testing.topic_suite_groups import GroupTests
from pabal.testing.topic_suite_records import RecordTests


class TopicSuite(RecordTests, GroupTests):
    """Every guarantee by its number, and the rest of the contract."""
