"""Check-back: transactions that nobody ended, offered to the polling members of their producer groups.

A poll is held until there is a check, or its time is up. A check is handed out when its attempt is durable,
so nobody is asked more often than `checks_max` times, whatever is killed. Checks of shards that other proxies
own are asked for there, once a second while somebody waits here (owners.py).
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
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.transactions.codec import HalfMessage
from proxy_producer.transactions.core.transaction import OpenTransaction
from proxy_producer.transactions.deciding import DAMAGED, Deciding
from proxy_producer.transactions.held import HeldShard
from proxy_producer.transactions.reading import fetch

POLLS_MAX = 10_000  # held at a time
POLL_BYTES_MAX = 4_096  # of one's frame, which counts as in flight as long as the poll is held
COUNT_MAX = 100  # checks of one answer
ANSWER_BYTES_MAX = 4 << 20
IDL = structs(producer)


class HeldPoll:
    """A call of pollTransactionChecks that waits. `forwarded`: for another proxy, which waits no longer.

    `deadline`: monotonic seconds."""

    __slots__ = ("_table", "asking", "call", "count", "deadline", "done", "forwarded", "group")

    def __init__(
        self, table: HeldPolls, call: Call, group: str, count: int, deadline: float, forwarded: bool
    ) -> None:
        self._table = table
        self.call = call
        self.group = group
        self.count = count
        self.deadline = deadline
        self.forwarded = forwarded
        self.asking = False  # checks for it are being made durable
        self.done = False
        call.on_abandoned = self._on_abandoned

    def answer(self, checks: Sequence[Any], fault: SendRefusal | None = None) -> None:
        """Once; later ones are lost, and those who are asked about come again."""
        if self.done:
            return
        self.done = True
        self._table.forget(self)
        code, text = (0, OK_TEXT) if fault is None else (int(fault.code), fault.text)
        self.call.reply(IDL.PollChecksResponse(code=code, msg=text, checks=list(checks)))

    def _on_abandoned(self, _: Call) -> None:
        self.done = True
        self._table.forget(self)


class HeldPolls:
    """All that wait here, by group, in the order in which they came."""

    def __init__(self) -> None:
        self._by_group: dict[str, deque[HeldPoll]] = {}
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count >= POLLS_MAX

    def groups(self) -> list[str]:
        """Return the groups whose members wait."""
        return list(self._by_group)

    def hold(self, poll: HeldPoll) -> None:
        self._by_group.setdefault(poll.group, deque()).append(poll)
        self.count += 1

    def forget(self, poll: HeldPoll) -> None:
        """Remove a poll that no longer waits, if it ever did."""
        waiting = self._by_group.get(poll.group)
        if waiting is not None and poll in waiting:
            waiting.remove(poll)
            self.count -= 1
            if not waiting:
                del self._by_group[poll.group]

    def first(self, group: str) -> HeldPoll | None:
        """Return the poll that has waited longest among those without a request under way."""
        return next((poll for poll in self._by_group.get(group, ()) if not poll.asking), None)

    def expire(self, now: float) -> None:
        """Answer those whose time is up: there is nothing to ask."""
        late = [poll for waiting in self._by_group.values() for poll in waiting if poll.deadline <= now]
        for poll in late:
            if not poll.asking:
                poll.answer(())

    def end_wait(self, call: Call) -> None:
        """Answer the poll of this call, as if its time were up; nothing happens where it does not wait."""
        for poll in [poll for waiting in self._by_group.values() for poll in waiting if poll.call is call]:
            if not poll.asking:
                poll.answer(())

    def end(self, fault: SendRefusal) -> None:
        """Answer all polls with this fault."""
        for poll in [poll for waiting in self._by_group.values() for poll in waiting]:
            poll.answer((), fault)


Checks = Callable[[list[Any]], None]


def ask(held: HeldShard, deciding: Deciding, group: str, count: int, then: Checks) -> bool:
    """Hand out what this shard has to ask the group: `then(checks)` follows, perhaps with none. False: there
    is nothing."""
    chosen = held.core.ask(group, count, ANSWER_BYTES_MAX)
    if not chosen:
        return False
    Asking(held, deciding, chosen, then)
    return True


class Asking:
    """A few transactions of one group, on their way to be asked about: read, counted, handed out."""

    def __init__(
        self, held: HeldShard, deciding: Deciding, chosen: list[OpenTransaction], then: Checks
    ) -> None:
        self._held = held
        self._deciding = deciding
        self._then = then
        self._found: list[tuple[OpenTransaction, list[HalfMessage]]] = []
        self._left = len(chosen)
        for one in chosen:
            self._fetch(one)

    def _fetch(self, one: OpenTransaction) -> None:
        shard = self._held

        def on_fetched(halves: list[HalfMessage], missing: int, error: Exception | None) -> None:
            self._left -= 1
            if error is not None or not shard.running:
                shard.core.not_asked(one, shard.context.now_ms())
            elif missing:
                shard.core.not_asked(one, shard.context.now_ms())
                if one.deciding is None and shard.core.open.get(one.id) is one:
                    self._deciding.end(one, TransactionOutcome.DEAD_LETTER, None, DAMAGED)
            else:
                self._found.append((one, halves))
            if not self._left:
                self._commit_attempts()

        fetch(shard.context.backend, shard.queue, shard.kept, list(one.offsets), on_fetched)

    def _commit_attempts(self) -> None:
        """The attempts are made durable."""
        if not self._found:
            self._then([])
            return
        attempts = [(one.offsets[0], one.checks + 1) for one, _ in self._found]
        self._held.commit((), (), self._on_attempts_committed, attempts)

    def _on_attempts_committed(self, _: Sequence[AppendResult], error: Exception | None) -> None:
        shard = self._held
        now_ms, checks = shard.context.now_ms(), []
        for one, halves in self._found:
            if error is not None:
                shard.core.not_asked(one, now_ms)
            elif shard.core.asked(one, now_ms):
                checks.append(_check(one, halves))
        shard.context.counts.checks.value += len(checks)
        self._then(checks)


def _check(one: OpenTransaction, halves: list[HalfMessage]) -> Any:
    return IDL.TransactionCheck(
        transactionId=one.id.hex(),
        check=one.checks,
        messages=[_wire_message(half) for half in halves],
        preparedMs=one.prepared_ms,
        throughOffset=one.offsets[-1],
    )


def _wire_message(half: HalfMessage) -> Any:
    """Return a half message as its sender gave it, with the queue that was chosen for it."""
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
