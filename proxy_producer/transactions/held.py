"""One shard that this proxy owns: it is read, and what is decided of it is committed under its epoch.

Taking over: the newest op records are read, then the half messages that are not finished; until both are done
callers are told to try later. A commit that nobody knows the outcome of, or whose epoch is over, ends the
claim (`unsure`): the next owner, mostly this proxy again, reads what happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.ownership.reader import QueueReader, ReadAnswer
from backend.progress.ack_map import AckMap
from backend.records import (
    AppendResult,
    Bounds,
    NewRecord,
    ProgressDelta,
    QueueRef,
    ReadBatch,
    StoredRecord,
    TopicInfo,
)
from ddmq_common.errors import FencedError, RemoteError, TryLaterError
from ddmq_common.names import OP_TOPIC, TRANSACTION_DEAD_TOPIC, TRANSACTION_GROUP
from proxy_producer.transactions.codec import HalfMessage, dead_unreadable
from proxy_producer.transactions.context import TransactionContext
from proxy_producer.transactions.core.ended import EndedTransactions
from proxy_producer.transactions.core.ranges import ranges_of
from proxy_producer.transactions.core.shard import TransactionShard
from proxy_producer.transactions.core.transaction import HalfTaken
from proxy_producer.transactions.gathered import CommitPart, Stored
from proxy_producer.transactions.reading import (
    BYTES_MAX,
    COUNT_MAX,
    WAIT_S,
    KeptMessages,
    OpReader,
    half_batch,
    seen,
)

log = logging.getLogger("ddmq.producer")
Read = Callable[[Exception | None], None]


class HeldShard:
    """Runs until `stop`; what is being committed then ends by itself."""

    def __init__(
        self,
        context: TransactionContext,
        queue: QueueRef,
        epoch: int,
        generation: int,
        acks: AckMap,
        end: int,
    ) -> None:
        self.context = context
        self.queue = queue
        self.epoch = epoch
        self.kept = KeptMessages()
        self.running = True
        self.claimed = True  # no other proxy can have the shard yet
        self.ready = False  # it knows what the owner before it knew
        self.stuck = False  # taking it over failed: `start` again, a little later
        self._generation = generation
        self._acks = acks
        self._end = end  # of the queue when it was taken over
        self._committing = 0
        self._on_idle: Callable[[], None] | None = None
        self._reader = QueueReader(context.backend, queue, self._on_read, self._on_data)
        self._waiters: list[tuple[int, Read]] = []  # how far they need the queue to be read
        self._unreadable: list[StoredRecord] = []
        self.core = self._new_core(EndedTransactions(1))

    def _new_core(self, ended: EndedTransactions) -> TransactionShard:
        context = self.context
        return TransactionShard(context.rules, self._acks, self._acks.committed, ended, context.now_ms())

    @property
    def number(self) -> int:
        return self.queue.queue_id

    @property
    def busy(self) -> bool:
        """Whether something is being committed, or a half message is on its way."""
        return self._committing > 0 or bool(self.core.reserved)

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Begin nothing more and fail the callers that wait; `on_idle` follows when `busy` is false."""
        self.running = self.ready = False
        self._on_idle = on_idle
        self._reader.stop()
        self._fail_waiters(self._explain_move())

    def _explain_move(self) -> TryLaterError:
        return TryLaterError(f"shard {self.number} of transactions moves to another proxy; ask again")

    # --- taking it over

    def start(self) -> None:
        """Read what the previous owner knew: the newest op records, then the unfinished half messages."""
        self.stuck, self._unreadable = False, []
        info = self.context.backend.topic(OP_TOPIC)
        queue = None
        if info is not None and self.number < info.queues:
            queue = QueueRef(OP_TOPIC, info.incarnation, self.number)
        OpReader(self.context.backend, queue, self.context.rules.ended_max, self._on_ops_read).start()

    def _on_ops_read(self, ended: EndedTransactions, error: Exception | None) -> None:
        if not self.running:
            return
        if error is not None:
            self._log_failure("what transactions came to was not read", error)
            self.stuck = True
            return
        self.core = self._new_core(ended)
        self.core.ends_at(self._end)
        self.when_read(self._end - 1, self._on_restored)

    def _on_restored(self, error: Exception | None) -> None:
        if error is None:
            self.ready = True
            self.context.shard_ready()
        elif self.running:
            self._log_failure("half messages were not read", error)
            self.stuck = True

    def _log_failure(self, what: str, error: Exception) -> None:
        self.context.counts.refused("read failed")
        log.warning("transactions: %s", what, extra={"shard": self.number, "error": str(error)})

    # --- half messages

    def appended(self, half: HalfMessage, transaction: bytes) -> HalfTaken:
        """This proxy appended it, and it is durable."""
        context = self.context
        verdict = self.core.stored(seen(half, transaction, context.now_ms(), context.backend.clock_ms()))
        if verdict in (HalfTaken.PART, HalfTaken.AHEAD, HalfTaken.LATE):
            self.kept.put(half)
        else:
            self._count_stray(verdict)
        return verdict

    def release_prepare(self, transaction: bytes, messages: int, size: int) -> None:
        """Give the room of an admitted prepare back; a shard that was stopped may be idle now."""
        self.core.release_prepare(transaction, messages, size)
        self._idle_when_stopped()

    def when_read(self, through: int, then: Read) -> None:
        """`then` follows, at once when everything up to the offset `through`, and all that is known to be
        there, is taken in. A shard that is stopped reads nothing more: `then` gets an error at once."""
        if not self.core.must_read(through):
            then(None)
            return
        if not self.running:
            then(self._explain_move())
            return
        self._waiters.append((through, then))
        if not (self._reader.reading or self._reader.waiting):
            self._read()

    def when_all_read(self, then: Read) -> None:
        """Call `then` when everything that is stored by now is read, also messages that others appended."""

        def on_bounds(answer: Completion[list[Bounds | None]]) -> None:
            bounds = None if answer.error is not None else answer.value[0]
            if bounds is None or not self.running:
                then(answer.error or self._explain_move())
                return
            self.core.ends_at(bounds.next)
            self.when_read(-1, then)

        self.context.backend.bounds((self.queue,)).then(on_bounds)

    def _read(self) -> None:
        start, end = self.core.next_read()
        self._reader.read(start, min(COUNT_MAX, end - start), BYTES_MAX)

    def _on_read(self, read: ReadAnswer) -> None:
        if read.error is not None:
            self._log_failure("half messages were not read", read.error)
            self._fail_waiters(read.error)
            return
        if read.batch is not None:
            self._take_in(read.batch)
        elif read.oldest is not None:
            lost = self.core.moved_on(read.oldest)
            log.error("half messages are gone from the log", extra={"shard": self.number, "count": lost})
        self._answer_waiters(at_end=read.at_end)

    def _take_in(self, batch: ReadBatch) -> None:
        batch_content = half_batch(batch)
        self._unreadable += [one for one in batch_content.unreadable if one.offset >= self.core.read_to]
        rules, wall_ms, now_ms = self.context.rules, self.context.backend.clock_ms(), self.context.now_ms()
        halves = [
            seen(half, bytes.fromhex(half.mark.id), rules.began_ms(at_ms, wall_ms, now_ms), at_ms)
            for half, at_ms in batch_content.halves
        ]
        for _, verdict in self.core.read(halves, batch.next_offset):
            self._count_stray(verdict)

    def _count_stray(self, taken: HalfTaken) -> None:
        """One that is no part of anything is counted; its sender had its answer, or gets it now."""
        if taken not in (HalfTaken.PART, HalfTaken.AHEAD, HalfTaken.LATE, HalfTaken.LEFT_OVER):
            self.context.counts.refused(f"half message: {taken.value}")

    def _answer_waiters(self, *, at_end: bool) -> None:
        """Answer the waiters whose messages are read by now; the others keep waiting."""
        waiting, self._waiters = self._waiters, []
        for through, then in waiting:
            if self.core.must_read(through):
                self._waiters.append((through, then))
            else:
                then(None)
        if not self._waiters or self._reader.reading or self._reader.waiting:
            return
        if at_end:  # a waiter knows of more than this process has heard of yet
            self._reader.wait(self.core.read_to, self.context.clock.monotonic() + WAIT_S)
        else:
            self._read()

    def _on_data(self, arrived: bool, error: Exception | None) -> None:
        if not self._waiters:
            return
        if arrived:
            self._read()
        else:
            behind = f"shard {self.number} of transactions is read up to {self.core.read_to} here; ask again"
            self._fail_waiters(error or TryLaterError(behind))

    def _fail_waiters(self, error: Exception) -> None:
        waiting, self._waiters = self._waiters, []
        for _, then in waiting:
            then(error)

    # --- commits

    def commit(
        self,
        records: Sequence[NewRecord],
        offsets: Sequence[int],
        then: Stored,
        attempts: Sequence[tuple[int, int]] = (),
    ) -> None:
        """One commit under our epoch: the records, the finish of `offsets` (and of what is no part of
        anything), `attempts`. `then(results, error)` follows once."""
        context, epoch = self.context, self.epoch
        core = self.core
        loose = core.take_loose() if core.has_loose and not self._unreadable else []
        finished = ranges_of(offsets) + loose
        delta = ProgressDelta(TRANSACTION_GROUP, self.queue, epoch, self._generation, finished, attempts)
        self._committing += 1

        def on_done(results: Sequence[AppendResult], error: Exception | None) -> None:
            self._committing -= 1
            if error is None:
                if loose:
                    self.core.loosed(loose)
            else:
                self.core.put_back(loose)
            then(results, error)
            if error is not None and self.running and in_doubt(error, epoch < self.epoch):
                log.warning("a shard of transactions is had anew", extra={"error": str(error)})
                context.unsure()
            self._idle_when_stopped()

        context.commits.add(CommitPart(records, delta, on_done))

    def _idle_when_stopped(self) -> None:
        if not self.running and not self.busy and self._on_idle is not None:
            self._on_idle()

    def flush(self) -> None:
        """Finish what is no part of anything, if nothing else does; what cannot be read is kept as dead
        letters."""
        if self._unreadable:
            made = ready_topic(self.context.backend, TRANSACTION_DEAD_TOPIC, 1, self.context.deadline())
            made.then(self._flush_unreadable)
        elif self.core.has_loose and not self._committing:
            self.commit((), (), lambda results, error: None)

    def _flush_unreadable(self, topic: Completion[TopicInfo]) -> None:
        unreadable, self._unreadable = self._unreadable, []
        if topic.error is not None or not self.running or not unreadable:
            self._unreadable = unreadable
            return
        now_ms = self.context.clock.wall_ms()

        def on_done(results: Sequence[AppendResult], error: Exception | None) -> None:
            if error is not None:
                self._unreadable += unreadable
            else:
                for _ in unreadable:
                    self.context.counts.refused("half message: unreadable")

        self.commit([dead_unreadable(one, now_ms) for one in unreadable], (), on_done)


def in_doubt(error: Exception, regranted: bool) -> bool:
    """Whether our claim is over, or nobody knows what was committed. `regranted`: the commit named an older
    epoch than the one that we have by now."""
    return isinstance(error, RemoteError) or (isinstance(error, FencedError) and not regranted)
