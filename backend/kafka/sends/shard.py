"""SendShard: one shard that this process owns, from its grant until it is lost or released.

    start ──▶ entry of the take-over committed ──▶ entries read up to it ──▶ ready ──▶ stop, abandon
      ▲ stuck: a commit or a read failed, `start` again                        └ uncertain: see below

A commit has the messages, an entry of their locations, and progress under the epoch of the grant. Once the
shard is lost, none of its commits is sent again under another name of the process (`OffsetEntry.is_current`).
A commit whose outcome is uncertain makes the window unusable; the owner then creates a new SendShard, which
reads the log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backend.completion import Completion
from backend.idempotency import WINDOW_MS, add_topic_name
from backend.kafka.commits.plan import OffsetEntry
from backend.kafka.errors import to_failed_result
from backend.kafka.sends.calls import MOVED, IdentifiedSend
from backend.kafka.sends.window import (
    NUMBERS_MS,
    AdmissionKind,
    Reservation,
    SendWindow,
    decode_rows,
    encode_rows,
    is_of_keys,
)
from backend.ownership.reader import QueueReader, ReadAnswer
from backend.port import Backend
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    Durability,
    FirstStored,
    NewRecord,
    ProgressDelta,
    QueueRef,
    ReadBatch,
)
from ddmq_common.clock import Clock
from ddmq_common.delivery import encode as encode_delivery
from ddmq_common.delivery import value_of
from ddmq_common.errors import (
    CallerError,
    DamagedError,
    DdmqError,
    DrainingError,
    FencedError,
    StorageError,
    TopicUnavailableError,
    TryLaterError,
)
from ddmq_common.names import SENDS_GROUP
from ddmq_common.security.quotas import SenderQuota

log = logging.getLogger(__name__)
RETRY_S = 0.5
COMMIT_S = 30.0  # longer than a transaction takes, so that its outcome is seldom uncertain
COMMIT_RECORDS_MAX, COMMIT_BYTES_MAX = 5_000, 8 << 20
WAIT_S = 5.0
READ_COUNT, READ_BYTES = 2_000, 4 << 20
_CERTAIN = (CallerError, TryLaterError, StorageError)  # nothing is stored

Commit = Callable[[CommitBatch, float, OffsetEntry], Completion[list[AppendResult]]]


@dataclass(frozen=True, slots=True)
class SendShardContext:
    """The parts of a process that all its shards use.

    `next_commit(queue)`: a number that is above all earlier ones of the queue. `on_changed(shard)` is called
    when a shard is ready or stuck, `on_uncertain(shard)` when its window cannot be used any more.
    """

    backend: Backend
    clock: Clock
    commit: Commit
    rejection_of: Callable[[NewRecord], Exception | None]
    incarnation_of: Callable[[str], int]
    durability_of: Callable[[str], Durability]
    next_commit: Callable[[QueueRef], int]
    on_changed: Callable[[SendShard], object]
    on_uncertain: Callable[[SendShard], object]


class SendShard:
    """The sends of one shard. `is_ready`: its window is rebuilt; only then may `append` be called."""

    def __init__(self, context: SendShardContext, queue: QueueRef, epoch: int, generation: int) -> None:
        self._context = context
        self.queue = queue
        self._epoch = epoch
        self._generation = generation
        self._window = SendWindow()
        self._reader = QueueReader(context.backend, queue, self._on_read, self._on_data)
        self._end = -1  # the offset of the entry of the take-over
        self._marked_ms: int | None = None  # its store time, once it was read, and when it was stored
        self._marked_s = 0.0
        self._row_count = 0
        self._commit_count = 0
        self._queued: deque[tuple[IdentifiedSend, Reservation]] = deque()  # while another commit is in flight
        self._is_current = True
        self._on_idle: Callable[[], None] | None = None
        self.is_ready = self.is_stuck = self._is_reported = False
        self.retry_at = 0.0  # when to call `start` again while it is stuck, monotonic seconds

    def count_owned(self) -> dict[str, SenderQuota]:
        """Return how many keys and producers of each owner the window has."""
        return self._window.count_owned()

    # --- QueueWork

    @property
    def is_busy(self) -> bool:
        """Whether commits are in flight, or sends wait for them."""
        return self._commit_count > 0 or bool(self._queued)

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Take no more sends; `on_idle` is called when the last commit has ended, if one is in flight."""
        self.is_ready = False
        self._reader.stop()
        self._on_idle = on_idle

    def abandon(self) -> None:
        """Send no commit any more, as another process may own the shard."""
        self._is_current = self.is_ready = False
        self._reader.stop()

    def raise_epoch(self, epoch: int) -> None:
        """Use this newer epoch in all further commits."""
        self._epoch = epoch

    # --- the take-over

    def start(self) -> None:
        """Rebuild the window from the log; also after it was stuck."""
        self.is_stuck = False
        self._window, self._row_count = SendWindow(), 0
        delivery = encode_delivery(b"", encode_rows([]), b"", None)
        wall_ms = self._context.clock.wall_ms()
        record = NewRecord(self.queue.topic, self.queue.queue_id, bytes(16), wall_ms, delivery)
        self._send_commit([record], [], self._on_marked)

    def _on_marked(self, commit: Completion[list[AppendResult]]) -> None:
        if not self._is_current or self._on_idle is not None:
            return
        if commit.error is not None:
            self._on_stuck(commit.error)
            return
        self._end, self._marked_ms = commit.value[0].offset, None
        self._marked_s = self._context.clock.monotonic()
        self._read(self._end)

    def _on_marker_read(self, marked_ms: int) -> None:
        """Begin to read the entries, with the store time of the own one: so this machine's wall clock does
        not matter."""
        self._marked_ms = marked_ms
        since_ms = marked_ms - self._tail_ms
        if not is_of_keys(self.queue.queue_id):
            self._window.forget_before(since_ms)
        start = self._context.backend.offset_for_time(self.queue, since_ms)
        start.then(self._on_start)

    @property
    def _tail_ms(self) -> int:
        return WINDOW_MS if is_of_keys(self.queue.queue_id) else NUMBERS_MS

    def _on_start(self, start: Completion[int]) -> None:
        if start.error is not None:
            self._on_stuck(start.error)
        else:
            self._read(min(start.value, self._end))

    def _read(self, offset: int) -> None:
        self._next = offset
        self._reader.read(offset, READ_COUNT, READ_BYTES)

    def _on_read(self, read: ReadAnswer) -> None:
        if read.error is not None:
            self._on_stuck(read.error)
            return
        if self._marked_ms is None:
            if read.batch is not None and len(read.batch.offsets):
                self._on_marker_read(read.batch.stored_ms(0))
            else:
                self._wait(read.next_offset)
            return
        if read.oldest is not None:
            log.warning(
                "entries of sends are gone from the log too early: repeated sends may be stored again",
                extra={"shard": self.queue.queue_id, "offset": read.start, "oldest": read.oldest},
            )
            self._window.forget_before(self._marked_ms)
        if read.batch is not None:
            self._restore(read.batch)
        if read.next_offset > self._end:
            self._on_rebuilt()
        elif read.at_end:
            self._wait(read.next_offset)
        else:
            self._read(read.next_offset)

    def _wait(self, offset: int) -> None:
        """Wait for records that are not visible yet, because a transaction before them has not ended."""
        self._next = offset
        self._reader.wait(offset, self._context.clock.monotonic() + WAIT_S)

    def _on_data(self, has_arrived: bool, error: Exception | None) -> None:
        if error is not None:
            self._on_stuck(error)
        else:
            self._read(self._next)

    def _restore(self, batch: ReadBatch) -> None:
        for index, delivery in enumerate(batch.deliveries):
            stored_ms = batch.stored_ms(index)
            try:
                rows = decode_rows(value_of(bytes(delivery)))
                self._window.restore(rows, stored_ms)
                self._row_count += len(rows)
            except DamagedError as error:
                self._window.forget_before(stored_ms)
                log.error(
                    "an entry of sends is skipped: %s", error,
                    extra={"shard": self.queue.queue_id, "offset": batch.offsets[index]},
                )  # fmt: skip

    def _on_rebuilt(self) -> None:
        context = self._context
        assert self._marked_ms is not None
        self._window.start(self._marked_ms, self._marked_s)
        self.is_ready = True
        log.debug("shard %d of sends is taken over: %d sends", self.queue.queue_id, self._row_count)
        context.on_changed(self)

    def _on_stuck(self, error: Exception) -> None:
        if self._is_current and self._on_idle is None:
            level = logging.DEBUG if self._is_reported else logging.WARNING
            log.log(level, "shard %d of sends is not taken over yet: %s", self.queue.queue_id, error)
            self.is_stuck = self._is_reported = True
            self.retry_at = self._context.clock.monotonic() + RETRY_S
            self._context.on_changed(self)

    # --- sends

    def append(self, sends: Sequence[IdentifiedSend]) -> None:
        """Store sends of this shard, each unless it was stored before, and answer them."""
        context = self._context
        stored_ms, now_s = context.backend.clock_ms(), context.clock.monotonic()
        for send in sends:
            record = send.record
            error = context.rejection_of(record)
            if error is not None:
                send.answer(to_failed_result(error))
                continue
            reason = context.backend.why_unavailable(record.topic)
            if reason:
                unavailable = TopicUnavailableError({record.topic: reason})
                send.answer(to_failed_result(unavailable, AppendStatus.NOT_STORED))
                continue
            try:
                admission = self._window.admit_send(
                    send.identity,
                    record.message_id,
                    record.queue_id,
                    context.incarnation_of(record.topic),
                    stored_ms,
                    now_s,
                )
            except DdmqError as rejection:
                send.answer(to_failed_result(add_topic_name(record.topic, rejection)))
                continue
            if admission.first is not None:
                send.answer(self._to_repeated(record.topic, admission.first))
            elif admission.reservation is not None:
                if admission.kind is AdmissionKind.NEW:
                    self._queued.append((send, admission.reservation))
                else:
                    admission.reservation.repeats.append((send, admission.differs))
        if not self._commit_count:
            self._commit_queued()

    def _to_repeated(self, topic: str, first: FirstStored) -> AppendResult:
        durability = self._context.durability_of(topic)
        return AppendResult(AppendStatus.STORED, first.offset, durability, None, first)

    def _commit_queued(self) -> None:
        """Commit the sends that wait, together, while no other commit is in flight."""
        new: list[tuple[IdentifiedSend, Reservation]] = []
        size = 0
        while self._queued and len(new) < COMMIT_RECORDS_MAX and size < COMMIT_BYTES_MAX:
            new.append(self._queued.popleft())
            size += len(new[-1][0].record.delivery)
        if new:
            self._commit(new)

    def _commit(self, new: list[tuple[IdentifiedSend, Reservation]]) -> None:
        records = [send.record for send, _ in new]
        reservations = [reservation for _, reservation in new]
        self._send_commit(records, reservations, lambda commit: self._on_committed(new, commit))

    def _send_commit(
        self,
        records: list[NewRecord],
        reservations: list[Reservation],
        then: Callable[[Completion[list[AppendResult]]], None],
    ) -> None:
        """Commit records with the entry of `reservations`, under the epoch of the grant."""
        context, queue = self._context, self.queue

        def encode(offsets: Sequence[int]) -> bytes:
            pairs = zip(reservations, offsets, strict=False)  # the entry of a take-over has no rows
            return encode_rows([reservation.to_row(offset) for reservation, offset in pairs])

        def on_done(commit: Completion[list[AppendResult]]) -> None:
            self._commit_count -= 1
            then(commit)
            if not self._commit_count:
                self._commit_queued()
            if not self.is_busy and self._on_idle is not None:
                self._on_idle()

        finished = ((0, context.next_commit(queue)),)  # another state each time: see CommitPlan.is_stored
        delta = ProgressDelta(SENDS_GROUP, queue, self._epoch, self._generation, finished)
        entry = OffsetEntry(queue, encode, lambda: self._is_current)
        self._commit_count += 1
        deadline = context.clock.monotonic() + COMMIT_S
        context.commit(CommitBatch(records, (delta,)), deadline, entry).then(on_done)

    def _on_committed(
        self, new: list[tuple[IdentifiedSend, Reservation]], commit: Completion[list[AppendResult]]
    ) -> None:
        error = commit.error
        if error is None:
            self._on_stored(new, commit.value)
        elif not isinstance(error, _CERTAIN) or isinstance(error, DrainingError):
            self._on_uncertain(new, error)
        elif len(new) > 1 and _may_concern_one(error):
            for pair in new:
                self._commit([pair])
        else:
            for send, reservation in new:
                self._window.release(reservation)
                self._answer_failed(send, reservation, _to_certain_result(error))

    def _on_stored(
        self, new: Sequence[tuple[IdentifiedSend, Reservation]], results: Sequence[AppendResult]
    ) -> None:
        stored_ms, now_s = self._context.backend.clock_ms(), self._context.clock.monotonic()
        for (send, reservation), result in zip(new, results, strict=True):
            self._window.confirm_stored(reservation, result.offset, stored_ms, now_s)
            send.answer(result)
            for repeat, differs in reservation.repeats:
                first = reservation.to_first(result.offset, differs)
                repeat.answer(self._to_repeated(repeat.record.topic, first))

    def _on_uncertain(self, new: Sequence[tuple[IdentifiedSend, Reservation]], error: Exception) -> None:
        """Answer that the outcome is unknown, and have the window rebuilt, which shows the outcome."""
        for send, reservation in new:
            self._answer_failed(send, reservation, to_failed_result(error, AppendStatus.UNKNOWN))
        if self._is_current:
            self.abandon()
            self._context.on_uncertain(self)

    def _answer_failed(self, send: IdentifiedSend, reservation: Reservation, result: AppendResult) -> None:
        send.answer(result)
        for repeat, _ in reservation.repeats:
            repeat.answer(result)


def _to_certain_result(error: Exception) -> AppendResult:
    """Return the result of a send that a failed commit has not stored. If another process owns the shard by
    now, the send may be passed on to it."""
    if isinstance(error, FencedError):
        return MOVED
    is_rejected = isinstance(error, CallerError)
    return to_failed_result(error, AppendStatus.REFUSED if is_rejected else AppendStatus.NOT_STORED)


def _may_concern_one(error: Exception) -> bool:
    """Return whether a commit failed because of one of its records, so that the others may be stored."""
    if isinstance(error, FencedError):
        return False
    return isinstance(error, CallerError | TopicUnavailableError)
