"""Which partition a key belongs to: Kafka's murmur2, so that every driver and every client of Kafka agrees."""

from functools import lru_cache

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C


@lru_cache(maxsize=1 << 16)
def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key among so many."""
    return (murmur2(key_bytes(key)) & 0x7FFFFFFF) % partitions


def key_bytes(key: str) -> bytes:
    """Return a key as it is stored. Keys of other clients that are not UTF-8 stay as they were."""
    return key.encode("utf-8", "surrogateescape")


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash that Kafka's own clients compute of a key."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
