"""Which offset of a target's queue holds the copy of which offset of the source's, and progress by it. Pure.

The map is built of the target's records in their order: copies, whose source offsets ascend, and messages
that the target was sent itself, which are finished for nobody. Runs keep it small: a record that follows
the one before it on both sides costs nothing. Everything below `base` is a copy of what every group in
question has finished.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from backend.records import ProgressView

OWN = -1  # in place of a source offset: the target was sent it itself


class MappedProgress(NamedTuple):
    """A group's progress in offsets of the target. `finished`: ascending, disjoint ranges above
    `committed`."""

    committed: int
    finished: tuple[tuple[int, int], ...]
    attempts: tuple[tuple[int, int], ...]

    def stands_in(self, view: ProgressView) -> bool:
        """Return whether a view of a queue's progress is exactly this progress."""
        same = (view.committed or 0) == self.committed and view.finished == self.finished
        return same and dict(view.attempts) == dict(self.attempts)


class OffsetMap:
    """Maps the offsets of one source queue to those of its copies in the target. `base`: see the module's
    text."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._sources: list[int] = []  # of the first record of each run, OWN for all of a run
        self._targets: list[int] = []
        self._counts: list[int] = []
        self._copies: list[int] = []  # which runs are copies, and …
        self._firsts: list[int] = []  # … the source offset of the first of each

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._counts)

    def add(self, target: int, source: int) -> None:
        """Add the next record of the target. `source`: the offset of which it is a copy, or OWN."""
        if self._counts:
            count = self._counts[-1]
            follows = self._sources[-1] + count if self._sources[-1] != OWN else OWN
            if target == self._targets[-1] + count and source == follows:
                self._counts[-1] += 1
                return
        self._sources.append(source)
        self._targets.append(target)
        self._counts.append(1)
        if source != OWN:
            self._copies.append(len(self._counts) - 1)
            self._firsts.append(source)

    def target_of(self, source: int) -> int | None:
        """Return the target offset of the copy of `source`; None if there is none at or above `base`."""
        index = bisect_right(self._firsts, source) - 1
        if index < 0:
            return None
        run = self._copies[index]
        behind = source - self._sources[run]
        return self._targets[run] + behind if behind < self._counts[run] else None

    def progress(self, view: ProgressView) -> MappedProgress:
        """Translate a group's progress at the source into its progress at the target."""
        ranges = list(_join_ranges(0, self.base, self._mapped_ranges(_finished_ranges(view))))
        committed = ranges.pop(0)[1] if ranges and ranges[0][0] == 0 else 0
        attempts = ((self.target_of(offset), count) for offset, count in sorted(view.attempts.items()))
        mapped = tuple((offset, count) for offset, count in attempts if offset is not None)
        return MappedProgress(committed, tuple(ranges), mapped)

    def _mapped_ranges(self, finished: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
        """Yield all records as ranges (start, end, whether they are finished), ascending."""
        ends = [end for _, end in finished]
        for source, target, count in zip(self._sources, self._targets, self._counts, strict=True):
            if source == OWN:
                yield target, target + count, False
                continue
            shift, at, end = target - source, source, source + count
            index = bisect_right(ends, at)
            while at < end:
                start, stop = finished[index] if index < len(finished) else (end, end)
                if start > at:
                    yield at + shift, min(start, end) + shift, False
                if start < end:
                    yield max(start, at) + shift, min(stop, end) + shift, True
                at, index = min(max(stop, at), end), index + 1


def _finished_ranges(view: ProgressView) -> list[tuple[int, int]]:
    below = [(0, view.committed)] if view.committed else []
    return below + list(view.finished)


def _join_ranges(start: int, end: int, ranges: Iterable[tuple[int, int, bool]]) -> Iterator[tuple[int, int]]:
    """Join neighbouring finished ranges within `[start, end)`, and yield the joined ones.

    `ranges` are (first, after, finished). Between two successive ranges there are no records.
    """
    open_ = True
    for first, after, finished in ranges:
        if finished:
            if not open_:
                start, open_ = first, True
            end = after
        elif open_:
            if end > start:
                yield start, end
            open_ = False
    if open_ and end > start:
        yield start, end


def lowest_unfinished(views: Iterable[ProgressView]) -> int | None:
    """Return the offset below which every group has finished every message; None if no group has progress."""
    offsets = [view.committed for view in views if view.committed is not None]
    return min(offsets, default=None)
