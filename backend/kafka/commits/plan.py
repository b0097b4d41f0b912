"""CommitPlan: several commits checked one after the other, and what they come to as records of Kafka. Pure.

Each is checked against the state as the earlier ones of the plan leave it, and goes in whole or not at all.
Nothing of the state itself changes until Kafka has answered: `stored` is told then, with the offsets.

Progress is written as whole states, one for each group and queue however many commits changed it. A state of
more than PROGRESS_BYTES_MAX is not cut: a commit that would make it larger is refused with BoundReachedError
(nothing of it is stored, so nothing acknowledged is lost) until lower offsets are finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from backend.engine import check_absent, check_settings
from backend.kafka.state.followed import KafkaState
from backend.kafka.state.tables import (
    PROGRESS_BYTES_MAX,
    encoded,
    progress_partition,
    setting_key,
    topic_key,
    wrapped,
)
from backend.progress.group_progress import Fence, GroupProgress, Key, check_fence
from backend.records import CommitBatch, NewRecord, ProgressDelta, QueueRef
from backend.setting_counts import ROOT, check_limits
from ddmq_common.errors import BoundReachedError, UnknownTopicError

Headers = list[tuple[str, bytes]]
_GROWTH = 2 * 1036  # that one finished range can add at most, in bytes: two pages


class KafkaWrite(NamedTuple):
    """One record for a producer. `topic`: its name in Kafka."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


class CommitTerms(NamedTuple):
    """What a plan asks about. `encode`: a record for Kafka; `refusal`: why a record is not taken.

    `living`: whether a queue exists. `floor`: no lower epoch is taken from this process any more;
    it is asked with that of the delta.
    """

    encode: Callable[[NewRecord], KafkaWrite]
    refusal: Callable[[NewRecord], Exception | None]
    living: Callable[[QueueRef], bool]
    floor: Callable[[Key, int], int]
    settings_max: int
    progress_max: int


