"""Compares the copies with their originals: the counts and checksums of each queue.

A queue's checksum is the sum of the digests of its messages (core/copies.py). It depends on the source offset
that each copy names, not on the copy's own offset. Messages that retention has deleted on one side are left
out on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from backend.records import Bounds, StoredRecord
from ddmq.move.context import MoveContext, all_records, request_until_answered
from ddmq.move.copier import QueueCopier
from ddmq.move.core.copies import hash_record
from ddmq_common.names import MOVED_PROPERTY

_END = 1 << 64


class QueueSum(NamedTuple):
    """The number of messages of a queue, and the sum of their digests."""

    messages: int
    check: int


class Comparison(NamedTuple):
    """The result of a comparison. `differences`: a line for each difference."""

    queues: int
    messages: int
    differences: list[str]


def compare_queues(
    context: MoveContext, copiers: Iterable[QueueCopier], is_included: Callable[[StoredRecord], bool]
) -> Comparison:
    """Compare the copies so far with the source, queue by queue. `is_included`: returns whether a record of
    the source is part of the move."""
    queues = messages = 0
    differences = []
    for copier in copiers:
        source, target = compare_queue(context, copier, is_included)
        queues, messages = queues + 1, messages + target.messages
        if source != target:
            differences.append(
                f"{copier.source.topic} queue {copier.source.queue_id}: {source.messages:,} messages "
                f"(checksum {source.check:016x}) at the source below offset {copier.position:,}, "
                f"{target.messages:,} copies ({target.check:016x}) at the target"
            )
    return Comparison(queues, messages, differences)


def compare_queue(
    context: MoveContext, copier: QueueCopier, is_included: Callable[[StoredRecord], bool]
) -> tuple[QueueSum, QueueSum]:
    """Return the count and digest sum of one queue's messages at the source, and those at the target."""
    target_bounds = request_until_answered(context, lambda: context.target.bounds([copier.target]))[
        0
    ] or Bounds(0, 0)
    copies = _Sum()
    source_bounds = request_until_answered(context, lambda: context.source.bounds([copier.source]))[
        0
    ] or Bounds(0, 0)
    oldest = source_bounds.min
    for record in all_records(context, context.target, copier.target, target_bounds.min, target_bounds.next):
        offset = copier.origin.offset_of(record.system.get(MOVED_PROPERTY, ""))
        if offset < 0:
            continue
        if not copies.count and target_bounds.min:
            oldest = max(oldest, offset)  # retention has taken those before it
        if offset >= oldest:
            copies.add(offset, record)
    originals = _Sum()
    for record in all_records(context, context.source, copier.source, oldest, copier.position):
        if is_included(record) and not copier.is_already_finished(record.offset):
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
