"""Check-back: undecided transactions are offered to the polling members of their producer groups.

A poll waits until there is a check or its deadline comes. A check is handed out only after its attempt is
durable, so no group is asked more often than `checks_max` times, whatever is killed. Checks of shards that
other proxies own are requested from them once a second while a poll waits here (polls.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from backend.records import AppendResult
from ddmq_client.idl import producer
from ddmq_client.idl.codes import OK_TEXT, TransactionOutcome
from ddmq_common.delivery import decode
from ddmq_rpc.api import Call
from ddmq_rpc.codec import structs
from proxy_producer.core.rejections import SendRejection
from proxy_producer.transactions.claimed_shard import ClaimedShard
from proxy_producer.transactions.codec import HalfMessage
from proxy_producer.transactions.core.transaction import OpenTransaction
from proxy_producer.transactions.deciding import DAMAGED, TransactionDecider
from proxy_producer.transactions.reading import fetch_halves

POLLS_MAX = 10_000  # waiting at a time
POLL_BYTES_MAX = 4_096  # of a poll's frame, which counts as in flight while the poll waits
COUNT_MAX = 100  # checks of one answer
ANSWER_BYTES_MAX = 4 << 20
IDL = structs(producer)


class WaitingPoll:
    """A client's call of pollTransactionChecks that waits for a transaction to check.

    `forwarded`: it comes from another proxy and must not wait.

    `deadline`: monotonic seconds.
    """

    __slots__ = ("_table", "call", "count", "deadline", "done", "forwarded", "group", "is_served", "usage")

    def __init__(
        self, table: WaitingPolls, call: Call, group: str, count: int, deadline: float, forwarded: bool
    ) -> None:
        self._table = table
        self.call = call
        self.usage = None if call.caller is None else call.caller.usage  # which counts it while it waits
        self.group = group
        self.count = count
        self.deadline = deadline
        self.forwarded = forwarded
        self.is_served = False  # its checks are being made durable
        self.done = False
        call.on_abandoned = self._on_abandoned

    def answer_poll(self, checks: Sequence[Any], rejection: SendRejection | None = None) -> None:
        """Answer the poll with these checks or with a rejection. Later calls do nothing."""
        if self.done:
            return
        self.done = True
        self._table.remove_poll(self)
        code, text = (0, OK_TEXT) if rejection is None else (int(rejection.code), rejection.text)
        self.call.reply(IDL.PollChecksResponse(code=code, msg=text, checks=list(checks)))

    def _on_abandoned(self, _: Call) -> None:
        self.done = True
        self._table.remove_poll(self)


class WaitingPolls:
    """All waiting polls of this proxy, by producer group in order of arrival."""

    def __init__(self) -> None:
        self._by_group: dict[str, deque[WaitingPoll]] = {}
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count >= POLLS_MAX

    def groups(self) -> list[str]:
        """Return the producer groups that have a waiting poll."""
        return list(self._by_group)

    def add_poll(self, poll: WaitingPoll) -> None:
        self._by_group.setdefault(poll.group, deque()).append(poll)
        self.count += 1
        if poll.usage is not None:
            poll.usage.waiting_calls += 1

    def remove_poll(self, poll: WaitingPoll) -> None:
        """Remove a waiting poll. Does nothing if the poll is not waiting."""
        waiting = self._by_group.get(poll.group)
        if waiting is not None and poll in waiting:
            waiting.remove(poll)
            self.count -= 1
            if poll.usage is not None:
                poll.usage.waiting_calls -= 1
            if not waiting:
                del self._by_group[poll.group]

    def find_unserved(self, group: str) -> WaitingPoll | None:
        """Return the longest-waiting poll of the group for which no checks are being prepared, or None."""
        return next((poll for poll in self._by_group.get(group, ()) if not poll.is_served), None)

    def expire(self, now: float) -> None:
        """Answer the polls whose deadline has come with an empty list."""
        late = [poll for waiting in self._by_group.values() for poll in waiting if poll.deadline <= now]
        for poll in late:
            if not poll.is_served:
                poll.answer_poll(())

    def end_wait(self, call: Call) -> None:
        """Answer the poll of this call, as if its time were up; nothing happens where it does not wait."""
        for poll in [poll for waiting in self._by_group.values() for poll in waiting if poll.call is call]:
            if not poll.is_served:
                poll.answer_poll(())

    def end(self, rejection: SendRejection) -> None:
        """Answer all polls with this rejection."""
        for poll in [poll for waiting in self._by_group.values() for poll in waiting]:
            poll.answer_poll((), rejection)


Checks = Callable[[list[Any]], None]


def hand_out_checks(
    shard: ClaimedShard, deciding: TransactionDecider, group: str, count: int, then: Checks
) -> bool:
    """Take up to `count` due checks of the group from this shard, make the attempts durable, and call
    `then(checks)`.

    The list may be empty after a failure. Return False, without a call, if the shard has no check for the
    group.
    """
    checks = shard.core.begin_checks(group, count, ANSWER_BYTES_MAX)
    if not checks:
        return False
    CheckHandout(shard, deciding, checks, then)
    return True


class CheckHandout:
    """Hands out the checks of a few transactions of one group: reads their messages, counts the attempts,
    reports."""

    def __init__(
        self, shard: ClaimedShard, deciding: TransactionDecider, chosen: list[OpenTransaction], then: Checks
    ) -> None:
        self._shard = shard
        self._deciding = deciding
        self._then = then
        self._transactions: list[tuple[OpenTransaction, list[HalfMessage]]] = []
        self._remaining = len(chosen)
        for transaction in chosen:
            self._fetch(transaction)

    def _fetch(self, transaction: OpenTransaction) -> None:
        shard = self._shard

        def on_fetched(halves: list[HalfMessage], missing: int, error: Exception | None) -> None:
            self._remaining -= 1
            if error is not None or not shard.running:
                shard.core.cancel_check(transaction, shard.context.now_ms())
            elif missing:
                shard.core.cancel_check(transaction, shard.context.now_ms())
                if transaction.deciding is None and shard.core.open.get(transaction.id) is transaction:
                    self._deciding.end(transaction, TransactionOutcome.DEAD_LETTER, None, DAMAGED)
            else:
                self._transactions.append((transaction, halves))
            if not self._remaining:
                self._commit_attempts()

        fetch_halves(shard.context.backend, shard.queue, shard.recent, list(transaction.offsets), on_fetched)

    def _commit_attempts(self) -> None:
        """Commit the incremented attempt counts of the transactions whose messages were read."""
        if not self._transactions:
            self._then([])
            return
        attempts = [(transaction.offsets[0], transaction.checks + 1) for transaction, _ in self._transactions]
        self._shard.commit((), (), self._on_attempts_committed, attempts)

    def _on_attempts_committed(self, _: Sequence[AppendResult], error: Exception | None) -> None:
        shard = self._shard
        now_ms, checks = shard.context.now_ms(), []
        for transaction, halves in self._transactions:
            if error is not None:
                shard.core.cancel_check(transaction, now_ms)
            elif shard.core.finish_check(transaction, now_ms):
                checks.append(_check(transaction, halves))
        shard.context.counts.checks.value += len(checks)
        self._then(checks)


def _check(transaction: OpenTransaction, halves: list[HalfMessage]) -> Any:
    return IDL.TransactionCheck(
        transactionId=transaction.id.hex(),
        check=transaction.checks,
        messages=[_wire_message(half) for half in halves],
        preparedMs=transaction.prepared_ms,
        throughOffset=transaction.offsets[-1],
    )


def _wire_message(half: HalfMessage) -> Any:
    """Convert a half message back to the wire Message of its sender, with the chosen queue."""
    content = decode(half.delivery)
    return IDL.Message(
        topic=half.mark.topic,
        key=content.key,
        tags=content.tag,
        body=content.value,
        properties=dict(content.properties) or None,
        partitionId=half.mark.queue,
        hashId=0,
    )
