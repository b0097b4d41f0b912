"""PendingBounds: how many records and bytes may be on their way to the brokers, in all and per queue. Pure.

A queue may use SHARE of what is free: with n queues that do not answer, the others still have 1 / (1 + n *
SHARE) of the bounds. A fixed share would be used up by so many queues as there are shares.
"""

from __future__ import annotations

SHARE_SHIFT = 3
SHARE = 1 / (1 << SHARE_SHIFT)


class QueueUsage:
    """The records of one queue that are on their way, and their bytes."""

    __slots__ = ("pending_bytes", "pending_records")

    def __init__(self) -> None:
        self.pending_records = 0
        self.pending_bytes = 0


class PendingBounds:
    """Counts the records on their way to the brokers, and limits how many of one queue there may be."""

    __slots__ = ("bytes", "bytes_max", "records", "records_max")

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self.records_max = records_max
        self.bytes_max = bytes_max
        self.records = 0
        self.bytes = 0

    @property
    def share_records(self) -> int:
        """The number of records that one queue may have at present."""
        return max(0, self.records_max - self.records) >> SHARE_SHIFT

    @property
    def share_bytes(self) -> int:
        """The number of bytes that one queue may have at present."""
        return max(0, self.bytes_max - self.bytes) >> SHARE_SHIFT

    def has_share(self, queue: QueueUsage) -> bool:
        """Return whether a queue may start another append: whether its pending records are within its present
        share.

        A queue without pending records may always start one while the bounds are not exceeded.
        """
        return (
            queue.pending_records <= (self.records_max - self.records) >> SHARE_SHIFT
            and queue.pending_bytes <= (self.bytes_max - self.bytes) >> SHARE_SHIFT
        )

    def take_record(self, queue: QueueUsage, size: int) -> None:
        """Count a record of `size` bytes."""
        queue.pending_records += 1
        queue.pending_bytes += size
        self.records += 1
        self.bytes += size

    def release_record(self, queue: QueueUsage, size: int) -> None:
        """Count a record no more."""
        queue.pending_records -= 1
        queue.pending_bytes -= size
        self.records -= 1
        self.bytes -= size
