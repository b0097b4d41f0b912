"""One shard that this proxy owns: reads its half messages and commits its decisions under its epoch.

Take-over: the newest op records are read, then the unfinished half messages; until both are done, callers
must try later. A commit with an unknown outcome, or under an outdated epoch, ends the claim
(`on_claim_uncertain`): the next owner, mostly this proxy again, reads what happened.
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
from proxy_producer.transactions.combined_commits import Stored, TransactionCommit
from proxy_producer.transactions.context import TransactionContext
from proxy_producer.transactions.core.decisions import DecisionHistory
from proxy_producer.transactions.core.ranges import ranges_of
from proxy_producer.transactions.core.shard import TransactionShard
from proxy_producer.transactions.core.transaction import HalfVerdict
from proxy_producer.transactions.reading import (
    BYTES_MAX,
    COUNT_MAX,
    WAIT_S,
    OpReader,
    RecentMessages,
    facts_of,
    half_batch,
)

log = logging.getLogger("ddmq.producer")
Read = Callable[[Exception | None], None]


class ClaimedShard:
    """Reads and commits one shard that this proxy owns, until `stop`. Commits under way then still finish."""

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
        self.recent = RecentMessages()
        self.running = True
        self.claimed = True  # no other proxy can have the shard yet
        self.ready = False  # the state of the previous owner is restored
        self.stuck = False  # the take-over failed and must be started again
        self._generation = generation
        self._acks = acks
        self._end = end  # of the queue when it was taken over
        self._committing = 0
        self._on_idle: Callable[[], None] | None = None
        self._reader = QueueReader(context.backend, queue, self._on_read, self._on_data)
        self._waiters: list[tuple[int, Read]] = []  # the offset that each needs to be read
        self._unreadable: list[StoredRecord] = []
        self.core = self._new_core(DecisionHistory(1))

    def _new_core(self, decisions: DecisionHistory) -> TransactionShard:
        context = self.context
        return TransactionShard(context.rules, self._acks, self._acks.committed, decisions, context.now_ms())

    @property
    def number(self) -> int:
        return self.queue.queue_id

    @property
    def busy(self) -> bool:
        """Return whether a commit or a prepare is under way."""
        return self._committing > 0 or bool(self.core.reserved)

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Start nothing new and fail waiting callers; call `on_idle` when `busy` becomes false."""
        self.running = self.ready = False
        self._on_idle = on_idle
        self._reader.stop()
        self._fail_waiters(self._explain_move())

    def _explain_move(self) -> TryLaterError:
        return TryLaterError(f"shard {self.number} of transactions moves to another proxy; ask again")

    # --- take-over

    def start(self) -> None:
        """Restore the shard's state: read the newest op records, then the unfinished half messages."""
        self.stuck, self._unreadable = False, []
        info = self.context.backend.topic(OP_TOPIC)
        queue = None
        if info is not None and self.number < info.queues:
            queue = QueueRef(OP_TOPIC, info.incarnation, self.number)
        OpReader(self.context.backend, queue, self.context.rules.decisions_max, self._on_ops_read).start()

    def _on_ops_read(self, decisions: DecisionHistory, error: Exception | None) -> None:
        if not self.running:
            return
        if error is not None:
            self._log_failure("the ends of transactions could not be read", error)
            self.stuck = True
            return
        self.core = self._new_core(decisions)
        self.core.raise_observed_end(self._end)
        self.when_read(self._end - 1, self._on_restored)

    def _on_restored(self, error: Exception | None) -> None:
        if error is None:
            self.ready = True
            self.context.shard_ready()
        elif self.running:
            self._log_failure("half messages could not be read", error)
            self.stuck = True

    def _log_failure(self, what: str, error: Exception) -> None:
        self.context.counts.count_rejected("read failed")
        log.warning("transactions: %s", what, extra={"shard": self.number, "error": str(error)})

    # --- half messages

    def add_appended(self, half: HalfMessage, transaction: bytes) -> HalfVerdict:
        """Add a half message that this proxy appended durably; return its verdict."""
        context = self.context
        verdict = self.core.add_stored(
            facts_of(half, transaction, context.now_ms(), context.backend.clock_ms())
        )
        if verdict in (HalfVerdict.MEMBER, HalfVerdict.AHEAD, HalfVerdict.LATE):
            self.recent.put(half)
        else:
            self._count_stray(verdict)
        return verdict

    def release_prepare(self, transaction: bytes, messages: int, size: int) -> None:
        """Release the capacity reserved by an admitted prepare, and report a stopped shard that has become
        idle."""
        self.core.release_prepare(transaction, messages, size)
        self._idle_when_stopped()

    def when_read(self, through: int, then: Read) -> None:
        """Call `then(None)` once all known half messages, and those up to offset `through`, have been read.

        A stopped shard or a failed read calls `then` with the error.
        """
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
        """Ask for the queue's end, and call `then` once all half messages up to it are read, whoever appended
        them."""

        def on_bounds(answer: Completion[list[Bounds | None]]) -> None:
            bounds = None if answer.error is not None else answer.value[0]
            if bounds is None or not self.running:
                then(answer.error or self._explain_move())
                return
            self.core.raise_observed_end(bounds.next)
            self.when_read(-1, then)

        self.context.backend.bounds((self.queue,)).then(on_bounds)

    def _read(self) -> None:
        start, end = self.core.next_read()
        self._reader.read(start, min(COUNT_MAX, end - start), BYTES_MAX)

    def _on_read(self, read: ReadAnswer) -> None:
        if read.error is not None:
            self._log_failure("half messages could not be read", read.error)
            self._fail_waiters(read.error)
            return
        if read.batch is not None:
            self._add_batch(read.batch)
        elif read.oldest is not None:
            lost = self.core.skip_to(read.oldest)
            log.error("half messages are gone from the log", extra={"shard": self.number, "count": lost})
        self._answer_waiters(at_end=read.at_end)

    def _add_batch(self, batch: ReadBatch) -> None:
        batch_content = half_batch(batch)
        self._unreadable += [
            record for record in batch_content.unreadable if record.offset >= self.core.read_to
        ]
        rules, wall_ms, now_ms = self.context.rules, self.context.backend.clock_ms(), self.context.now_ms()
        halves = [
            facts_of(half, bytes.fromhex(half.mark.id), rules.began_ms(at_ms, wall_ms, now_ms), at_ms)
            for half, at_ms in batch_content.halves
        ]
        for _, verdict in self.core.add_read(halves, batch.next_offset):
            self._count_stray(verdict)

    def _count_stray(self, verdict: HalfVerdict) -> None:
        """Count a half message that belongs to no transaction."""
        if verdict not in (HalfVerdict.MEMBER, HalfVerdict.AHEAD, HalfVerdict.LATE, HalfVerdict.LEFT_OVER):
            self.context.counts.count_rejected(f"half message: {verdict.value}")

    def _answer_waiters(self, *, at_end: bool) -> None:
        """Call the waiters whose messages have been read, and continue reading for the others."""
        waiting, self._waiters = self._waiters, []
        for through, then in waiting:
            if self.core.must_read(through):
                self._waiters.append((through, then))
            else:
                then(None)
        if not self._waiters or self._reader.reading or self._reader.waiting:
            return
        if at_end:  # a waiter needs records that this process does not see yet
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
        """Commit `records`, the finish of `offsets` and of orphaned offsets, and `attempts` under the current
        epoch.

        Call `then(results, error)` once.
        """
        context, epoch = self.context, self.epoch
        core = self.core
        orphans = core.take_orphans() if core.has_orphans and not self._unreadable else []
        finished = ranges_of(offsets) + orphans
        delta = ProgressDelta(TRANSACTION_GROUP, self.queue, epoch, self._generation, finished, attempts)
        self._committing += 1

        def on_done(results: Sequence[AppendResult], error: Exception | None) -> None:
            self._committing -= 1
            if error is None:
                if orphans:
                    self.core.finish_orphans(orphans)
            else:
                self.core.restore_orphans(orphans)
            then(results, error)
            if error is not None and self.running and is_claim_uncertain(error, epoch < self.epoch):
                log.warning("re-acquiring the shards of transactions", extra={"error": str(error)})
                context.on_claim_uncertain()
            self._idle_when_stopped()

        context.commits.add(TransactionCommit(records, delta, on_done))

    def _idle_when_stopped(self) -> None:
        if not self.running and not self.busy and self._on_idle is not None:
            self._on_idle()

    def flush(self) -> None:
        """Finish orphaned offsets if no other commit does, and move unreadable half records to the dead
        letters."""
        if self._unreadable:
            creation = ready_topic(self.context.backend, TRANSACTION_DEAD_TOPIC, 1, self.context.deadline())
            creation.then(self._flush_unreadable)
        elif self.core.has_orphans and not self._committing:
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
                    self.context.counts.count_rejected("half message: unreadable")

        self.commit([dead_unreadable(record, now_ms) for record in unreadable], (), on_done)


def is_claim_uncertain(error: Exception, regranted: bool) -> bool:
    """Return whether a commit error means that the claim has ended or the outcome is unknown.

    `regranted`: the commit used an older epoch than the shard has now.
    """
    return isinstance(error, RemoteError) or (isinstance(error, FencedError) and not regranted)
