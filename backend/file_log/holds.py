"""The holds that keep segments from being deleted: for young dead letters, for delayed messages that have not
fired, and for messages of undecided transactions.

Dead letters stay for three days, delay commands until the delay service has stored them.

Retention asks for the holds in each round, in its greenlet. The code uses the port only, so it knows no
files. It is cheap: a level is checked again only when its progress has moved, or when it was empty and has
messages now. A queue's oldest young dead letter is remembered until it is three days old, and an empty queue
is checked again only after an append. All answers of a round describe its beginning. Store times ascend with
log positions, so every dead letter after a young one is young, and none is deleted before an older one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from backend.file_log.core.retention import Hold, OldSegment, SegmentHold
from backend.port import Backend
from backend.records import QueueRef, ReadStatus
from ddmq_common.clock import Clock
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC, is_dead_letters

WAIT_S = 30.0


class _Head(NamedTuple):
    """The oldest message of one level that has not fired; position -1 means that there is none."""

    offset: int
    next: int
    position: int


class LevelHolds:
    """A callable that returns the hold for the unprocessed messages of one topic.

    Raises what the port raises. `reason` names the held messages in log lines.
    """

    def __init__(
        self,
        backend: Backend,
        topic: str = SCHEDULE_TOPIC,
        group: str = LEVELS_GROUP,
        reason: str = "messages of delay levels that are not fired",
    ) -> None:
        self._backend = backend
        self._topic = topic
        self._group = group
        self._reason = reason
        self._latest: dict[QueueRef, _Head] = {}

    def __call__(self) -> list[Hold]:
        info = self._backend.topic(self._topic)
        if info is None:
            return []
        refs = info.refs()
        views = self._backend.progress(self._group, refs).wait(WAIT_S)
        bounds = self._backend.bounds(refs).wait(WAIT_S)
        heads = {
            ref: self._read_head(ref, max(view.committed or 0, limits.min), limits.next)
            for ref, view, limits in zip(refs, views, bounds, strict=True)
            if limits is not None
        }
        self._latest = heads
        positions = [head.position for head in heads.values() if head.position >= 0]
        return [Hold(min(positions), self._reason)] if positions else []

    def _read_head(self, ref: QueueRef, offset: int, end: int) -> _Head:
        if offset >= end:
            return _Head(offset, end, -1)
        cached = self._latest.get(ref)
        if cached is not None and cached.offset == offset and (cached.position >= 0 or cached.next == end):
            return cached
        batch = self._backend.read(ref, offset, 1, 0).wait(WAIT_S)
        has_record = batch.status is ReadStatus.DATA and len(batch.offsets) > 0
        return _Head(offset, end, batch.positions[0] if has_record else -1)


KEEP_MS = 3 * 24 * 3_600_000


class _DeadLetter(NamedTuple):
    """The position of one dead letter; -1 means that there is none."""

    offset: int
    position: int
    stored_ms: int


class _Oldest(NamedTuple):
    """The oldest young dead letter of a queue whose next offset was `next`."""

    dead_letter: _DeadLetter
    next: int


_NONE = _DeadLetter(0, -1, 0)


class DeadLetterHolds:
    """A callable that returns, for one round of retention, a test of which segments hold young dead letters.

    A dead letter is retained for at least `keep_ms`. Raises what the port raises.
    """

    def __init__(self, backend: Backend, clock: Clock, keep_ms: int = KEEP_MS) -> None:
        self._backend = backend
        self._clock = clock
        self._keep_ms = keep_ms
        self._latest: dict[QueueRef, _Oldest] = {}
        self._newest: dict[tuple[int, QueueRef], _DeadLetter] = {}  # by segment, of the round before

    def __call__(self) -> SegmentHold:
        young_from_ms = self._clock.wall_ms() - self._keep_ms + 1
        self._latest = {
            ref: self._find_oldest(ref, end, young_from_ms) for ref, end in self._dead_letter_queues()
        }
        before, self._newest = self._newest, {}

        def find_hold(segment: OldSegment) -> Hold | None:
            for ref, oldest in self._latest.items():
                dead_letter = oldest.dead_letter
                if 0 <= dead_letter.position < segment.start:
                    key = segment.start, ref
                    newest = before.get(key) or self._last_before(ref, oldest, segment.end)
                    dead_letter = self._newest[key] = newest
                if (
                    segment.start <= dead_letter.position < segment.end
                    and dead_letter.stored_ms >= young_from_ms
                ):
                    return Hold(
                        dead_letter.position, f"dead letters under {self._keep_ms / 86_400_000:g} days"
                    )
            return None

        return find_hold

    def _dead_letter_queues(self) -> Iterator[tuple[QueueRef, int]]:
        topics = self._backend.topics().values()
        refs = [ref for info in topics if is_dead_letters(info.name) for ref in info.refs()]
        if refs:
            bounds = self._backend.bounds(refs).wait(WAIT_S)
            yield from (
                (ref, limits.next) for ref, limits in zip(refs, bounds, strict=True) if limits is not None
            )

    def _find_oldest(self, ref: QueueRef, end: int, young_from_ms: int) -> _Oldest:
        cached = self._latest.get(ref)
        if cached is not None and (cached.dead_letter.stored_ms >= young_from_ms or cached == (_NONE, end)):
            return cached._replace(next=end)
        offset = self._backend.offset_for_time(ref, young_from_ms).wait(WAIT_S)
        return _Oldest(self._read_dead_letter(ref, offset, end), end)

    def _read_dead_letter(self, ref: QueueRef, offset: int, end: int) -> _DeadLetter:
        """Return the first dead letter from `offset` on."""
        if offset < end:
            batch = self._backend.read(ref, offset, 1, 0).wait(WAIT_S)
            if batch.status is ReadStatus.DATA and batch.offsets:
                return _DeadLetter(batch.offsets[0], batch.positions[0], batch.record(0).stored_ms)
        return _NONE

    def _last_before(self, ref: QueueRef, oldest: _Oldest, position: int) -> _DeadLetter:
        """Return the newest dead letter before `position`. The oldest one must be before it."""
        newest, high = oldest.dead_letter, oldest.next
        while newest.offset + 1 < high:
            middle = (newest.offset + 1 + high) // 2
            dead_letter = self._read_dead_letter(ref, middle, oldest.next)
            if 0 <= dead_letter.position < position:
                newest = dead_letter
            else:
                high = middle
        return newest
