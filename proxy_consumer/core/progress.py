"""Finished offsets of a queue: as ranges `[start, end)`, and the progress that is not durable yet.

Every change that must survive a restart goes into UncommittedProgress first. `collect_delta` makes one
ProgressDelta of it for the shell to commit; `on_committed` or `restore` says how that went. So a commit that
failed is repeated with the next one, and a client that sends an acknowledgement again while the first
commit is still under way has it written again before it is answered.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import takewhile

from backend.progress.ack_map import OFFSET_END, AckMap
from backend.records import ProgressDelta, QueueRef

Range = tuple[int, int]


def ranges_of(offsets: Sequence[int]) -> list[Range]:
    """Ascending disjoint ranges that hold exactly `offsets`, which may repeat and come in any order."""
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


def gaps_between(start: int, end: int, kept: Sequence[Range]) -> list[Range]:
    """Return the parts of `[start, end)` outside `kept`, which are ascending disjoint ranges inside it."""
    gaps: list[Range] = []
    for first, after in kept:
        if first > start:
            gaps.append((start, first))
        start = after
    if start < end:
        gaps.append((start, end))
    return gaps


class UncommittedProgress:
    """Progress of one queue that is not durable yet. Never yields."""

    __slots__ = ("_finished", "_in_commit", "_marks", "_open_end", "_open_start")

    def __init__(self) -> None:
        self._finished: list[Range] = []
        self._marks: list[tuple[int, int]] = []
        self._in_commit = 0  # deltas collected and not committed; all their ranges lie in the next two:
        self._open_start, self._open_end = OFFSET_END, 0

    def __bool__(self) -> bool:
        return bool(self._finished or self._marks)

    @property
    def in_commit(self) -> bool:
        """Whether a collected delta is still under way."""
        return self._in_commit > 0

    def add_finished(self, start: int, end: int) -> None:
        """`[start, end)` is finished."""
        self._finished.append((start, end))

    def mark_attempts(self, offset: int, packed: int) -> None:
        """`offset` has so many attempts, as UpstreamJob.packed."""
        self._marks.append((offset, packed))

    def repeat_acks(self, start: int, end: int, ack_map: AckMap) -> None:
        """Someone repeats an acknowledgement that an open commit may hold: it is not durable yet."""
        if start < self._open_end and end > self._open_start:
            open_range = range(max(start, self._open_start), min(end, self._open_end))
            self._finished.extend(ranges_of([offset for offset in open_range if ack_map.is_finished(offset)]))

    def uncertain_acks(self, ack_map: AckMap) -> list[Range]:
        """Finished ranges that are not certainly durable; what lies between those under way comes too."""
        ranges = list(self._finished)
        if self._in_commit and self._open_start < ack_map.committed:
            ranges.append((self._open_start, min(self._open_end, ack_map.committed)))
        if self._in_commit:
            above = takewhile(lambda one: one[0] < self._open_end, ack_map.finished(self._open_start))
            ranges += [(start, min(end, self._open_end)) for start, end in above]
        return ranges

    def collect_delta(self, group: str, queue: QueueRef, epoch: int, generation: int) -> ProgressDelta | None:
        """Take everything as one delta, which is in flight then; None when there is nothing."""
        if not (self._finished or self._marks):
            return None
        delta = ProgressDelta(group, queue, epoch, generation, self._finished, self._marks)
        for start, end in self._finished:
            self._open_start = min(self._open_start, start)
            self._open_end = max(self._open_end, end)
        self._finished, self._marks = [], []
        self._in_commit += 1
        return delta

    def on_committed(self) -> None:
        """A collected delta is durable."""
        self._in_commit -= 1
        if self._in_commit == 0:
            self._open_start, self._open_end = OFFSET_END, 0

    def restore(self, delta: ProgressDelta, unfinished: Container[int]) -> None:
        """A collected delta is not (or not certainly) durable: it has to be committed again."""
        self.on_committed()
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
