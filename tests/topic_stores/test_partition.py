"""Keys go where Kafka's own clients put them."""

import pytest

from pabal.topic_stores.partition import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_own_tests(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % (1 << 32)


def test_a_partition_is_one_of_those_there_are() -> None:
    assert {partition_of(f"key-{n}", 5) for n in range(100)} == set(range(5))
    assert partition_of("anything", 1) == 0
