"""Reads one shard: from its progress at a take-over, and later the messages that other proxies append.

The queue is read only when another proxy has appended: a request to end a transaction says how far its
messages go, and the service checks the queue's end every second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from backend.completion import Completion
from backend.ownership.reader import QueueReader, ReadAnswer
from backend.port import Backend
from backend.progress.ack_map import AckMap
from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, StoredRecord
from ddmq_client.idl.codes import TransactionOutcome
from ddmq_common.errors import DamagedError
from proxy_producer.transactions.codec import HalfMessage, checksum_of, name_of, read_half, read_op
from proxy_producer.transactions.core.decisions import DecisionHistory, TransactionDecision
from proxy_producer.transactions.core.transaction import HalfFacts

log = logging.getLogger("ddmq.producer")
COUNT_MAX, BYTES_MAX = 1_000, 4 << 20
WAIT_S = 1.0  # for messages that another proxy stored and this process does not see yet
CACHE_BYTES_MAX = 4 << 20  # of a shard's messages, so that what was just appended need not be read again
ENTRY_OVERHEAD_BYTES = 1_000  # overhead of one of them, beside its delivery bytes


def facts_of(half: HalfMessage, transaction: bytes, stored_ms: int, prepared_ms: int) -> HalfFacts:
    """Extract the facts of a half message.

    `stored_ms`: on the shard's clock; `prepared_ms`: on the store's.
    """
    mark = half.mark
    return HalfFacts(
        half.offset,
        transaction,
        mark.group,
        stored_ms,
        len(half.delivery),
        name_of(half.identity),
        mark.check_after_ms,
        checksum_of(half.identity),
        prepared_ms,
        mark.sender,
    )


def acks_of(view: ProgressView, bounds: Bounds) -> AckMap:
    """Build the ack map from stored progress. Without progress it starts at the queue's first offset."""
    acks = AckMap(bounds.min if view.committed is None else view.committed)
    acks.finish(view.finished)
    for offset, attempts in view.attempts.items():
        acks.record_attempts(offset, attempts)
    return acks


class HalfBatch(NamedTuple):
    """The decoded half messages of one read, and the records that could not be decoded."""

    halves: list[tuple[HalfMessage, int]]  # with store times
    unreadable: list[StoredRecord]


def half_batch(batch: ReadBatch) -> HalfBatch:
    """Decode the half records of a batch. Damaged records are skipped; the engine has counted them."""
    content = HalfBatch([], [])
    for index in range(len(batch.offsets)):
        try:
            record = batch.record(index)
        except DamagedError:
            continue
        try:
            content.halves.append((read_half(record), record.stored_ms))
        except DamagedError as error:
            log.error("a half message does not parse: %s", error)
            content.unreadable.append(record._replace(delivery=bytes(record.delivery)))
    return content


class RecentMessages:
    """A cache of the newest half messages of one shard by offset, up to CACHE_BYTES_MAX."""

    def __init__(self) -> None:
        self._messages: dict[int, HalfMessage] = {}
        self._size = 0

    def get(self, offset: int) -> HalfMessage | None:
        return self._messages.get(offset)

    def all_of(self, offsets: Sequence[int]) -> list[HalfMessage] | None:
        """Return the messages at these offsets; None if one is not cached."""
        messages = self._messages
        stored = [messages[offset] for offset in offsets if offset in messages]
        return stored if len(stored) == len(offsets) else None

    def put(self, half: HalfMessage) -> None:
        if half.offset in self._messages:
            self.drop(half.offset)
        self._messages[half.offset] = half
        self._size += len(half.delivery) + ENTRY_OVERHEAD_BYTES
        while self._size > CACHE_BYTES_MAX:
            self.drop(next(iter(self._messages)))

    def drop(self, offset: int) -> None:
        half = self._messages.pop(offset, None)
        if half is not None:
            self._size -= len(half.delivery) + ENTRY_OVERHEAD_BYTES


Fetched = Callable[[list[HalfMessage], int, Exception | None], None]


