"""Half messages that the owner of their shard has admitted, until their sender has an answer.

They hold their room in the shard until the backend has settled them. Then the shard judges them, and only
its verdict is answered: a part of their transaction, or why not. Where another proxy owns the shard
meanwhile, the outcome is unknown here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddmq_client.idl.codes import Code
from proxy_producer.config import TransactionLimits
from proxy_producer.core.refusals import SendRefusal, illegal, refusal
from proxy_producer.transactions.codec import HalfMessage
from proxy_producer.transactions.core.reservations import PrepareVerdict
from proxy_producer.transactions.core.transaction import HalfTaken
from proxy_producer.transactions.deciding import EndResult, OwnedShard
from proxy_producer.transactions.ends import TOLD, foreign_group_fault, late_fault, late_message_fault

OnJudged = Callable[[Sequence[HalfTaken], SendRefusal | None], None]


@dataclass(slots=True)
class Admitted:
    """The room that one prepare holds in its shard until `release`."""

    owned: OwnedShard
    transaction: bytes
    group: str
    messages: int
    size: int
    released: bool = False

    def release(self) -> None:
        """Give the room back: the backend has settled it, or it never got there. May be called again."""
        if not self.released:
            self.released = True
            self.owned.held.release_prepare(self.transaction, self.messages, self.size)

    def take_in(self, halves: Sequence[HalfMessage], then: OnJudged) -> None:
        """Hand durable messages to the shard; `then(verdicts, refusal)` follows."""
        shard = self.owned.held
        if not shard.claimed:
            then((), moved_fault())
            return
        verdicts = [shard.appended(half, self.transaction) for half in halves]
        if HalfTaken.AHEAD not in verdicts:
            self._judge_halves(verdicts, then)
            return

        def on_read(error: Exception | None) -> None:
            if error is not None or not shard.claimed:
                then((), moved_fault())
            else:
                self._judge_halves([shard.appended(half, self.transaction) for half in halves], then)

        shard.when_read(max(half.offset for half in halves), on_read)

    def _judge_halves(self, verdicts: Sequence[HalfTaken], then: OnJudged) -> None:
        faults = [late_fault(verdict, self.transaction, self.group) for verdict in verdicts]
        fault = next(filter(None, faults), None)
        opened = self.owned.held.core.open.get(self.transaction)
        if fault is not None or HalfTaken.LATE not in verdicts or opened is None:
            then(verdicts, fault)
            return

        def on_decided(result: EndResult) -> None:
            """Count them as parts of the transaction if its end failed."""
            then(
                verdicts, None if result.ended is None else late_message_fault(self.transaction, "has ended")
            )

        self.owned.deciding.wait(opened, on_decided)


def moved_fault() -> SendRefusal:
    """Return code 12: a message is in the log, and another proxy owns its transaction now."""
    what = "the transaction moved to another proxy while the message was being stored"
    return refusal(Code.TIMED_OUT, "shard_moved", what, "it may or may not be a part of it; send it again")


def verdict_fault(
    verdict: PrepareVerdict, owned: OwnedShard, transaction: bytes, group: str
) -> SendRefusal | None:
    """Return why a shard takes no message, but for LARGE; None: it does."""
    if verdict is PrepareVerdict.FOREIGN:
        return foreign_group_fault(group)
    if verdict is PrepareVerdict.ENDING:
        return late_message_fault(transaction, "is being ended")
    if verdict is PrepareVerdict.ENDED:
        ended = owned.held.core.ended.get(transaction)
        return late_message_fault(transaction, "has ended" if ended is None else TOLD[ended.outcome])
    if verdict is PrepareVerdict.FULL:
        what = f"producer group {group!r} or its shard has as many open transactions as it may"
        allowed = "allowed: later, when some have ended (open_max)"
        return refusal(Code.BUSY, "transactions_open", what, allowed)
    if verdict is PrepareVerdict.CROWDED:
        what = "with the messages that are on their way the transaction would be too large"
        return refusal(Code.BUSY, "transaction_crowded", what, "send it again when those are answered")
    return None


def long_fault(
    limits: TransactionLimits, before: int, before_bytes: int, messages: int, size: int
) -> SendRefusal | None:
    """Return why a transaction that has `before` messages takes no more of them; None: it does."""
    if before + messages <= limits.messages_max and before_bytes + size <= limits.bytes_max:
        return None
    what = f"the transaction would have {before + messages} messages with {before_bytes + size} bytes"
    if before:
        what += f", {before} of them from before"
    allowed = f"allowed: at most {limits.messages_max} messages and {limits.bytes_max} bytes together"
    return illegal("transaction_long", what, allowed)
