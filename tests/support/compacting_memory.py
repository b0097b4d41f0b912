"""CompactingMemory: the memory engine as one that compacts and is trimmed, at once where a test says so."""

from __future__ import annotations

from backend.records import QueueRef
from ddmq_common.delivery import decode
from ddmq_common.names import COMPACTED_TOPICS
from tests.played_memory import PlayedMemory


class CompactingMemory(PlayedMemory):
    """Of a key it keeps the last record, and none once that has no body; what was trimmed is gone."""

    compacts = True

    def trim(self, queue: QueueRef, before: int) -> None:
        self.expire(queue, before)

    def compact(self) -> None:
        """What may happen at any time."""
        for name in COMPACTED_TOPICS:
            topic = self._store.topics.get(name)
            for queue in () if topic is None else topic.queues:
                newer_keys = set[bytes]()
                for entry in reversed(queue.entries()):
                    key, value, _, _ = decode(entry.record.delivery)
                    if key in newer_keys or not value:
                        queue.lose_record(entry.record.offset)
                    newer_keys.add(key)
