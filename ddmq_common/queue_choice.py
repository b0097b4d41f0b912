"""The choice of a message's queue; stable for a given number of queues.

partitionId >= 0: that number modulo the queues. -1: abs(hashId) modulo the queues, the smallest i64
counting as 0 (its absolute value does not fit into an i64, and old servers took 0). Below -1: any.
"""

from __future__ import annotations

BY_HASH = -1
_NO_ABSOLUTE = -(1 << 63)


def choose(partition_id: int, hash_id: int, queues: int, any_queue: int) -> int:
    """The queue id in [0, queues). `any_queue`: where the caller wants a message that does not mind."""
    if partition_id >= 0:
        return partition_id % queues
    if partition_id == BY_HASH:
        return 0 if hash_id == _NO_ABSOLUTE else abs(hash_id) % queues
    return any_queue % queues