class CommitPlan:
    """The commits that were taken in, together."""

    def __init__(self, state: KafkaState, terms: CommitTerms) -> None:
        self._state = state
        self._terms = terms
        self.progress: dict[Key, GroupProgress] = {}
        self._settings: dict[str, bytes | None] = {}
        self._infos: dict[str, bytes | None] = {}
        self._dropped: list[tuple[Key, bytes]] = []
        self.records: list[NewRecord] = []
        self._coded: list[tuple[Key, bytes, bytes | None]] = []
        self._places: list[KafkaWrite] = []

    def __bool__(self) -> bool:
        return bool(self.records or self.progress or self._settings or self._infos or self._dropped)

    @property
    def whole(self) -> bool:
        """Whether it has to be a transaction."""
        return bool(self.records or self._settings or self._infos)

    # --- taking in

    def add(self, batch: CommitBatch) -> None:
        """Take a commit in. Raises what Backend.commit fails with, and changes nothing then."""
        fences = self._fences(batch.progress)
        for record in batch.records:
            error = self._terms.refusal(record)
            if error is not None:
                raise error
        self._check_settings(batch)
        self._check_bounds(batch.progress, fences)
        for delta in batch.progress:
            self._copy((delta.group, delta.queue)).apply(delta)
        self._settings.update(batch.settings)
        self.records += batch.records

    def put_topic_info(self, name: str, value: bytes | None) -> None:
        """What is kept under a topic's name."""
        self._infos[name] = value

    def forget(self, topic: str, incarnation: int) -> None:
        """The progress of every group on a topic that is gone."""
        self._dropped += self._state.progress.of_topic(topic, incarnation)

    def _fences(self, deltas: Sequence[ProgressDelta]) -> dict[Key, Fence]:
        fences: dict[Key, Fence] = {}
        for delta in deltas:
            key = (delta.group, delta.queue)
            if not self._terms.living(delta.queue):
                raise UnknownTopicError(f"queue {delta.queue} of a progress delta does not exist (any more)")
            fences[key] = check_fence(fences.get(key) or self._fence(key, delta.epoch), delta)
        return fences

    def _fence(self, key: Key, epoch: int) -> Fence:
        changed = self.progress.get(key)
        fence = self._state.progress.fence(key) if changed is None else changed.fence
        floor = self._terms.floor(key, epoch)
        return fence if floor <= fence.epoch else Fence(floor, fence.generation)

    def _check_settings(self, batch: CommitBatch) -> None:
        check_settings(batch.settings, self._is_there, self._count_settings(ROOT), self._terms.settings_max)
        check_limits(batch.limits, batch.settings, self._is_there, self._count_settings)
        check_absent([key for key in batch.absent if self._is_there(key)], batch.absent)

    def _count_settings(self, folder: str) -> int:
        """Count the settings of a folder as the earlier commits of the plan leave them."""
        stored = self._state.settings
        count = len(stored) if folder == ROOT else sum(key.startswith(folder) for key in stored)
        for key, value in self._settings.items():
            if key.startswith(folder):
                count += (value is not None) - (key in stored)
        return count

    def _is_there(self, key: str) -> bool:
        if key in self._settings:
            return self._settings[key] is not None
        return key in self._state.settings

    def _check_bounds(self, deltas: Sequence[ProgressDelta], fences: dict[Key, Fence]) -> None:
        known, most = self._state.progress, self._terms.progress_max
        if len(known) + len(self.progress) + len(fences) > most:
            made = {key for key in (*self.progress, *fences) if key not in known}
            if len(known) + len(made) > most and any(key in made for key in fences):
                raise BoundReachedError(
                    f"{len(known)} pairs of group and queue have progress, the bound is {most} pairs"
                )
        for delta in deltas:
            key = (delta.group, delta.queue)
            progress = self.progress.get(key) or known.get(key) or GroupProgress()
            acks = progress.acks
            growth = len(delta.finished) * _GROWTH + len(delta.attempts) * 12
            if acks.weight + growth > PROGRESS_BYTES_MAX and delta.reset_to is None:
                after = acks.copy()
                after.finish(delta.finished)
                if after.weight > max(PROGRESS_BYTES_MAX, acks.weight):
                    raise BoundReachedError(
                        f"progress of group {delta.group} on {delta.queue.topic} queue {delta.queue.queue_id}"
                        f" takes {after.weight} bytes, the bound is {PROGRESS_BYTES_MAX} bytes: finish"
                        f" offset {acks.committed} and those after it first"
                    )

    def _copy(self, key: Key) -> GroupProgress:
        progress = self.progress.get(key)
        if progress is None:
            found = self._state.progress.get(key)
            progress = self.progress[key] = GroupProgress() if found is None else found.copy()
            progress.fence = self._state.progress.fence(key)
        return progress

    # --- what it comes to

    def writes(self) -> list[KafkaWrite]:
        """Everything, `records` first; in this order."""
        state, topics = self._state, self._state.topics
        for key, progress in self.progress.items():
            self._coded.append((key, *encoded(key, progress)))
        self._coded += [(key, data, None) for key, data in state.progress.outdated(self.progress)]
        self._coded += [(key, data, None) for key, data in self._dropped]
        self._places = [
            KafkaWrite(topics.progress, progress_partition(key, state.partitions), data, value)
            for key, data, value in self._coded
        ]
        for name, value in self._settings.items():
            kept = None if value is None else wrapped(value)
            self._places.append(KafkaWrite(topics.settings, 0, setting_key(name), kept))
        for name, value in self._infos.items():
            kept = None if value is None else wrapped(value)
            self._places.append(KafkaWrite(topics.settings, 0, topic_key(name), kept))
        return [self._terms.encode(record) for record in self.records] + self._places

    def stored(self, offsets: Sequence[int]) -> None:
        """Kafka has answered: the state has it from now on. `offsets`: of `writes`, in its order."""
        state = self._state
        for place, write in enumerate(self._places):
            offset = offsets[len(self.records) + place]
            assert write.key is not None
            if write.topic == state.topics.settings:
                state.wrote(write.partition, offset, write.key, write.value)
            elif state.progress.followed.wrote(write.partition, offset, write.key):
                known = None if write.value is None else self.progress.get(self._coded[place][0])
                state.progress.apply(write.key, write.value, known)

    def is_stored(self) -> bool | None:
        """Whether the state, followed to its end, holds what was written; None where that cannot be told."""
        state = self._state
        signs = [
            state.progress.holds(write.key, write.value)
            if write.topic == state.topics.progress
            else state.holds_setting(write.key, write.value)
            for write in self._places
            if write.key is not None and write.value is not None
        ]
        if False in signs:
            return False
        return None if not signs or None in signs else True