def fetch_halves(
    backend: Backend, queue: QueueRef, recent: RecentMessages, offsets: list[int], then: Fetched
) -> None:
    """Get the half messages at these offsets from the cache or the log; call `then(messages, missing,
    error)`.

    `missing`: the number of offsets whose message is damaged.
    """
    halves: dict[int, HalfMessage] = {}
    for offset in offsets:
        half = recent.get(offset)
        if half is not None:
            halves[offset] = half
    remaining = [offset for offset in offsets if offset not in halves]

    def read_next() -> None:
        if not remaining:
            complete = [halves[offset] for offset in offsets if offset in halves]
            then(complete, len(offsets) - len(complete), None)
            return
        start, count = remaining[0], 1
        while count < min(len(remaining), COUNT_MAX) and remaining[count] == start + count:
            count += 1
        reader.read(start, count, BYTES_MAX)

    def on_read(read: ReadAnswer) -> None:
        if read.is_unanswered:
            then([], 0, read.error)
            return
        if read.batch is not None:
            halves.update((half.offset, half) for half, _ in half_batch(read.batch).halves)
        end = remaining[0] + 1 if read.at_end else max(remaining[0] + 1, read.next_offset)
        while remaining and remaining[0] < end:
            del remaining[0]
        read_next()

    reader = QueueReader(backend, queue, on_read)
    read_next()


class OpReader:
    """Reads the newest op records of one shard; `done(decisions, error)` is called once."""

    def __init__(
        self,
        backend: Backend,
        queue: QueueRef | None,
        count_max: int,
        done: Callable[[DecisionHistory, Exception | None], None],
    ) -> None:
        self._backend = backend
        self._queue = queue
        self._count_max = count_max
        self._done = done
        self._decisions = DecisionHistory(count_max)
        self._first = True  # whether no valid record was read yet
        self._partly = False  # whether older records are skipped or deleted
        self._damaged = False  # whether a record is missing since the last readable one
        self._offset = 0
        self._reader = None if queue is None else QueueReader(backend, queue, self._on_read)

    def start(self) -> None:
        if self._queue is None:
            self._done(self._decisions, None)
        else:
            self._backend.bounds((self._queue,)).then(self._on_bounds)

    def _on_bounds(self, answer: Completion[list[Bounds | None]]) -> None:
        if answer.error is not None:
            self._done(self._decisions, answer.error)
        elif answer.value[0] is None:
            self._done(self._decisions, None)
        else:
            low, end = answer.value[0]
            start = max(low, end - self._count_max)
            self._partly = start > 0
            self._read_from(start)

    def _read_from(self, offset: int) -> None:
        assert self._reader is not None
        self._offset = offset
        self._reader.read(offset, COUNT_MAX, BYTES_MAX)

    def _on_read(self, read: ReadAnswer) -> None:
        if read.is_unanswered:
            self._done(self._decisions, read.error)
        elif read.bounds is not None:
            self._partly = True
            self._read_from(read.bounds.min)
        elif read.batch is not None and not read.at_end:
            self._take_ops(read.batch)
            self._record_gap(read.next_offset)
            self._read_from(read.next_offset)
        else:
            self._record_gap(read.next_offset)
            if self._damaged:
                self._decisions.record_damage(self._backend.clock_ms())
            if self._first and self._partly:  # all of them are gone
                self._decisions.covered_from_ms = self._backend.clock_ms()
            self._done(self._decisions, None)

    def _record_gap(self, until: int) -> None:
        """Record that the next op record is at offset `until`.

        On a gapless engine, skipped offsets mean damage.
        """
        if self._backend.gapless and until > self._offset:
            log.error("the ends of %d transactions are lost", until - self._offset)
            self._damaged = True
        self._offset = until

    def _take_ops(self, batch: ReadBatch) -> None:
        for index, offset in enumerate(batch.offsets):
            self._record_gap(offset)
            self._offset += 1
            try:
                record = batch.record(index)
                op = read_op(bytes(record.delivery))
            except DamagedError as error:
                log.error("the end of a transaction cannot be read: %s", error)
                self._damaged = True
                continue
            if self._damaged:
                self._damaged = False
                self._decisions.record_damage(op.at_ms)
            if self._first and self._partly:
                self._decisions.covered_from_ms = max(self._decisions.covered_from_ms, op.at_ms)
            self._first = False
            decision = TransactionDecision(TransactionOutcome(op.outcome), op.group, op.at_ms, op.end)
            self._decisions.record_decision(record.message_id, decision)
