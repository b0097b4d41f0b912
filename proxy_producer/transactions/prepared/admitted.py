"""Half messages that the owner of their shard has admitted, until their sender has an answer.

They hold their room in the shard until the backend has settled them. Then the shard says what they are, and
only that is answered: a part of their transaction, or why not. Where the shard has gone to another proxy
meanwhile, nobody here knows.
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
from proxy_producer.transactions.deciding import Came, OwnedShard
from proxy_producer.transactions.ends import TOLD, foreign, late, late_fault

Told = Callable[[Sequence[HalfTaken], SendRefusal | None], None]


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

    def take_in(self, halves: Sequence[HalfMessage], then: Told) -> None:
        """Hand durable messages to the shard; `then(what they are, why none counts)` follows."""
        held = self.owned.held
        if not held.claimed:
            then((), moved_fault())
            return
        taken = [held.appended(half, self.transaction) for half in halves]
        if HalfTaken.AHEAD not in taken:
            self._judge(taken, then)
            return

        def on_read(error: Exception | None) -> None:
            if error is not None or not held.claimed:
                then((), moved_fault())
            else:
                self._judge([held.appended(half, self.transaction) for half in halves], then)

        held.when_read(max(half.offset for half in halves), on_read)

    def _judge(self, taken: Sequence[HalfTaken], then: Told) -> None:
        faults = [late_fault(one, self.transaction, self.group) for one in taken]
        fault = next(filter(None, faults), None)
        opened = self.owned.held.core.open.get(self.transaction)
        if fault is not None or HalfTaken.LATE not in taken or opened is None:
            then(taken, fault)
            return

        def on_decided(came: Came) -> None:
            """Count them as parts where the transaction did not end after all."""
            then(taken, None if came.ended is None else late(self.transaction, "has ended"))

        self.owned.deciding.wait(opened, on_decided)


def moved_fault() -> SendRefusal:
    """Say that a message is in the log, and its transaction another proxy's by now."""
    what = "the transaction moved to another proxy while the message was being stored"
    return refusal(Code.TIMED_OUT, "shard_moved", what, "it may or may not be a part of it; send it again")


def verdict_fault(
    verdict: PrepareVerdict, owned: OwnedShard, transaction: bytes, group: str
) -> SendRefusal | None:
    """Return why a shard takes no message, but for LARGE; None: it does."""
    if verdict is PrepareVerdict.FOREIGN:
        return foreign(group)
    if verdict is PrepareVerdict.ENDING:
        return late(transaction, "is being ended")
    if verdict is PrepareVerdict.ENDED:
        ended = owned.held.core.ended.get(transaction)
        return late(transaction, "has ended" if ended is None else TOLD[ended.outcome])
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
