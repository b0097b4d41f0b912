"""Maps the topics of a group to the queues of its retry topic.

`%RETRY%group` has one queue per original topic of the group, so that a retry queue belongs to exactly one
subscription. A topic's number is assigned at first need and stored in the setting `retry/GROUP`, a JSON
object of topic → queue number. It is never reassigned: messages may be on their way to that queue. Two
proxies that assign numbers at the same moment use an optimistic lock; the second one reads again.

The optimistic lock admits one change at a time, over any number of processes, by means of group progress
alone: it is a reset of an internal group's progress to the next generation, in the same commit as the change.
A proxy that read the same generation and commits second is rejected as a whole with FencedError; it reads
again and sees the first change. Without changes nothing is locked.
"""

from __future__ import annotations

import msgspec

from backend.completion import Completion, succeeded
from backend.internal_topics import ready_topic
from backend.port import Backend
from backend.records import CommitBatch, ProgressDelta, ProgressView, QueueRef, TopicInfo
from ddmq_common.errors import DdmqError, FencedError, StorageError
from ddmq_common.names import CHANGE_LOCK_GROUP, RETRY_PREFIX, retry_topic
from proxy_consumer.runtime import Runtime


def next_generation(queue: QueueRef, view: ProgressView) -> ProgressDelta:
    """Return the lock for the commit; `view`: the progress of CHANGE_LOCK_GROUP in `queue`, read first."""
    return ProgressDelta(CHANGE_LOCK_GROUP, queue, view.epoch, view.generation + 1, reset_to=0)


SETTING_PREFIX = "retry/"
_TOPIC_SETTING = "topic/" + RETRY_PREFIX
_TRIES_MAX = 8


def retry_key(group: str) -> str:
    """Return the name of the setting that stores the numbers of a group."""
    return SETTING_PREFIX + group


def group_concerned(key: str) -> str | None:
    """Return the group whose retry queues a changed setting may affect; None for other settings."""
    for prefix in (SETTING_PREFIX, _TOPIC_SETTING):
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return None


def retry_queue_of(runtime: Runtime, group: str, topic: str) -> QueueRef | None:
    """Return the cached retry queue of `topic` in `group`; None if none was needed yet."""
    return retry_queues(runtime, group).get(topic)


def retry_queues(runtime: Runtime, group: str) -> dict[str, QueueRef]:
    """Return the cached retry queues of `group` by topic."""
    backend = runtime.backend
    info = backend.topic(retry_topic(group))
    if info is None or backend.setting(retry_key(group)) is None:
        return {}
    try:
        numbers = _read_numbers(backend, group)
    except StorageError:
        return {}
    return {
        topic: QueueRef(info.name, info.incarnation, number)
        for topic, number in numbers.items()
        if number < info.queues
    }


def _read_numbers(backend: Backend, group: str) -> dict[str, int]:
    value = backend.setting(retry_key(group))
    if value is None:
        return {}
    try:
        return msgspec.json.decode(value, type=dict[str, int])
    except msgspec.DecodeError as error:
        raise StorageError(
            f"setting {retry_key(group)} is not an object of topic → number: {error}"
        ) from error


class RetryQueueGrant(Completion[QueueRef]):
    """Assigns a retry queue to one topic of a group. Call `start` once; fails with the backend's error."""

    __slots__ = ("_group", "_runtime", "_topic", "_tries")

    def __init__(self, runtime: Runtime, group: str, topic: str) -> None:
        super().__init__()
        self._runtime = runtime
        self._group = group
        self._topic = topic
        self._tries = 0

    def start(self) -> None:
        """Create the retry topic, assign a number, and add queues to the topic up to that number."""
        existing = retry_queue_of(self._runtime, self._group, self._topic)
        if existing is not None:
            self.succeed(existing)
            return
        self._tries += 1
        self._ready_topic(1).then(self._on_topic_ready)

    def _ready_topic(self, queues: int) -> Completion[TopicInfo]:
        runtime = self._runtime
        return ready_topic(runtime.backend, retry_topic(self._group), queues, runtime.commit_deadline())

    def _on_topic_ready(self, topic: Completion[TopicInfo]) -> None:
        if topic.error is not None:
            self.fail(topic.error)
            return
        try:
            number = _read_numbers(self._runtime.backend, self._group).get(self._topic)
        except StorageError as error:
            self.fail(error)
            return
        if number is None:
            self._read_generation(QueueRef(topic.value.name, topic.value.incarnation, 0))
        else:
            self._ready_topic(number + 1).then(self._on_grown)

    def _read_generation(self, first: QueueRef) -> None:
        view = self._runtime.backend.progress(CHANGE_LOCK_GROUP, (first,))
        view.then(lambda views: self._take_number(first, views))

    def _take_number(self, first: QueueRef, views: Completion[list[ProgressView]]) -> None:
        """Assign the next free queue number to the topic, and commit it with a lock on the generation in
        `views`.

        The numbers are read after the generation, so that this commit fails if another proxy changed them
        since. `first`: queue 0 of the retry topic.
        """
        runtime = self._runtime
        try:
            lock = next_generation(first, views.result()[0])
            numbers = _read_numbers(runtime.backend, self._group)
            numbers.setdefault(self._topic, max(numbers.values(), default=-1) + 1)
            settings: dict[str, bytes | None] = {retry_key(self._group): msgspec.json.encode(numbers)}
            batch = CommitBatch(progress=(lock,), settings=settings)
            stored = runtime.backend.commit(batch, runtime.commit_deadline())
            stored.then(lambda committed: self._retry(committed.error))
        except DdmqError as error:
            self.fail(error)

    def _on_grown(self, grown: Completion[TopicInfo]) -> None:
        error = grown.error
        info = self._runtime.backend.topic(retry_topic(self._group))
        if error is not None and info is not None and info.queues > 1:
            error = FencedError(str(error))  # another proxy added more queues meanwhile
        self._retry(error)

    def _retry(self, error: Exception | None) -> None:
        if error is not None and not (isinstance(error, FencedError) and self._tries < _TRIES_MAX):
            self.fail(error)
        elif self._tries > 2 * _TRIES_MAX:
            self.fail(
                StorageError(f"no retry queue for {self._topic} of {self._group}: settings do not keep up")
            )
        else:
            self.start()


class RetryQueues:
    """Assigns retry queues to the topics of one group; concurrent requests for a topic share one
    assignment."""

    def __init__(self, runtime: Runtime, group: str) -> None:
        self._runtime = runtime
        self._group = group
        self._grants: dict[str, RetryQueueGrant] = {}

    def ready_queue(self, topic: str) -> Completion[QueueRef]:
        """Return the retry queue of `topic`, and assign it if there is none."""
        existing = retry_queue_of(self._runtime, self._group, topic)
        if existing is not None:
            return succeeded(existing)
        grant = self._grants.get(topic)
        if grant is None:
            grant = self._grants[topic] = RetryQueueGrant(self._runtime, self._group, topic)
            grant.then(lambda _: self._grants.pop(topic))
            grant.start()
        return grant
