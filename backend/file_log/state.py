"""The state that the log's writer holds in memory: topics, queues, settings, group progress.

It is the result of applying the log's records in log order, in operation and at recovery alike.
Rules: a record is applied when it is durable, or in a topic of class "written" when it is written. A record
that does not fit the state (its topic was deleted, its progress is fenced) changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from backend.engine import SettingCounts
from backend.idempotency import StoredSends
from backend.port import Wait
from backend.progress.group_progress import Key, ProgressTable
from backend.records import Durability, ProgressDelta, QueueRef, TopicInfo
from ddmq_common.errors import FencedError


class LogQueue:
    """One queue and its offsets: min <= flushed <= visible <= assigned."""

    __slots__ = (
        "assigned", "flushed", "is_deleted", "min", "min_at", "pending", "ref", "tail", "visible", "waiting",
    )  # fmt: skip

    def __init__(self, ref: QueueRef, first: int = 0, after: int = 0) -> None:
        self.ref = ref
        self.min = first  # oldest readable, as of log start `min_at`
        self.min_at = 0
        self.flushed = after  # entries below are in the consume-queue files
        self.visible = after  # readers see what is below
        self.assigned = after  # the next record gets this offset
        self.tail = bytearray()  # entries [flushed, visible)
        self.pending = bytearray()  # entries of the frame being packed or written
        self.waiting: list[tuple[int, Wait]] = []  # offset, wait
        self.is_deleted = False  # its topic was deleted

    def show_pending(self) -> None:
        """Make the entries of written records visible to readers."""
        if self.tail:
            self.tail += self.pending
            self.pending.clear()
        else:
            self.tail, self.pending = self.pending, self.tail
        self.visible = self.assigned


class TopicState:
    """An existing topic with its queues."""

    __slots__ = (
        "durability", "durable", "incarnation", "info", "name_bytes", "name_size", "queues", "writable",
    )  # fmt: skip

    def __init__(self, info: TopicInfo, queues: list[LogQueue]) -> None:
        self.name_bytes = info.name.encode()
        self.name_size = len(self.name_bytes)
        self.incarnation = info.incarnation
        self.queues = queues
        self.change_settings(info)

    def change_settings(self, info: TopicInfo) -> None:
        """Apply changed settings; queues are only added."""
        self.info = info
        self.writable = info.writable
        self.durability = info.durability
        self.durable = info.durability >= Durability.DURABLE
        for queue_id in range(len(self.queues), info.queues):
            self.queues.append(LogQueue(QueueRef(info.name, info.incarnation, queue_id)))


class LogState:
    """The state that results from a log's records up to one position: topics, settings, progress and
    sends."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicState] = {}
        self.settings: dict[str, bytes] = {}  # changed by `apply_setting` alone
        self.setting_counts = SettingCounts()
        self.progress = ProgressTable()
        self.sends = StoredSends(saving=True)
        self.changed_progress: set[Key] = set()  # since it was encoded for a checkpoint
        self.changed_topics: set[str] = set()  # the same: topics with a queue whose bounds have changed
        self.last_incarnation = 0
        self.last_ms = 0
        self.batch_id = 0  # of the next frame
        self.writer_epoch = 0

    def queue(self, ref: QueueRef) -> LogQueue | None:
        """Return a queue, or None if it, its topic or its incarnation does not exist."""
        topic = self.topics.get(ref.topic)
        if topic is None or topic.info.incarnation != ref.incarnation:
            return None
        return topic.queues[ref.queue_id] if 0 <= ref.queue_id < len(topic.queues) else None

    def queues_of(self, name: str) -> list[QueueRef]:
        """Return the queues of a topic; none if the topic does not exist."""
        topic = self.topics.get(name)
        return [] if topic is None else topic.info.refs()

    def queues(self) -> Iterator[LogQueue]:
        """Yield the queues of all topics."""
        for topic in self.topics.values():
            yield from topic.queues

    def apply_topic(self, info: TopicInfo, queues: list[LogQueue] | None = None) -> None:
        """Create a topic, or change it if the incarnation is the same; a newer incarnation replaces it.

        `queues`: the known queues of a new topic.
        """
        topic = self.topics.get(info.name)
        self.last_incarnation = max(self.last_incarnation, info.incarnation)
        if topic is not None and topic.info.incarnation == info.incarnation:
            topic.change_settings(info)
        elif topic is None or topic.info.incarnation < info.incarnation:
            self.apply_topic_deleted(info.name, info.incarnation - 1)
            self.topics[info.name] = TopicState(info, queues or [])

    def apply_topic_deleted(self, name: str, incarnation: int) -> TopicState | None:
        """Delete a topic and its progress, unless a newer incarnation exists; return its last state, or
        None.
        """
        topic = self.topics.get(name)
        if topic is None or topic.info.incarnation > incarnation:
            return None
        del self.topics[name]
        self.progress.drop_queues(name, topic.info.incarnation)
        return topic

    def apply_setting(self, key: str, value: bytes | None) -> None:
        """Set a setting, or delete it if `value` is None."""
        before = key in self.settings
        if value is not None:
            self.settings[key] = value
        elif before:
            del self.settings[key]
        if before != (value is not None):
            self.setting_counts.add_change(key, -1 if before else 1)

    def apply_delta(self, delta: ProgressDelta) -> None:
        """Apply a progress delta; one that is fenced, or of a deleted queue, changes nothing."""
        if self.queue(delta.queue) is None:
            return
        try:
            self.progress.apply(delta)
        except FencedError:
            return
        self.changed_progress.add((delta.group, delta.queue))
