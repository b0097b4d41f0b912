"""The ends of one shard's transactions: a request to end one becomes one commit.

A transaction becomes one dead letter if a topic of its messages was deleted or the engine never accepts them,
and the caller is answered so. It stays open while one of its topics accepts no messages. A topic that this
process does not know may be new: the transaction is postponed for NEWS_MS, so that the one answer is final.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from backend.completion import Completion
from backend.internal_topics import ready_topic, schedule_record
from backend.port import Backend
from backend.records import AppendResult, NewRecord, QueueRef, TopicInfo
from ddmq_client.idl.codes import TransactionOutcome
from ddmq_common.delays.command import COMMAND_PROPERTY, DelayCommand, decode_command
from ddmq_common.delays.levels import Levels
from ddmq_common.delays.schedules import first_due_ms
from ddmq_common.errors import CallerError, FencedError, TryLaterError, UnknownTopicError
from ddmq_common.names import TRANSACTION_DEAD_TOPIC
from proxy_producer import wire
from proxy_producer.core.delay_requests import schedule_id
from proxy_producer.core.rejections import SendRejection, to_rejection
from proxy_producer.delay.context import command_record
from proxy_producer.transactions.claimed_shard import ClaimedShard
from proxy_producer.transactions.codec import HalfMessage, Op, dead_half, op_record
from proxy_producer.transactions.core.decisions import TransactionDecision
from proxy_producer.transactions.core.transaction import OpenTransaction
from proxy_producer.transactions.left_overs import LARGE, LeftOvers
from proxy_producer.transactions.reading import fetch_halves

log = logging.getLogger("ddmq.producer")
TOPIC_DELETED, REFUSED, DAMAGED = "topic gone", "refused", "damaged"  # why one becomes a dead letter
NEWS_MS = 2_000  # in which every process learns of a new topic
_COMMITTED, _DEAD = TransactionOutcome.COMMITTED, TransactionOutcome.DEAD_LETTER


class NotWritable(NamedTuple):
    """The finding that a topic accepts no messages now."""

    topic: str


class MissingTopic(NamedTuple):
    """The finding that a topic does not exist, as far as this process knows."""

    topic: str


def find_delivery_obstacle(
    backend: Backend, halves: Sequence[HalfMessage]
) -> MissingTopic | NotWritable | None:
    """Return the first reason why these messages cannot be delivered to their topics now, or None."""
    closed = None
    for half in halves:
        info = backend.topic(half.mark.topic)
        if info is None:
            return MissingTopic(half.mark.topic)
        if not info.writable:
            closed = NotWritable(half.mark.topic)
    return closed


def plain_record(half: HalfMessage, backend: Backend) -> NewRecord | None:
    """Return the record that delivers a half message at once; None if it has a delay or its topic is not
    writable."""
    mark = half.mark
    info = backend.topic(mark.topic)
    if info is None or not info.writable or mark.level or mark.command is not None:
        return None
    return _in_topic(half, info.queues)


def _in_topic(half: HalfMessage, queues: int) -> NewRecord:
    """Build the record for the message's own topic. It may have been recreated with fewer queues."""
    return NewRecord(
        half.mark.topic, half.mark.queue % queues, half.message_id, half.born_ms, half.delivery, half.key,
        half.tags, half.flags,
    )  # fmt: skip


def final_record(
    half: HalfMessage, backend: Backend, levels: Levels, delay_shards: int, now_ms: int
) -> NewRecord:
    """Build the record that delivers a message or schedules its delay.

    `now_ms`: the wall clock at the commit.
    """
    mark = half.mark
    if mark.command is not None:
        command = due_from(mark.command, mark.wait_ms, now_ms)
        return command_record(_in_topic(half, mark.queue + 1), command, delay_shards)
    info = backend.topic(mark.topic)
    record = _in_topic(half, mark.queue + 1 if info is None else info.queues)
    return schedule_record(record, mark.level, levels) if mark.level else record


