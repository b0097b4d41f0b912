"""Left-over messages: those of a dead-lettered transaction that did not fit into its commit.

The transaction has ended by then. Its left-over messages stay unfinished in their shard until they are dead
letters, too, so a new owner finds them there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.ownership.reader import QueueReader, ReadAnswer
from backend.records import AppendResult, TopicInfo
from ddmq_common.names import TRANSACTION_DEAD_TOPIC
from proxy_producer.transactions.claimed_shard import ClaimedShard
from proxy_producer.transactions.codec import dead_half
from proxy_producer.transactions.reading import BYTES_MAX, COUNT_MAX, half_batch

log = logging.getLogger("ddmq.producer")
LARGE = "too large"  # why a transaction becomes a dead letter
TEXT = "the transaction had more messages than one commit can hold; the others of it are here, too"


class LeftOvers:
    """Moves messages of one shard to the dead letters that did not fit into their transaction's commit.

    Such messages of a dead-lettered transaction are its left-over messages.
    """

    def __init__(self, shard: ClaimedShard) -> None:
        self._shard = shard
        self._reader = QueueReader(shard.context.backend, shard.queue, self._on_read)
        self._moving = False

    def move_all(self) -> None:
        """Make dead letters of all left-over messages, one read and commit after another.

        A later call retries what failed.
        """
        shard = self._shard
        if self._moving or not shard.running or not shard.core.left_over:
            return
        self._moving = True
        context = shard.context
        topic = ready_topic(context.backend, TRANSACTION_DEAD_TOPIC, 1, context.deadline())
        topic.then(self._read_first)

    def _read_first(self, topic: Completion[TopicInfo]) -> None:
        if topic.error is not None or not self._shard.running:
            self._moving = False
            return
        offsets = set(self._shard.core.left_over)
        start, count = min(offsets), 1
        while count < COUNT_MAX and start + count in offsets:
            count += 1
        self._reader.read(start, count, BYTES_MAX)

    def _on_read(self, read: ReadAnswer) -> None:
        shard = self._shard
        if read.is_unanswered or not shard.running:
            self._moving = False
            return
        now_ms = shard.context.clock.wall_ms()
        end = read.start + 1 if read.at_end else max(read.start + 1, read.next_offset)
        offsets = [offset for offset in shard.core.left_over if offset < end]
        stored = [] if read.batch is None else half_batch(read.batch).halves
        halves = [half for half, _ in stored if half.offset in offsets]
        records = [dead_half(half, LARGE, 0, TEXT, now_ms) for half in halves]
        lost = len(offsets) - len(halves)

        def on_moved(_: Sequence[AppendResult], error: Exception | None) -> None:
            self._moving = False
            if error is None:
                if lost:
                    log.error("messages of dead letters are damaged", extra={"count": lost})
                shard.core.finish_left_over(offsets)
                self.move_all()

        shard.commit(records, offsets, on_moved)
