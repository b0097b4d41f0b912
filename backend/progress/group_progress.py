"""Group progress: what a group has finished of one queue, and who may still say so.

A delta is applied whole or refused whole. It is refused with FencedError when its epoch or its
generation is below what is recorded (its sender has lost the queue, or someone reset the offsets
since), and also when it names a generation above the recorded one without being the reset that starts
it; `check_delta` refuses what no queue could take, before anything is written. A higher epoch is taken
over with the delta. Applying the same delta again changes nothing, except that a repeated reset is
refused: its generation is no longer above.

Pure: the engines decide when a delta is durable and apply it then. An engine that takes several
batches before the first is durable checks each against the Fence that the earlier ones leave behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from backend.progress.ack_map import OFFSET_END, AckMap
from backend.records import ProgressDelta, ProgressView, QueueRef
from ddmq_common.errors import BoundReachedError, FencedError

Key = tuple[str, QueueRef]  # group, queue


class Fence(NamedTuple):
    """The lowest epoch and the one generation that a delta may carry."""

    epoch: int = 0
    generation: int = 0


OPEN_FENCE = Fence()
NO_PROGRESS = ProgressView(None, (), {}, 0, 0)


def check_delta(delta: ProgressDelta) -> None:
    """Raises ValueError when no queue could take `delta`, whatever is recorded."""
    if delta.epoch < 0 or delta.generation < 0:
        raise ValueError(_refusal(delta, f"epoch {delta.epoch} or generation {delta.generation} is negative"))
    reset = delta.reset_to
    if reset is not None and (delta.finished or delta.attempts or not 0 <= reset < OFFSET_END):
        raise ValueError(
            _refusal(delta, f"a reset goes to an offset from 0, alone; this one goes to {reset}")
        )
    for start, end in delta.finished:
        if not 0 <= start < end <= OFFSET_END:
            raise ValueError(_refusal(delta, f"range [{start}, {end}); allowed are 0 <= start < end < 2**63"))
    for offset, attempts in delta.attempts:
        if not 0 <= offset < OFFSET_END or not 0 < attempts <= OFFSET_END:
            raise ValueError(
                _refusal(delta, f"{attempts} attempts of offset {offset}; allowed are 1 or more")
            )


def check_fence(fence: Fence, delta: ProgressDelta) -> Fence:
    """The fence that `delta` leaves behind. Raises FencedError when `fence` keeps it out."""
    epoch, generation = fence
    if delta.epoch < epoch:
        raise FencedError(_refusal(delta, f"epoch {delta.epoch} is over, the queue is held under {epoch}"))
    if delta.reset_to is None:
        if delta.generation != generation:
            raise FencedError(
                _refusal(delta, f"generation {delta.generation} is not the current {generation}")
            )
        return fence if delta.epoch == epoch else Fence(delta.epoch, generation)
    if delta.generation <= generation:
        raise FencedError(
            _refusal(delta, f"a reset to generation {delta.generation}; current is {generation}")
        )
    return Fence(delta.epoch, delta.generation)


def _refusal(delta: ProgressDelta, reason: str) -> str:
    queue = delta.queue
    return f"progress of group {delta.group} on {queue.topic} queue {queue.queue_id} refused: {reason}"


class GroupProgress:
    """One group's progress on one queue. `started` is False until something was finished or reset."""

    __slots__ = ("acks", "fence", "started")

    def __init__(self) -> None:
        self.acks = AckMap()
        self.fence = OPEN_FENCE
        self.started = False

    def apply(self, delta: ProgressDelta) -> None:
        """Apply `delta`. Raises FencedError and changes nothing when it is over."""
        self.fence = check_fence(self.fence, delta)
        if delta.reset_to is not None:
            self.acks.reset(delta.reset_to)
            self.started = True
            return
        if delta.finished:
            self.acks.finish(delta.finished)
            self.started = True
        for offset, attempts in delta.attempts:
            self.acks.attempt(offset, attempts)

    def copy(self) -> GroupProgress:
        """Another one, with the same in it."""
        other = GroupProgress()
        other.acks, other.fence, other.started = self.acks.copy(), self.fence, self.started
        return other

    def view(self) -> ProgressView:
        """A copy for whoever takes the queue over."""
        return ProgressView(
            self.acks.committed if self.started else None,
            tuple(self.acks.finished()),
            dict(self.acks.attempts),
            self.fence.epoch,
            self.fence.generation,
        )


class ProgressTable:
    """The progress of every group on every queue, with commits checked whole before they are applied."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Key, GroupProgress] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[Key, GroupProgress]]:
        """Everything, for a snapshot; do not apply meanwhile."""
        return iter(self._entries.items())

    def get(self, group: str, queue: QueueRef) -> GroupProgress | None:
        """One entry, None when there is none."""
        return self._entries.get((group, queue))

    def put(self, group: str, queue: QueueRef, progress: GroupProgress) -> None:
        """Put one entry, as read from a snapshot."""
        self._entries[group, queue] = progress

    def view(self, group: str, queue: QueueRef) -> ProgressView:
        """What is recorded; NO_PROGRESS when nothing is."""
        entry = self._entries.get((group, queue))
        return NO_PROGRESS if entry is None else entry.view()

    def fence(self, group: str, queue: QueueRef) -> Fence:
        """What a delta has to pass now."""
        entry = self._entries.get((group, queue))
        return OPEN_FENCE if entry is None else entry.fence

    def check(
        self,
        deltas: Iterable[ProgressDelta],
        ahead: Mapping[Key, Fence] | None = None,
        entries_max: int | None = None,
    ) -> dict[Key, Fence]:
        """The fences that `deltas`, applied in order, leave behind. Changes nothing.

        `ahead`: fences left by batches that were checked before and are not applied yet.
        Raises FencedError, and BoundReachedError where an entry would be made beyond `entries_max`.
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
        made = {key for key in after if key not in entries and key not in ahead}
        there = len(entries) + sum(key not in entries for key in ahead)
        if made and there + len(made) > entries_max:
            raise BoundReachedError(
                f"{there} pairs of group and queue have progress, the bound is {entries_max} pairs; "
                "those of groups that are gone go with their topics"
            )

    def apply(self, delta: ProgressDelta) -> None:
        """Apply one delta. Raises FencedError and changes nothing when it is over."""
        key = (delta.group, delta.queue)
        entry = self._entries.get(key)
        if entry is None:
            entry = GroupProgress()
            entry.apply(delta)
            self._entries[key] = entry
        else:
            entry.apply(delta)

    def drop_queues(self, topic: str, incarnation: int) -> int:
        """Forget a deleted topic's progress; gives how many entries went."""
        gone = [key for key in self._entries if key[1].topic == topic and key[1].incarnation == incarnation]
        for key in gone:
            del self._entries[key]
        return len(gone)
