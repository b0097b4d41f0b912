"""The requests that wait for the disk: each kind packs itself into a frame and answers its caller.

Rules: `pack` packs a request completely or answers it at once. A completion is settled once. Only a request
that was never handed to the disk is answered with "not stored".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from backend.completion import Completion
from backend.engine import ROOT, check_absent, check_change, check_limits, check_settings, check_topics_max
from backend.file_log.commit.packing import FramePacker, Results, rejected_result
from backend.file_log.core.layout import FLAG_DELETED, RecordKind
from backend.file_log.options import FileLogOptions
from backend.file_log.state import LogState, TopicState
from backend.file_log.topic_row import encode_topic
from backend.progress.codec import encode_delta
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    Durability,
    NewRecord,
    ProgressDelta,
    TopicInfo,
)
from ddmq_common.errors import (
    DdmqError,
    RemoteError,
    UnknownTopicError,
)
from ddmq_common.names import is_internal

TOPICS_RESERVED = 1_000  # beyond topics_max, for internal topics: retries, dead letters, …
LATE = "the deadline passed before the request was handed to the disk; nothing was stored"
UNKNOWN = "no answer from the disk by the deadline; what was sent may be stored or not"
RECORD_OVERHEAD = 256  # bytes that a record may take in addition to delivery bytes and key


class Request:
    """A waiting request of one caller. `size`: the bytes it takes in memory."""

    __slots__ = ("completion", "deadline", "size")

    completion: Completion[Any]
    deadline: float
    size: int

    def pack(self, packer: FramePacker) -> bool:
        """Pack this request into the frame; return False if it was answered instead.

        An implementation changes the tables of the frame last, after everything that may raise, because only
        records can be rolled back.
        """
        raise RuntimeError("a request needs a pack method")

    def stored(self) -> None:
        """Answer that the request is stored."""
        raise RuntimeError("a request needs a stored method")

    def fail(self, error: Exception, status: AppendStatus = AppendStatus.REFUSED) -> None:
        """Answer that the request is not stored (REFUSED, NOT_STORED) or that its outcome is uncertain
        (UNKNOWN).
        """
        if not self.completion.done:
            self.completion.fail(error)


class AppendRequest(Request):
    """Appends records, each of which succeeds or fails alone."""

    __slots__ = ("records", "results")

    def __init__(
        self, records: Sequence[NewRecord], deadline: float, completion: Completion[Results], size: int
    ) -> None:
        self.records = records
        self.deadline = deadline
        self.completion = completion
        self.size = size
        self.results: Results = []

    def pack(self, packer: FramePacker) -> bool:
        self.results = packer.add_records(self.records, once=True)
        return True

    def stored(self) -> None:
        if not self.completion.done:
            self.completion.succeed(self.results)

    def fail(self, error: Exception, status: AppendStatus = AppendStatus.REFUSED) -> None:
        if not self.completion.done:
            result = AppendResult(status, -1, Durability.WRITTEN, error)
            own = [packed if packed.error is not None else result for packed in self.results]
            self.completion.succeed(own or [result] * len(self.records))


class CommitRequest(Request):
    """Commits records, progress and settings, all or nothing."""

    __slots__ = ("_changed", "_state", "batch", "encoded", "options", "results")

    def __init__(
        self,
        batch: CommitBatch,
        deadline: float,
        completion: Completion[Results],
        state: LogState,
        changed: Callable[[str], None],
        options: FileLogOptions,
    ) -> None:
        """Create the request. Raises ValueError for progress that is invalid for every queue."""
        self.batch = batch
        self.deadline = deadline
        self.completion = completion
        self.encoded = [encode_delta(delta) for delta in batch.progress]
        values = (value for value in batch.settings.values() if value is not None)
        self.size = size_of(batch.records) + sum(map(len, self.encoded)) + sum(map(len, values))
        self.options = options
        self.results: Results = []
        self._state = state
        self._changed = changed

    def pack(self, packer: FramePacker) -> bool:
        mark = packer.mark_extent()
        try:
            fences = self._check(packer)
            self.results = packer.add_records(self.batch.records, once=False)
            for result in self.results:
                if result.error is not None:
                    raise result.error
        except DdmqError as error:
            packer.back_to(mark)
            self.fail(error)
            return False
        for delta, data in zip(self.batch.progress, self.encoded, strict=True):
            self._pack_delta(packer, delta, data)
        for key, value in self.batch.settings.items():
            self._pack_setting(packer, key, value)
            packer.frame.add_setting_change(key, key in self._state.settings, value is not None)
        packer.frame.fences.update(fences)
        return True

    def _check(self, packer: FramePacker) -> dict[Any, Any]:
        state = self._state
        for delta in self.batch.progress:
            if state.queue(delta.queue) is None:
                raise UnknownTopicError(f"queue {delta.queue} of a progress delta does not exist (any more)")
        fences = state.progress.check(self.batch.progress, packer.frame.fences, self.options.progress_max)
        if self.batch.settings:
            self._check_settings(packer)
        check_absent(state.settings, self.batch.absent, packer.frame.settings)
        return fences

    def _check_settings(self, packer: FramePacker) -> None:
        state, frame, batch = self._state, packer.frame, self.batch

        def is_there(key: str) -> bool:
            return frame.settings.get(key, key in state.settings)

        def count_settings(folder: str) -> int:
            packed = frame.setting_counts
            changes = 0 if packed is None else packed.count_settings(folder)
            return state.setting_counts.count_settings(folder) + changes

        check_settings(batch.settings, is_there, count_settings(ROOT), self.options.settings_max)
        check_limits(batch.limits, batch.settings, is_there, count_settings)

    def _pack_delta(self, packer: FramePacker, delta: ProgressDelta, data: bytes) -> None:
        queue = delta.queue
        packer.add_internal(
            RecordKind.PROGRESS,
            lambda: self._state.apply_delta(delta),
            topic=queue.topic.encode(),
            incarnation=queue.incarnation,
            queue_id=queue.queue_id,
            delivery=data,
        )

    def _pack_setting(self, packer: FramePacker, key: str, value: bytes | None) -> None:
        def apply() -> None:
            self._state.apply_setting(key, value)
            self._changed(key)

        flags = FLAG_DELETED if value is None else 0
        packer.add_internal(RecordKind.SETTING, apply, key=key.encode(), delivery=value or b"", flags=flags)

    def stored(self) -> None:
        if not self.completion.done:
            self.completion.succeed(self.results)

    def fail(self, error: Exception, status: AppendStatus = AppendStatus.REFUSED) -> None:
        if not self.completion.done:
            self.completion.fail(RemoteError(str(error)) if status is AppendStatus.UNKNOWN else error)


class TopicRequest(Request):
    """Creates, changes or deletes a topic. `info` None deletes."""

    __slots__ = ("_changed", "_info", "_name", "_result", "_state", "topics_max")

    def __init__(
        self,
        name: str,
        info: TopicInfo | None,
        deadline: float,
        completion: Completion[Any],
        state: LogState,
        changed: Callable[[str, TopicState | None], None],
        topics_max: tuple[int, int | None],
    ) -> None:
        """Create the request. `topics_max`: the bound of the log, and an optional one of the caller.

        Internal topics may exceed the former by TOPICS_RESERVED.
        """
        self._name = name
        self._info = info
        self.deadline = deadline
        self.completion = completion
        self.size = RECORD_OVERHEAD
        self.topics_max = topics_max
        self._state = state
        self._changed = changed
        self._result: TopicInfo | None = None

    def pack(self, packer: FramePacker) -> bool:
        ahead = packer.frame.topics
        living = self._state.topics.get(self._name)
        topic = ahead.get(self._name, living.info if living is not None else None)
        try:
            if self._info is None:
                self._pack_deletion(packer, topic)
                return True
            if topic is not None and self._info.incarnation == 0:
                self._result = topic
                return True
            self._result = self._check_change(self._info, topic, packer.frame.topics_more)
        except DdmqError as error:
            self.fail(error)
            return False
        self._pack_topic(packer, self._result)
        packer.frame.topics_more += self._info.incarnation == 0
        return True

    def _check_change(self, info: TopicInfo, topic: TopicInfo | None, more: int) -> TopicInfo:
        if info.incarnation == 0:
            log_max, caller_max = self.topics_max
            count = len(self._state.topics) + more
            check_topics_max(count, log_max + is_internal(info.name) * TOPICS_RESERVED)
            check_topics_max(count, caller_max)
            self._state.last_incarnation += 1
            return replace(info, incarnation=self._state.last_incarnation)
        check_change(info, topic)
        return info

    def _pack_topic(self, packer: FramePacker, info: TopicInfo) -> None:
        def apply() -> None:
            self._state.apply_topic(info)
            self._changed(info.name, None)

        name = info.name.encode()
        packer.add_internal(
            RecordKind.TOPIC, apply, topic=name, incarnation=info.incarnation, delivery=encode_topic(info)
        )
        packer.frame.topics[info.name] = info

    def _pack_deletion(self, packer: FramePacker, topic: TopicInfo | None) -> None:
        if topic is None:
            raise UnknownTopicError(f"topic {self._name} does not exist")
        incarnation = topic.incarnation

        def apply() -> None:
            self._changed(self._name, self._state.apply_topic_deleted(self._name, incarnation))

        name = self._name.encode()
        packer.add_internal(RecordKind.TOPIC, apply, topic=name, incarnation=incarnation, flags=FLAG_DELETED)
        packer.frame.topics_more -= 1
        packer.frame.topics[self._name] = None

    def stored(self) -> None:
        if not self.completion.done:
            self.completion.succeed(self._result)

    def fail(self, error: Exception, status: AppendStatus = AppendStatus.REFUSED) -> None:
        if not self.completion.done:
            self.completion.fail(RemoteError(str(error)) if status is AppendStatus.UNKNOWN else error)


def size_of(records: Sequence[NewRecord]) -> int:
    """Return the bytes that records take in the log at most, without system properties."""
    size = RECORD_OVERHEAD * len(records)
    for record in records:
        size += len(record.delivery) + len(record.key)
    return size


def rejected_results(count: int, error: Exception) -> Results:
    """Return the results of an append that is refused before it is queued."""
    return [rejected_result(error)] * count
