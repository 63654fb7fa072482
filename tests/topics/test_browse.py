"""Pages of records, read on and back, on both drivers."""

import pytest

from pabal.errors import InvalidInput
from pabal.topic_store import Record
from pabal.topics.browse import read_places, records_before, records_from, write_places
from pabal.topics.topic import Topic


def bodies(records: list[Record]) -> list[int]:
    return [int(record.value) for record in records]


def filled(topic: Topic, partitions: int, records: int) -> Topic:
    topic.create(partitions)
    for number in range(records):
        topic.append(number, partition=number % partitions)
    return topic


def test_pages_on_and_back_show_every_record_once_and_each_partition_in_its_order(topic: Topic) -> None:
    filled(topic, 3, 40)
    seen: list[Record] = []
    places: dict[int, int] | None = {0: 0, 1: 0, 2: 0}
    while places is not None:
        found, places = records_from(topic, places, 7)
        seen += found
    assert sorted(bodies(seen)) == list(range(40))
    for number in range(3):
        own = [record.offset for record in seen if record.partition == number]
        assert own == list(range(len(own)))
    back: list[Record] = []
    places = {number: end for number, (_, end) in enumerate(topic.bounds())}
    while places is not None:
        found, places = records_before(topic, places, 7)
        back = found + back
    assert sorted(bodies(back)) == list(range(40))
    for number in range(3):
        own = [record.offset for record in back if record.partition == number]
        assert own == list(range(len(own)))


def test_one_partition_and_the_last_ones(topic: Topic) -> None:
    filled(topic, 2, 10)
    found, places = records_from(topic, {1: 3}, 10)
    assert (bodies(found), places) == ([7, 9], None)
    found, places = records_before(topic, {1: 5}, 2)
    assert (bodies(found), places) == ([7, 9], {1: 3})
    assert records_from(topic, {0: 99}, 5) == ([], None) and records_before(topic, {0: 0}, 5) == ([], None)


def test_records_whose_times_go_back_keep_the_order_of_their_partition(topic: Topic) -> None:
    class Turned(Topic):
        """Its newest records have the oldest times, as after a clock was set back."""

        def read(self, partition: int, offset: int = 0, limit: int = 100) -> list[Record]:
            found = super().read(partition, offset, limit)
            return [Record(r.topic, r.partition, r.offset, 100.0 - r.offset, r.key, r.value) for r in found]

    filled(topic, 2, 12)
    turned = Turned(topic.name, topic.topics)
    seen: list[int] = []
    places: dict[int, int] | None = {0: 0, 1: 0}
    while places is not None:
        found, places = records_from(turned, places, 5)
        seen += bodies(found)
    assert sorted(seen) == list(range(12)) and [each for each in seen if each % 2] == [1, 3, 5, 7, 9, 11]


@pytest.mark.parametrize("text", ["", "x", "0", "0.1.2", "-1.2", "0.1,", "9.1", "0.1٣", "0." + "9" * 19])
def test_text_that_is_no_place_is_refused(text: str) -> None:
    assert read_places(write_places({0: 4, 2: 7}), 3) == {0: 4, 2: 7}
    with pytest.raises(InvalidInput, match="partitions with offsets"):
        read_places(text, 3)