def due_from(command: DelayCommand, wait_ms: int, now_ms: int) -> DelayCommand:
    """Return the command with a due time of `wait_ms` after the commit; unchanged if `wait_ms` is
    negative."""
    if wait_ms < 0:
        return command
    due_ms = now_ms + 1 + wait_ms  # the end of this millisecond: it is never early
    if command.schedule is not None and command.schedule.cron:
        due_ms = first_due_ms(command.schedule, now_ms + 1) or due_ms
    return msgspec.structs.replace(command, due_ms=due_ms, timestamp_s=due_ms // 1_000)


def results_of(
    halves: Sequence[HalfMessage], records: Sequence[NewRecord], stored: Sequence[AppendResult]
) -> list[Any]:
    """Return a wire Result for each message of a committed transaction."""
    return [_result_of(*message) for message in zip(halves, records, stored, strict=False)]


def _result_of(half: HalfMessage, record: NewRecord, stored: AppendResult) -> Any:
    if half.mark.command is not None:
        command = decode_command((record.system or {})[COMMAND_PROPERTY])
        return wire.delayed_result(record, schedule_id(command))
    return wire.scheduled_result(record, stored) if half.mark.level else wire.stored_result(record, stored)


class TransactionEnd(NamedTuple):
    """The result of a request to end a transaction: its decision, or the rejection if it stays open.

    `reason`: why it became a dead letter, with details. `results`: of the committed messages, for the caller
    that requested the commit.
    """

    decision: TransactionDecision | None
    reason: str = ""
    results: list[Any] | None = None
    rejection: SendRejection | None = None


Then = Callable[[TransactionEnd], None]
_RETRY_TEXT = "the transaction is open; ask again"
_MOVES = f"the shard moves to another proxy; {_RETRY_TEXT}"


class TransactionDecider:
    """Commits, rolls back and dead-letters the transactions of one shard that this proxy owns."""

    def __init__(self, shard: ClaimedShard) -> None:
        self._shard = shard
        self._waiting: dict[bytes, list[Then]] = {}  # by transaction; bounded like all calls in flight
        self._missing_since: dict[bytes, int] = {}  # by transaction: when its topic was first missing
        self.postponed: list[OpenTransaction] = []  # such transactions, until the next retry

    def wait(self, transaction: OpenTransaction, then: Then) -> None:
        """Call `then` with the result of a transaction whose end is being committed."""
        self._waiting.setdefault(transaction.id, []).append(then)

    def retry_postponed(self) -> None:
        """Retry the commits that wait for an unknown topic. Called every second."""
        postponed, self.postponed = self.postponed, []
        for transaction in postponed:
            self._fetch(transaction, _COMMITTED, "", 0)

    def stop(self) -> None:
        """Keep transactions that wait for a topic open and answer their callers, because the shard moves
        away."""
        postponed, self.postponed = self.postponed, []
        for transaction in postponed:
            self._keep_open(transaction, to_rejection(TryLaterError(_MOVES)))

    def end(
        self,
        transaction: OpenTransaction,
        outcome: TransactionOutcome,
        then: Then | None,
        why: str = "",
        messages: int = 0,
    ) -> None:
        """End a transaction unless its messages cannot be delivered; then call `then` with the result.

        `why`: the reason for a dead letter. `messages`: the number of messages that the committing caller
        sent; if fewer are here, the others were lost before this proxy took over the shard.
        """
        shard, lost = self._shard, max(0, messages - len(transaction.offsets))
        shard.core.begin(transaction, outcome)
        if then is not None:
            self.wait(transaction, then)
        if outcome is TransactionOutcome.ROLLED_BACK:
            self._commit(transaction, outcome, [], [])
            return
        halves = shard.recent.all_of(transaction.offsets)
        if (
            halves is not None
            and outcome is _COMMITTED
            and len(halves) == 1
            and not (lost or transaction.beyond)
        ):
            record = plain_record(halves[0], shard.context.backend)
            if record is not None:
                self._commit(transaction, outcome, halves, [record])  # the fast path
                return
        if halves is not None:
            self._on_fetched(transaction, outcome, why, halves, lost)
            return

        self._fetch(transaction, outcome, why, lost)

    def _fetch(self, transaction: OpenTransaction, outcome: TransactionOutcome, why: str, lost: int) -> None:
        shard = self._shard

        def on_fetched(halves: list[HalfMessage], missing: int, error: Exception | None) -> None:
            self._on_fetched(transaction, outcome, why, halves, lost + missing, error)

        fetch_halves(shard.context.backend, shard.queue, shard.recent, transaction.offsets, on_fetched)

    def _on_fetched(
        self,
        transaction: OpenTransaction,
        outcome: TransactionOutcome,
        why: str,
        halves: list[HalfMessage],
        missing: int = 0,
        error: Exception | None = None,
    ) -> None:
        if error is not None or not self._shard.running:
            self._keep_open(transaction, to_rejection(error or TryLaterError(_MOVES)))
        elif outcome is not _COMMITTED:
            self._make_dead_letter(transaction, halves, why, "")
        elif transaction.beyond:
            count = len(transaction.beyond)
            more = f"{count} messages more than one commit can hold; they follow as dead letters"
            self._make_dead_letter(transaction, halves, LARGE, more)
        elif missing:
            more = f"{missing} of {missing + len(halves)} messages are damaged"
            self._make_dead_letter(transaction, halves, DAMAGED, more)
        else:
            self._publish(transaction, halves)

    # --- a commit

    def _publish(self, transaction: OpenTransaction, halves: list[HalfMessage]) -> None:
        context = self._shard.context
        obstacle = find_delivery_obstacle(context.backend, halves)
        if isinstance(obstacle, MissingTopic):
            self._wait_for_topic(transaction, halves, f"topic {obstacle.topic!r} does not exist (any more)")
        elif isinstance(obstacle, NotWritable):
            self._keep_open_for_topic(transaction, obstacle.topic)
        elif not context.levels.topic.ready and any(half.mark.level for half in halves):
            context.levels.topic.when_ready(
                lambda rejection: self._on_internal_topic(transaction, halves, rejection)
            )
        elif not context.commands.ready and any(half.mark.command for half in halves):
            context.commands.when_ready(
                lambda rejection: self._on_internal_topic(transaction, halves, rejection)
            )
        else:
            self._commit_messages(transaction, halves)

    def _on_internal_topic(
        self, transaction: OpenTransaction, halves: list[HalfMessage], rejection: SendRejection | None
    ) -> None:
        """Continue the commit, as the internal topic exists now; keep the transaction open if it does not."""
        if rejection is not None or not self._shard.running:
            self._keep_open(transaction, rejection or to_rejection(TryLaterError(_MOVES)))
        else:
            self._publish(transaction, halves)

    def _commit_messages(self, transaction: OpenTransaction, halves: list[HalfMessage]) -> None:
        context = self._shard.context
        backend, table, now_ms = context.backend, context.levels.table, context.clock.wall_ms()
        records = [final_record(half, backend, table, context.commands.queues, now_ms) for half in halves]
        self._commit(transaction, _COMMITTED, halves, records)

    def _wait_for_topic(self, transaction: OpenTransaction, halves: list[HalfMessage], text: str) -> None:
        """Postpone a commit whose topic may be new to this process. After NEWS_MS make it a dead letter."""
        now_ms = self._shard.context.now_ms()
        if now_ms - self._missing_since.setdefault(transaction.id, now_ms) >= NEWS_MS:
            self._make_dead_letter(transaction, halves, TOPIC_DELETED, text)
        else:
            self.postponed.append(transaction)

    def _keep_open_for_topic(self, transaction: OpenTransaction, topic: str) -> None:
        error = TryLaterError(f"topic {topic!r} takes no messages now; {_RETRY_TEXT} when it does")
        self._keep_open(transaction, to_rejection(error))

    # --- a dead letter

    def _make_dead_letter(
        self, transaction: OpenTransaction, halves: list[HalfMessage], reason: str, text: str
    ) -> None:
        context = self._shard.context
        transaction.deciding = _DEAD
        self._missing_since.pop(transaction.id, None)
        creation = ready_topic(context.backend, TRANSACTION_DEAD_TOPIC, 1, context.deadline())

        def on_ready(creation: Completion[TopicInfo]) -> None:
            if creation.error is not None or not self._shard.running:
                self._keep_open(transaction, to_rejection(creation.error or TryLaterError(_RETRY_TEXT)))
                return
            now_ms = context.clock.wall_ms()
            records = [dead_half(half, reason, transaction.checks, text, now_ms) for half in halves]
            self._commit(transaction, _DEAD, halves, records, reason, text)

        creation.then(on_ready)

    # --- the one commit

    def _commit(
        self,
        transaction: OpenTransaction,
        outcome: TransactionOutcome,
        halves: list[HalfMessage],
        records: list[NewRecord],
        reason: str = "",
        text: str = "",
    ) -> None:
        shard = self._shard
        at_ms = shard.context.backend.clock_ms()
        end = transaction.late[0].offset if transaction.late else shard.core.read_to
        decision = TransactionDecision(outcome, transaction.group, at_ms, end)
        messages = len(transaction.offsets) + len(transaction.beyond)
        op = Op(int(outcome), transaction.group, at_ms, messages, reason, end)

        def on_stored(results: Sequence[AppendResult], error: Exception | None) -> None:
            if error is not None:
                self._on_commit_failed(transaction, outcome, halves, error)
                return
            answers = results_of(halves, records, results) if outcome is _COMMITTED else None
            self._missing_since.pop(transaction.id, None)
            for late in shard.core.remove_decided(transaction, decision):
                shard.context.counts.count_rejected("half message: ended")
                shard.recent.drop(late.offset)
            for offset in transaction.offsets:
                shard.recent.drop(offset)
            shard.context.counts.count_decided(outcome, reason)
            if reason:
                facts = {
                    "transaction": transaction.id.hex(),
                    "group": transaction.group,
                    "reason": reason,
                    "error": text,
                }
                log.warning("a transaction became a dead letter", extra=facts)
            self._notify_waiting(
                transaction, TransactionEnd(decision, f"{reason}: {text}" if text else reason, answers)
            )

        shard.commit([*records, op_record(shard.number, transaction.id, op)], transaction.offsets, on_stored)

    def _on_commit_failed(
        self,
        transaction: OpenTransaction,
        outcome: TransactionOutcome,
        halves: list[HalfMessage],
        error: Exception,
    ) -> None:
        context, backend = self._shard.context, self._shard.context.backend
        if not isinstance(error, CallerError) or isinstance(error, FencedError) or not self._shard.running:
            later = TryLaterError(f"{error}; it is not known here how the transaction ended, ask again")
            self._keep_open(transaction, to_rejection(later))
        elif outcome is not _COMMITTED:
            log.error(
                "a transaction cannot be ended",
                extra={"transaction": transaction.id.hex(), "error": str(error)},
            )
            self._keep_open(transaction, to_rejection(TryLaterError(f"{error}; {_RETRY_TEXT}")))
        else:
            obstacle = find_delivery_obstacle(backend, halves)
            if isinstance(obstacle, NotWritable):
                self._keep_open_for_topic(transaction, obstacle.topic)
            elif obstacle is None and isinstance(error, UnknownTopicError):
                self._wait_for_topic(transaction, halves, str(error))
            else:
                context.counts.count_rejected("commit refused")
                self._make_dead_letter(
                    transaction, halves, REFUSED if obstacle is None else TOPIC_DELETED, str(error)
                )

    def _keep_open(self, transaction: OpenTransaction, rejection: SendRejection) -> None:
        self._missing_since.pop(transaction.id, None)
        self._shard.core.not_decided(transaction, self._shard.context.now_ms())
        self._notify_waiting(transaction, TransactionEnd(None, rejection=rejection))

    def _notify_waiting(self, transaction: OpenTransaction, result: TransactionEnd) -> None:
        for then in self._waiting.pop(transaction.id, ()):
            then(result)


class OwnedShard(NamedTuple):
    """A transaction shard that this proxy owns, with the objects that decide its transactions.

    It is a QueueWork of backend/ownership.
    """

    shard: ClaimedShard
    deciding: TransactionDecider
    left_overs: LeftOvers

    @property
    def queue(self) -> QueueRef:
        return self.shard.queue

    @property
    def is_busy(self) -> bool:
        return self.shard.busy

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Start nothing new; call `on_idle` when no commit or prepare is under way any more."""
        self.deciding.stop()
        self.shard.stop(on_idle)

    def abandon(self) -> None:
        """Add no more messages to the shard, because another proxy may own it."""
        self.shard.claimed = False

    def raise_epoch(self, epoch: int) -> None:
        self.shard.epoch = epoch
