"""Transactions as operators see them, and an operator's decision on one.

What is open stands in the log: half messages that are not finished. So any process can tell it. Who ends one
is the proxy that owns its shard; it is asked as a client asks it, with the group that prepared it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import gevent
from gevent.event import AsyncResult

from backend.port import Backend
from backend.progress.ack_map import OFFSET_END, AckMap
from backend.records import Bounds, ProgressView, QueueRef, ReadStatus
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import AdminRequest
from ddmq_client.idl.codes import FAILED_PREFIX, Code, TransactionAction, TransactionOutcome
from ddmq_common.clock import Clock
from ddmq_common.delivery import decode
from ddmq_common.errors import CallerError, DamagedError, DdmqError, TryLaterError
from ddmq_common.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from proxy_producer.transactions.check_back import IDL
from proxy_producer.transactions.codec import HalfMessage, parse_id, read_half, read_op, shard_of
from proxy_producer.transactions.owners import Owners

BATCH, BATCH_BYTES = 1_000, 4 << 20
SHOWN_MAX = 1_000
SCANNED_MAX = 200_000  # half messages of one question
PREVIEW_CHARS = 80
TRIES, PAUSE_S = 25, 0.2  # of a change, while shards move
ACTIONS = {"commit": TransactionAction.COMMIT, "rollback": TransactionAction.ROLLBACK}
WORDS = {kind: kind.name.lower().replace("_", " ") for kind in TransactionOutcome}


class OpenHalf(NamedTuple):
    """A half message whose transaction is not finished. `checks`: how often the producer was asked so far,
    for the first half message of a transaction."""

    shard: int
    half: HalfMessage
    stored_ms: int
    checks: int


def open_halves(backend: Backend, transaction: bytes | None = None) -> Iterator[OpenHalf]:
    """Yield the open half messages, shard by shard; with `transaction`, only those in its shard."""
    info = backend.topic(HALF_TOPIC)
    refs = [] if info is None else info.refs()
    if transaction is not None and refs:
        refs = [refs[shard_of(transaction, len(refs))]]
    if not refs:
        return
    views = backend.progress(TRANSACTION_GROUP, refs).wait(WAIT_S)
    bounds = backend.bounds(refs).wait(WAIT_S)
    for ref, view, limits in zip(refs, views, bounds, strict=True):
        if limits is not None:
            yield from _read_unfinished(backend, ref, view, limits)


def _read_unfinished(
    backend: Backend, queue: QueueRef, view: ProgressView, limits: Bounds
) -> Iterator[OpenHalf]:
    acks = AckMap(limits.min if view.committed is None else max(view.committed, limits.min))
    acks.finish(view.finished)
    at = acks.committed
    while at < limits.next:
        start, end = acks.unfinished_from(at, 1)[0]
        at = max(at, start)
        if at >= limits.next:
            return
        count = min(BATCH, (limits.next if end == OFFSET_END else end) - at)
        batch = backend.read(queue, at, count, BATCH_BYTES).wait(WAIT_S)
        if batch.status is not ReadStatus.DATA:
            return
        for index in range(len(batch.offsets)):
            with suppress(DamagedError):
                record = batch.record(index)
                if not acks.is_finished(record.offset):
                    checks = view.attempts.get(record.offset, 0)
                    yield OpenHalf(queue.queue_id, read_half(record), record.stored_ms, checks)
        at = batch.next_offset


class AdminTransactions:
    """Answers requests about the transactions of all proxies, and ends transactions."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._owners = Owners(backend, clock)

    # --- what there is

    def rows(self, request: AdminRequest) -> dict[str, Any]:
        """Return the open transactions, oldest first. `whole` is False if the scan stopped at SCANNED_MAX."""
        count = min(max(request.query.count, 1), SHOWN_MAX)
        rows, complete = self.collect_open(request.query.group, request.visible())
        rows.sort(key=lambda row: (row["began_ms"], row["transaction"]))
        return {"open": len(rows), "whole": complete, "transactions": rows[:count]}

    def collect_open(
        self, group: str | None, allows: Callable[[str], bool] | None = None
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return the open transactions of a group or of all, in no order, and whether these are all of them:
        the scan stops at SCANNED_MAX. `allows`: whether the caller may see a group; None: it may see all."""
        by_id: dict[str, dict[str, Any]] = {}
        scanned = 0
        for each in paced(open_halves(self._backend)):
            scanned += 1
            if scanned > SCANNED_MAX:
                break
            mark = each.half.mark.group
            if group in (None, mark) and (allows is None or allows(mark)):
                _add(by_id, each)
        return list(by_id.values()), scanned <= SCANNED_MAX

    def show(self, request: AdminRequest) -> dict[str, Any]:
        """Return one transaction: its messages while it is open, else its outcome."""
        transaction = _parse_transaction(request.path["id"])
        by_id: dict[str, dict[str, Any]] = {}
        messages = []
        for each in paced(open_halves(self._backend, transaction)):
            if each.half.mark.id == transaction.hex():
                _add(by_id, each)
                messages.append(_message_row(each.half))
        outcome = self._find_outcome(transaction)
        if outcome is not None:
            return outcome
        for row in by_id.values():
            more = {"owner": self._find_owner(row), "contents": messages[:SHOWN_MAX]}
            return row | {"state": WORDS[TransactionOutcome.OPEN]} | more
        return {"transaction": transaction.hex(), "state": "unknown"}

    def _find_owner(self, row: dict[str, Any]) -> str:
        """Return the address of the proxy that owns the transaction's shard; "" if there is none or it is
        unknown."""
        try:
            return self._owners.fetch_addresses().wait(WAIT_S).get(row["shard"], "")
        except (DdmqError, TimeoutError):
            return ""

    def _find_outcome(self, transaction: bytes) -> dict[str, Any] | None:
        """Return the recorded outcome; None if there is none, or the engine cannot search by id."""
        if not self._backend.capabilities.find_by_key or self._backend.topic(OP_TOPIC) is None:
            return None
        for record in self._backend.find(OP_TOPIC, message_id=transaction, count_max=1).wait(WAIT_S):
            op = read_op(bytes(record.delivery))
            return {
                "transaction": transaction.hex(),
                "state": WORDS[TransactionOutcome(op.outcome)],
                "group": op.group,
                "ended_ms": op.at_ms,
                "messages": op.messages,
                "reason": op.reason,
            }
        return None

    # --- an operator's word

    def end(self, request: AdminRequest) -> dict[str, Any]:
        """Commit a transaction or roll it back, in its group's name. Raises CallerError if it ended
        otherwise."""
        action = ACTIONS[request.body.action]
        transaction = _parse_transaction(request.path["id"])
        transaction_row = self.show(request)
        if transaction_row["state"] == "unknown":
            raise CallerError(f"transaction {transaction.hex()} is not open, and how it ended is not known")
        answer: Any = None
        for _ in range(TRIES):
            answer = self._request_end(transaction, transaction_row["group"], action)
            if answer is not None and answer.code not in (Code.BUSY, Code.SHUTTING_DOWN):
                break
            self._owners.forget()
            gevent.sleep(PAUSE_S)
        if answer is None:
            raise TryLaterError("no producer proxy owns its shard; start one, or try again")
        if answer.code:
            raise CallerError(_error_text(answer))
        outcome = TransactionOutcome(answer.outcome)
        return {"transaction": transaction.hex(), "state": WORDS[outcome], "group": transaction_row["group"]}

    def _request_end(self, transaction: bytes, group: str, action: TransactionAction) -> Any:
        """Request the action from the proxy that owns the transaction, and return its answer; None if it does
        not answer."""
        info = self._backend.topic(HALF_TOPIC)
        try:
            owners = self._owners.fetch_addresses().wait(WAIT_S)
        except (DdmqError, TimeoutError):
            return None
        address = "" if info is None else owners.get(shard_of(transaction, info.queues), "")
        if not address:
            return None
        request = IDL.EndTransactionRequest(
            transactionId=transaction.hex(),
            producerGroup=group,
            action=int(action),
            clientId="operator",
            forwardedBy="operator",
        )
        answered: AsyncResult[Any] = AsyncResult()
        self._owners.call(
            address, "endTransaction", request, lambda answer, error: answered.set(error or answer)
        )
        reply = answered.get()
        return None if isinstance(reply, Exception) else reply


def _parse_transaction(text: str) -> bytes:
    transaction = parse_id(text.encode("utf-8", "replace"))
    if transaction is None:
        raise CallerError(
            f"transaction {text[:80]!r}: 32 hexadecimal digits of a UUID of version 7 are wanted"
        )
    return transaction


def _add(rows: dict[str, dict[str, Any]], one: OpenHalf) -> None:
    mark = one.half.mark
    row = rows.setdefault(
        mark.id,
        {
            "transaction": mark.id, "group": mark.group, "shard": one.shard, "began_ms": one.stored_ms,
            "messages": 0, "bytes": 0, "checks": one.checks, "topics": [],
        },
    )  # fmt: skip
    row["messages"] += 1
    row["bytes"] += len(one.half.delivery)
    if mark.topic not in row["topics"]:
        row["topics"].append(mark.topic)


def _message_row(half: HalfMessage) -> dict[str, Any]:
    mark, content = half.mark, decode(half.delivery)
    return {
        "topic": mark.topic, "queue": mark.queue, "message_id": half.message_id.hex(),
        "key": content.key.decode("utf-8", "replace"), "tags": content.tag.decode("utf-8", "replace"),
        "level": mark.level, "delayed": mark.command is not None, "body_bytes": len(content.value),
        "preview": content.value[:PREVIEW_CHARS].decode("utf-8", "replace"),
    }  # fmt: skip


def _error_text(answer: Any) -> str:
    text = answer.msg.decode("utf-8", "replace") if isinstance(answer.msg, bytes) else str(answer.msg)
    return text.removeprefix(FAILED_PREFIX).strip()
