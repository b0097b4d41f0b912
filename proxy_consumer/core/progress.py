"""Finished offsets of a queue: as ranges `[start, end)`, and the progress that is not durable yet.

Every change that must survive a restart is first recorded in UncommittedProgress. `collect_delta` turns it
into one ProgressDelta for the caller to commit; `on_committed` or `restore` reports the result. So a failed
commit is repeated with the next one, and an acknowledgement that a client repeats during the first commit is
committed again before the client gets its reply. Chains wait for that result too (order/chains.py).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import takewhile

from backend.progress.ack_map import OFFSET_END, AckMap
from backend.records import ProgressDelta, QueueRef

Range = tuple[int, int]


def ranges_of(offsets: Sequence[int]) -> list[Range]:
    """Return ascending disjoint ranges that contain exactly `offsets`. These may repeat and come in any
    order."""
    if not offsets:
        return []
    first, count = offsets[0], len(offsets)
    if offsets[-1] - first == count - 1 and list(offsets) == list(range(first, first + count)):
        return [(first, first + count)]
    return ascending_ranges(sorted(set(offsets)))


def ascending_ranges(offsets: Sequence[int]) -> list[Range]:
    """Return the ranges of offsets that ascend without repeating; a straight run costs one comparison."""
    if not offsets:
        return []
    start, last = offsets[0], offsets[-1]
    if last - start == len(offsets) - 1:
        return [(start, last + 1)]
    ranges: list[Range] = []
    end = start
    for offset in offsets:
        if offset != end:
            ranges.append((start, end))
            start = offset
        end = offset + 1
    ranges.append((start, end))
    return ranges


def gaps_between(start: int, end: int, covered: Sequence[Range]) -> list[Range]:
    """Return the ranges of `[start, end)` outside `covered`: ascending disjoint ranges inside it."""
    gaps: list[Range] = []
    for first, after in covered:
        if first > start:
            gaps.append((start, first))
        start = after
    if start < end:
        gaps.append((start, end))
    return gaps


class UncommittedProgress:
    """The progress of one queue that is not durable yet. Its methods never yield."""

    __slots__ = ("_finished", "_in_flight", "_marks", "_open_end", "_open_start")

    def __init__(self) -> None:
        self._finished: list[Range] = []
        self._marks: list[tuple[int, int]] = []
        self._in_flight: list[ProgressDelta] = []  # collected; all their ranges are within the next two:
        self._open_start, self._open_end = OFFSET_END, 0

    def __bool__(self) -> bool:
        return bool(self._finished or self._marks)

    @property
    def in_commit(self) -> bool:
        """Whether a collected delta is still being committed."""
        return bool(self._in_flight)

    def has_finished(self, offset: int) -> bool:
        """Whether the offset is finished, but perhaps not durably yet."""
        return any(
            start <= offset < end
            for ranges in (self._finished, *[delta.finished for delta in self._in_flight])
            for start, end in ranges
        )

    def add_finished(self, start: int, end: int) -> None:
        """Record that the offsets `[start, end)` are finished."""
        self._finished.append((start, end))

    def mark_attempts(self, offset: int, packed: int) -> None:
        """Record the attempts of the message at `offset`, packed as in UpstreamJob.packed_attempts."""
        self._marks.append((offset, packed))

    def repeat_acks(self, start: int, end: int, ack_map: AckMap) -> None:
        """Commit again the finished offsets of `[start, end)` that a commit in flight may contain.

        A client repeated their acknowledgement, and gets its reply only when they are durable.
        """
        if start < self._open_end and end > self._open_start:
            open_range = range(max(start, self._open_start), min(end, self._open_end))
            self._finished.extend(ranges_of([offset for offset in open_range if ack_map.is_finished(offset)]))

    def uncertain_acks(self, ack_map: AckMap) -> list[Range]:
        """Return the finished ranges that may not be durable; ranges between those in flight are included."""
        ranges = list(self._finished)
        if self._in_flight and self._open_start < ack_map.committed:
            ranges.append((self._open_start, min(self._open_end, ack_map.committed)))
        if self._in_flight:
            above = takewhile(lambda one: one[0] < self._open_end, ack_map.finished(self._open_start))
            ranges += [(start, min(end, self._open_end)) for start, end in above]
        return ranges

    def collect_delta(self, group: str, queue: QueueRef, epoch: int, generation: int) -> ProgressDelta | None:
        """Return all uncommitted progress as one delta and mark it as being committed; None if there is
        none."""
        if not (self._finished or self._marks):
            return None
        delta = ProgressDelta(group, queue, epoch, generation, self._finished, self._marks)
        for start, end in self._finished:
            self._open_start = min(self._open_start, start)
            self._open_end = max(self._open_end, end)
        self._finished, self._marks = [], []
        self._in_flight.append(delta)
        return delta

    def on_committed(self, delta: ProgressDelta) -> None:
        """Record that a collected delta is durable."""
        self._in_flight = [other for other in self._in_flight if other is not delta]
        if not self._in_flight:
            self._open_start, self._open_end = OFFSET_END, 0

    def restore(self, delta: ProgressDelta, unfinished: Container[int]) -> None:
        """Take back a collected delta that is not (or not certainly) durable, so that it is committed
        again."""
        self.on_committed(delta)
        merged = sorted([*delta.finished, *self._finished])
        self._finished = []
        for start, end in merged:
            if self._finished and start <= self._finished[-1][1]:
                last = self._finished[-1]
                self._finished[-1] = (last[0], max(last[1], end))
            else:
                self._finished.append((start, end))
        marks: dict[int, int] = {}
        for offset, packed in (*delta.attempts, *self._marks):
            if offset in unfinished:
                marks[offset] = max(packed, marks.get(offset, 0))  # deltas may come back in any order
        self._marks = list(marks.items())
