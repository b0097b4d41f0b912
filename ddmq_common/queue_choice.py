"""The choice of a message's queue; stable for a given number of queues.

partitionId >= 0: that number modulo the queues. -1: abs(hashId) modulo the queues, the smallest i64 counting
as 0 (its absolute value does not fit into an i64, and old servers took 0). Below -1: any; on engines that
know no order over all queues (capability `topic_order` off) a message with a key goes where Kafka's own
producers put it, by the murmur2 hash of the key: what has one key is in one queue, and keeps its order
there.
"""

from __future__ import annotations

from struct import iter_unpack

BY_HASH = -1
_NO_ABSOLUTE = -(1 << 63)
_SEED, _FACTOR, _U32 = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def choose_queue(partition_id: int, hash_id: int, queues: int, any_queue: int, key: bytes = b"") -> int:
    """Return the queue id in [0, queues) for a message. `any_queue`: the caller's choice if it names none.

    `key`: the message key if the engine places by key, else empty.
    """
    if partition_id >= 0:
        return partition_id % queues
    if partition_id == BY_HASH:
        return 0 if hash_id == _NO_ABSOLUTE else abs(hash_id) % queues
    if key:
        return (murmur2(key) & _POSITIVE) % queues
    return any_queue % queues


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash that Kafka's default partitioner uses."""
    length = len(data)
    words_end = length & ~3
    hashed = _SEED ^ length
    for (word,) in iter_unpack("<I", data[:words_end]):
        word = word * _FACTOR & _U32
        word = (word ^ word >> 24) * _FACTOR & _U32
        hashed = (hashed * _FACTOR & _U32) ^ word
    if words_end < length:
        hashed = (hashed ^ int.from_bytes(data[words_end:], "little")) * _FACTOR & _U32
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _U32
    return hashed ^ hashed >> 15
