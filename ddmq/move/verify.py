"""Compares the copies with their originals: the counts and checksums of each queue.

A queue's checksum is the sum of the digests of its messages (core/copies.py). It depends on the source offset
that each copy names, not on the copy's own offset. Messages that retention has deleted on one side are left
out on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from backend.records import Bounds, StoredRecord
from ddmq.move.context import MoveContext, all_records, ask_patiently
from ddmq.move.copier import QueueCopier
from ddmq.move.core.copies import hash_record
from ddmq_common.names import MOVED_PROPERTY

_END = 1 << 64


class QueueSum(NamedTuple):
    """The number of messages of a queue, and the sum of their digests."""

    messages: int
    check: int


class Verified(NamedTuple):
    """The result of a comparison. `faults`: a line for each difference."""

    queues: int
    messages: int
    faults: list[str]


def compare_queues(
    context: MoveContext, copiers: Iterable[QueueCopier], wanted: Callable[[StoredRecord], bool]
) -> Verified:
    """Compare the copies so far with the source, queue by queue. `wanted`: returns whether a record of the
    source is part of the move."""
    queues = messages = 0
    faults = []
    for copier in copiers:
        source, target = compare_queue(context, copier, wanted)
        queues, messages = queues + 1, messages + target.messages
        if source != target:
            faults.append(
                f"{copier.source.topic} queue {copier.source.queue_id}: {source.messages:,} messages "
                f"(checksum {source.check:016x}) at the source below offset {copier.position:,}, "
                f"{target.messages:,} copies ({target.check:016x}) at the target"
            )
    return Verified(queues, messages, faults)


def compare_queue(
    context: MoveContext, copier: QueueCopier, wanted: Callable[[StoredRecord], bool]
) -> tuple[QueueSum, QueueSum]:
    """Return the count and digest sum of one queue's messages at the source, and those at the target."""
    ours = ask_patiently(context, lambda: context.target.bounds([copier.target]))[0] or Bounds(0, 0)
    copies = _Sum()
    theirs = ask_patiently(context, lambda: context.source.bounds([copier.source]))[0] or Bounds(0, 0)
    oldest = theirs.min
    for record in all_records(context, context.target, copier.target, ours.min, ours.next):
        offset = copier.origin.offset_of(record.system.get(MOVED_PROPERTY, ""))
        if offset < 0:
            continue
        if not copies.count and ours.min:
            oldest = max(oldest, offset)  # retention has taken those before it
        if offset >= oldest:
            copies.add(offset, record)
    originals = _Sum()
    for record in all_records(context, context.source, copier.source, oldest, copier.position):
        if wanted(record) and not copier.is_already_finished(record.offset):
            originals.add(record.offset, record)
    return originals.result_sum(), copies.result_sum()


class _Sum:
    def __init__(self) -> None:
        self.count = 0
        self._check = 0

    def add(self, offset: int, record: StoredRecord) -> None:
        self.count += 1
        value = int.from_bytes(hash_record(record), "big")
        self._check += value * (2 * offset + 1)  # odd: what is exchanged between offsets changes it

    def result_sum(self) -> QueueSum:
        return QueueSum(self.count, self._check % _END)
