"""Group progress: the offsets of one queue that a group has finished, and the fence against old results.

A delta is applied or refused as a unit. It is refused with FencedError if its epoch or generation is below
the recorded one (its sender has lost the queue, or the offsets were reset since), or if it names a higher
generation without being the reset that starts it. `check_delta` refuses invalid deltas before anything is
written. A higher epoch is recorded with the delta. Applying the same delta twice changes nothing, except that
a repeated reset is refused, because its generation is no longer higher.

Pure: an engine applies a delta when it is durable. An engine that accepts several batches before the first is
durable checks each against the Fence after the earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from backend.progress.ack_map import OFFSET_END, AckMap
from backend.records import ProgressDelta, ProgressView, QueueRef
from ddmq_common.errors import BoundReachedError, FencedError

Key = tuple[str, QueueRef]  # group, queue


class Fence(NamedTuple):
    """The lowest epoch that a delta may have, and the only generation."""

    epoch: int = 0
    generation: int = 0


OPEN_FENCE = Fence()
NO_PROGRESS = ProgressView(None, (), {}, 0, 0)


def check_delta(delta: ProgressDelta) -> None:
    """Raise ValueError if `delta` is invalid for every recorded progress."""
    if delta.epoch < 0 or delta.generation < 0:
        raise ValueError(
            _describe_rejection(delta, f"epoch {delta.epoch} or generation {delta.generation} is negative")
        )
    reset = delta.reset_to
    if reset is not None and (delta.finished or delta.attempts or not 0 <= reset < OFFSET_END):
        raise ValueError(
            _describe_rejection(delta, f"a reset goes to an offset from 0, alone; this one goes to {reset}")
        )
    for start, end in delta.finished:
        if not 0 <= start < end <= OFFSET_END:
            raise ValueError(
                _describe_rejection(delta, f"range [{start}, {end}); allowed are 0 <= start < end < 2**63")
            )
    for offset, attempts in delta.attempts:
        if not 0 <= offset < OFFSET_END or not 0 < attempts <= OFFSET_END:
            raise ValueError(
                _describe_rejection(delta, f"{attempts} attempts of offset {offset}; allowed are 1 or more")
            )


def check_fence(fence: Fence, delta: ProgressDelta) -> Fence:
    """Return the fence after `delta`. Raises FencedError if `fence` rejects it."""
    epoch, generation = fence
    if delta.epoch < epoch:
        raise FencedError(
            _describe_rejection(delta, f"epoch {delta.epoch} is over, the queue is held under {epoch}")
        )
    if delta.reset_to is None:
        if delta.generation != generation:
            raise FencedError(
                _describe_rejection(delta, f"generation {delta.generation} is not the current {generation}")
            )
        return fence if delta.epoch == epoch else Fence(delta.epoch, generation)
    if delta.generation <= generation:
        raise FencedError(
            _describe_rejection(delta, f"a reset to generation {delta.generation}; current is {generation}")
        )
    return Fence(delta.epoch, delta.generation)


def _describe_rejection(delta: ProgressDelta, reason: str) -> str:
    queue = delta.queue
    return f"progress of group {delta.group} on {queue.topic} queue {queue.queue_id} refused: {reason}"


class GroupProgress:
    """One group's progress on one queue. `started`: whether any offset was finished or reset yet."""

    __slots__ = ("acks", "fence", "started")

    def __init__(self) -> None:
        self.acks = AckMap()
        self.fence = OPEN_FENCE
        self.started = False

    def apply(self, delta: ProgressDelta) -> None:
        """Add the changes of `delta` to this progress. Raises FencedError, and changes nothing, if it is
        fenced."""
        self.fence = check_fence(self.fence, delta)
        if delta.reset_to is not None:
            self.acks.reset(delta.reset_to)
            self.started = True
            return
        if delta.finished:
            self.acks.finish(delta.finished)
            self.started = True
        for offset, attempts in delta.attempts:
            self.acks.record_attempts(offset, attempts)

    def copy(self) -> GroupProgress:
        """Return an independent copy."""
        other = GroupProgress()
        other.acks, other.fence, other.started = self.acks.copy(), self.fence, self.started
        return other

    def view(self) -> ProgressView:
        """Return the progress in the form that the next holder of the queue gets."""
        return ProgressView(
            self.acks.committed if self.started else None,
            tuple(self.acks.finished()),
            dict(self.acks.attempts),
            self.fence.epoch,
            self.fence.generation,
        )


class ProgressTable:
    """The progress of every group on every queue. Complete commits are checked before they are applied."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Key, GroupProgress] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[Key, GroupProgress]]:
        """Iterate over the progress of all groups, for a snapshot; the table must not change meanwhile."""
        return iter(self._entries.items())

    def get(self, group: str, queue: QueueRef) -> GroupProgress | None:
        """Return the progress of a group on a queue, or None."""
        return self._entries.get((group, queue))

    def put(self, group: str, queue: QueueRef, progress: GroupProgress) -> None:
        """Set the progress of a group on a queue, from a snapshot."""
        self._entries[group, queue] = progress

    def view(self, group: str, queue: QueueRef) -> ProgressView:
        """Return the recorded progress, or NO_PROGRESS."""
        entry = self._entries.get((group, queue))
        return NO_PROGRESS if entry is None else entry.view()

    def fence(self, group: str, queue: QueueRef) -> Fence:
        """Return the fence that the next delta has to pass."""
        entry = self._entries.get((group, queue))
        return OPEN_FENCE if entry is None else entry.fence

    def check(
        self,
        deltas: Iterable[ProgressDelta],
        ahead: Mapping[Key, Fence] | None = None,
        entries_max: int | None = None,
    ) -> dict[Key, Fence]:
        """Return the fences after `deltas`, applied in order. Changes nothing.

        `ahead`: the fences after batches that were checked earlier and are not applied yet.
        Raises FencedError, and BoundReachedError if there would be more than `entries_max` entries.
        """
        after: dict[Key, Fence] = {}
        for delta in deltas:
            key = (delta.group, delta.queue)
            fence = after.get(key)
            if fence is None and ahead is not None:
                fence = ahead.get(key)
            after[key] = check_fence(self.fence(*key) if fence is None else fence, delta)
        if entries_max is not None:
            self._check_bound(after, ahead or {}, entries_max)
        return after

    def _check_bound(self, after: Mapping[Key, Fence], ahead: Mapping[Key, Fence], entries_max: int) -> None:
        entries = self._entries
        if len(entries) + len(ahead) + len(after) <= entries_max:
            return
        additions = {key for key in after if key not in entries and key not in ahead}
        there = len(entries) + sum(key not in entries for key in ahead)
        if additions and there + len(additions) > entries_max:
            raise BoundReachedError(
                f"{there} pairs of group and queue have progress, the bound is {entries_max} pairs; "
                "progress of deleted groups is removed with their topics"
            )

    def apply(self, delta: ProgressDelta) -> None:
        """Add `delta` to the progress of its group and queue. Raises FencedError, without a change, if it is
        fenced."""
        key = (delta.group, delta.queue)
        entry = self._entries.get(key)
        if entry is None:
            entry = GroupProgress()
            entry.apply(delta)
            self._entries[key] = entry
        else:
            entry.apply(delta)

    def drop_queues(self, topic: str, incarnation: int) -> int:
        """Forget a deleted topic's progress; return how many entries it had."""
        keys = [key for key in self._entries if key[1].topic == topic and key[1].incarnation == incarnation]
        for key in keys:
            del self._entries[key]
        return len(keys)
