"""How the transactions of one shard end: what a caller, an operator or the time asks for becomes one commit.

A transaction whose topic was deleted, or whose messages the engine never takes, becomes a dead letter as a
whole, and whoever asked is told so. A topic that takes no messages for now keeps it open. One that is not
known here may be new: its transaction is held for NEWS_MS, so that the one answer is final.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.records import AppendResult, NewRecord, QueueRef, TopicInfo
from ddmq_client.idl.codes import TransactionOutcome
from ddmq_common.errors import CallerError, FencedError, TryLaterError, UnknownTopicError
from ddmq_common.names import TRANSACTION_DEAD_TOPIC
from proxy_producer.core.refusals import SendRefusal, refusal_of
from proxy_producer.transactions.codec import HalfMessage, Op, dead_half, op_record
from proxy_producer.transactions.commits import Gone, NotWritable, plain, results_of, targets_fault, visible
from proxy_producer.transactions.core.ended import Ended
from proxy_producer.transactions.core.transaction import OpenTransaction
from proxy_producer.transactions.held import HeldShard
from proxy_producer.transactions.left_overs import LARGE, LeftOvers
from proxy_producer.transactions.reading import fetch

log = logging.getLogger("ddmq.producer")
TOPIC_GONE, REFUSED, DAMAGED = "topic gone", "refused", "damaged"  # why one becomes a dead letter
NEWS_MS = 2_000  # in which every process has heard of a topic
_COMMITTED, _DEAD = TransactionOutcome.COMMITTED, TransactionOutcome.DEAD_LETTER


class Came(NamedTuple):
    """What came of an end that was asked for: how the transaction ended, or why it did not now.

    `reason`: of a dead letter, with what there is to say about it. `results`: of the commit; for the one who
    asked for it.
    """

    ended: Ended | None
    reason: str = ""
    results: list[Any] | None = None
    fault: SendRefusal | None = None


Then = Callable[[Came], None]
_AGAIN = "the transaction is open; ask again"
_MOVES = f"the shard moves to another proxy; {_AGAIN}"


class Deciding:
    """Belongs to one shard that is held."""

    def __init__(self, held: HeldShard) -> None:
        self._held = held
        self._waiting: dict[
            bytes, list[Then]
        ] = {}  # who waits for the end of which; bounded as all in flight
        self._missing_since: dict[bytes, int] = {}  # of transactions to commit: when a topic was not known
        self.held_back: list[OpenTransaction] = []  # such transactions, until the next look

    def wait(self, found: OpenTransaction, then: Then) -> None:
        """It is being decided: `then` follows with what it came to."""
        self._waiting.setdefault(found.id, []).append(then)

    def retry_held_back(self) -> None:
        """Commit again, each second, the transactions whose topic was not known."""
        held_back, self.held_back = self.held_back, []
        for found in held_back:
            self._fetch(found, _COMMITTED, "", 0)

    def stop(self) -> None:
        """Give the shard up: nobody waits here for a topic any more."""
        held_back, self.held_back = self.held_back, []
        for found in held_back:
            self._not_now(found, refusal_of(TryLaterError(_MOVES)))

    def end(
        self,
        found: OpenTransaction,
        outcome: TransactionOutcome,
        then: Then | None,
        why: str = "",
        messages: int = 0,
    ) -> None:
        """It ends like this, unless its messages cannot be visible; `then` follows. `why`: of a dead letter.
        `messages`: so many it has, as who commits it knows; what is not among them was lost before this owner
        had read it, and nothing else tells that it was there."""
        held, lost = self._held, max(0, messages - len(found.offsets))
        held.core.begin(found, outcome)
        if then is not None:
            self.wait(found, then)
        if outcome is TransactionOutcome.ROLLED_BACK:
            self._commit(found, outcome, [], [])
            return
        halves = held.kept.all_of(found.offsets)
        if halves is not None and outcome is _COMMITTED and len(halves) == 1 and not (lost or found.beyond):
            record = plain(halves[0], held.context.backend)
            if record is not None:
                self._commit(found, outcome, halves, [record])  # as nearly all are
                return
        if halves is not None:
            self._fetched(found, outcome, why, halves, lost)
            return

        self._fetch(found, outcome, why, lost)

    def _fetch(self, found: OpenTransaction, outcome: TransactionOutcome, why: str, lost: int) -> None:
        held = self._held

        def fetched(halves: list[HalfMessage], missing: int, error: Exception | None) -> None:
            self._fetched(found, outcome, why, halves, lost + missing, error)

        fetch(held.context.backend, held.queue, held.kept, found.offsets, fetched)

    def _fetched(
        self,
        found: OpenTransaction,
        outcome: TransactionOutcome,
        why: str,
        halves: list[HalfMessage],
        missing: int = 0,
        error: Exception | None = None,
    ) -> None:
        if error is not None or not self._held.running:
            self._not_now(found, refusal_of(error or TryLaterError(_MOVES)))
        elif outcome is not _COMMITTED:
            self._die(found, halves, why, "")
        elif found.beyond:
            more = f"{len(found.beyond)} messages more than one commit can hold; they follow as dead letters"
            self._die(found, halves, LARGE, more)
        elif missing:
            more = f"{missing} of {missing + len(halves)} messages are damaged"
            self._die(found, halves, DAMAGED, more)
        else:
            self._publish(found, halves)

    # --- a commit

    def _publish(self, found: OpenTransaction, halves: list[HalfMessage]) -> None:
        context = self._held.context
        fault = targets_fault(context.backend, halves)
        if isinstance(fault, Gone):
            self._wait_for_topic(found, halves, f"topic {fault.topic!r} does not exist (any more)")
        elif isinstance(fault, NotWritable):
            self._closed(found, fault.topic)
        elif not context.levels.topic.ready and any(half.mark.level for half in halves):
            context.levels.topic.when_ready(lambda fault: self._ready(found, halves, fault))
        elif not context.commands.ready and any(half.mark.command for half in halves):
            context.commands.when_ready(lambda fault: self._ready(found, halves, fault))
        else:
            self._store(found, halves)

    def _ready(self, found: OpenTransaction, halves: list[HalfMessage], fault: SendRefusal | None) -> None:
        """An internal topic is there now, or cannot be had."""
        if fault is not None or not self._held.running:
            self._not_now(found, fault or refusal_of(TryLaterError(_MOVES)))
        else:
            self._publish(found, halves)

    def _store(self, found: OpenTransaction, halves: list[HalfMessage]) -> None:
        context = self._held.context
        backend, table, now_ms = context.backend, context.levels.table, context.clock.wall_ms()
        records = [visible(half, backend, table, context.commands.queues, now_ms) for half in halves]
        self._commit(found, _COMMITTED, halves, records)

    def _wait_for_topic(self, found: OpenTransaction, halves: list[HalfMessage], text: str) -> None:
        """Hold a transaction back whose topic may be new; after NEWS_MS it is a dead letter."""
        now_ms = self._held.context.now_ms()
        if now_ms - self._missing_since.setdefault(found.id, now_ms) >= NEWS_MS:
            self._die(found, halves, TOPIC_GONE, text)
        else:
            self.held_back.append(found)

    def _closed(self, found: OpenTransaction, topic: str) -> None:
        error = TryLaterError(f"topic {topic!r} takes no messages now; {_AGAIN} when it does")
        self._not_now(found, refusal_of(error))

    # --- a dead letter

    def _die(self, found: OpenTransaction, halves: list[HalfMessage], reason: str, text: str) -> None:
        context = self._held.context
        found.deciding = _DEAD
        self._missing_since.pop(found.id, None)
        made = ready_topic(context.backend, TRANSACTION_DEAD_TOPIC, 1, context.deadline())

        def ready(made: Completion[TopicInfo]) -> None:
            if made.error is not None or not self._held.running:
                self._not_now(found, refusal_of(made.error or TryLaterError(_AGAIN)))
                return
            now_ms = context.clock.wall_ms()
            records = [dead_half(half, reason, found.checks, text, now_ms) for half in halves]
            self._commit(found, _DEAD, halves, records, reason, text)

        made.then(ready)

    # --- the one commit

    def _commit(
        self,
        found: OpenTransaction,
        outcome: TransactionOutcome,
        halves: list[HalfMessage],
        records: list[NewRecord],
        reason: str = "",
        text: str = "",
    ) -> None:
        held = self._held
        at_ms = held.context.backend.clock_ms()
        end = found.late[0].offset if found.late else held.core.read_to
        ended = Ended(outcome, found.group, at_ms, end)
        messages = len(found.offsets) + len(found.beyond)
        op = Op(int(outcome), found.group, at_ms, messages, reason, end)

        def stored(results: Sequence[AppendResult], error: Exception | None) -> None:
            if error is not None:
                self._failed(found, outcome, halves, error)
                return
            came = results_of(halves, records, results) if outcome is _COMMITTED else None
            self._missing_since.pop(found.id, None)
            for late in held.core.decided(found, ended):
                held.context.counts.refused("half message: ended")
                held.kept.drop(late.offset)
            for offset in found.offsets:
                held.kept.drop(offset)
            held.context.counts.ended(outcome, reason)
            if reason:
                facts = {"transaction": found.id.hex(), "group": found.group, "reason": reason, "error": text}
                log.warning("a transaction became a dead letter", extra=facts)
            self._tell(found, Came(ended, f"{reason}: {text}" if text else reason, came))

        held.commit([*records, op_record(held.number, found.id, op)], found.offsets, stored)

    def _failed(
        self,
        found: OpenTransaction,
        outcome: TransactionOutcome,
        halves: list[HalfMessage],
        error: Exception,
    ) -> None:
        context, backend = self._held.context, self._held.context.backend
        if not isinstance(error, CallerError) or isinstance(error, FencedError) or not self._held.running:
            later = TryLaterError(f"{error}; it is not known here how the transaction ended, ask again")
            self._not_now(found, refusal_of(later))
        elif outcome is not _COMMITTED:
            log.error(
                "a transaction cannot be ended", extra={"transaction": found.id.hex(), "error": str(error)}
            )
            self._not_now(found, refusal_of(TryLaterError(f"{error}; {_AGAIN}")))
        else:
            fault = targets_fault(backend, halves)
            if isinstance(fault, NotWritable):
                self._closed(found, fault.topic)
            elif fault is None and isinstance(error, UnknownTopicError):
                self._wait_for_topic(found, halves, str(error))
            else:
                context.counts.refused("commit refused")
                self._die(found, halves, REFUSED if fault is None else TOPIC_GONE, str(error))

    def _not_now(self, found: OpenTransaction, fault: SendRefusal) -> None:
        self._missing_since.pop(found.id, None)
        self._held.core.not_decided(found, self._held.context.now_ms())
        self._tell(found, Came(None, fault=fault))

    def _tell(self, found: OpenTransaction, came: Came) -> None:
        for then in self._waiting.pop(found.id, ()):
            then(came)


class OwnedShard(NamedTuple):
    """A shard that this proxy owns: a QueueWork of backend/ownership."""

    held: HeldShard
    deciding: Deciding
    left_overs: LeftOvers

    @property
    def queue(self) -> QueueRef:
        return self.held.queue

    @property
    def is_busy(self) -> bool:
        return self.held.busy

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Begin nothing new; `on_idle` follows when no commit or prepare is under way any more."""
        self.deciding.stop()
        self.held.stop(on_idle)

    def abandon(self) -> None:
        """Take nothing in any more: another proxy may own the shard."""
        self.held.claimed = False

    def raise_epoch(self, epoch: int) -> None:
        self.held.epoch = epoch
