"""The stand-in's transactions: half messages in memory, ends by id, checks that a test offers.

Two stand-ins that share `half`, `ended`, `offered` and `stored` are proxies of one cluster.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from ddmq_client.idl import producer as idl

COMMIT, ROLLBACK, NOT_KNOWN_YET = 8, 12, 0
COMMITTED, ROLLED_BACK, NEVER_THERE, OPEN = 1, 2, 3, 6


class StandinTransactions:
    """The three calls; the class that has it says how messages are stored."""

    stored: list[Any]
    recognises: bool

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.life = 0  # counts restarts
        self.half: dict[str, list[Any]] = {}  # id -> its messages, also of those that have ended
        self.outcomes: dict[str, int] = {}  # id -> outcome
        self.offered: deque[Any] = deque()  # checks for the next polls
        self.ends: list[Any] = []  # every EndTransactionRequest that was carried out, or found to have been

    def offer(self, transaction_id: str, check: int = 1) -> None:
        """A check, for whoever polls."""
        with self.changed:
            messages = self.half.get(transaction_id, [])
            self.offered.append(
                idl.TransactionCheck(transaction_id, check, messages, 1_700_000_000_123, len(messages))
            )
            self.changed.notify_all()

    def _sendPrepared(self, args: Any, fault: Any) -> Any:  # noqa: N802
        request = args.request
        if fault is not None and fault.code:
            text = f"FAILED: told to answer {fault.code}"
            return idl.PrepareResponse(code=fault.code, msg=text, results=[])
        with self.changed:
            messages = self.half.setdefault(request.transactionId, [])
            results = [self._prepare(messages, message) for message in request.messages]
            self.changed.notify_all()
            return idl.PrepareResponse(code=0, msg="OK", results=results, throughOffset=len(messages) + 100)

    def _prepare(self, messages: list[Any], message: Any) -> Any:
        numbers = [(one.producerId, one.sequence) for one in messages if one.sequence is not None]
        is_duplicate = (message.producerId, message.sequence) in numbers
        is_duplicate = is_duplicate or message.idempotencyKey in [
            one.idempotencyKey or "" for one in messages
        ]
        if not is_duplicate:
            messages.append(message)
        result = idl.Result(code=0, msg="OK", messageId=f"{len(messages):032x}")
        if self.recognises and message.sequence is not None:
            result.duplicate = int(is_duplicate)
        return result

    def _endTransaction(self, args: Any, fault: Any) -> Any:  # noqa: N802
        request = args.request
        if fault is not None and fault.code:
            text = f"FAILED: told to answer {fault.code}"
            return idl.EndTransactionResponse(code=fault.code, msg=text)
        with self.changed:
            self.ends.append(request)
            answer = self._end(request)
            self.changed.notify_all()
            return answer

    def _end(self, request: Any) -> Any:
        name, decision = request.transactionId, {COMMIT: COMMITTED, ROLLBACK: ROLLED_BACK}.get(request.action)
        if name not in self.half:
            return idl.EndTransactionResponse(code=11, msg="FAILED: never there", outcome=NEVER_THERE)
        if name in self.outcomes:
            outcome = self.outcomes[name]
            code = 0 if outcome == decision else 11
            return idl.EndTransactionResponse(code=code, msg="FAILED" if code else "OK", outcome=outcome)
        if decision is None:
            return idl.EndTransactionResponse(code=0, msg="OK", outcome=OPEN)
        self.outcomes[name] = decision
        results = None
        if decision == COMMITTED:
            results = [
                idl.Result(code=0, msg="OK", queueId=0, offset=len(self.stored) + at)
                for at in range(len(self.half[name]))
            ]
            self.stored += self.half[name]
        return idl.EndTransactionResponse(code=0, msg="OK", outcome=decision, results=results)

    def _pollTransactionChecks(self, args: Any, fault: Any) -> Any:  # noqa: N802
        request = args.request
        if fault is not None and fault.code:
            return idl.PollChecksResponse(
                code=fault.code, msg=f"FAILED: told to answer {fault.code}", checks=[]
            )
        until = time.monotonic() + request.timeout / 1000
        with self.changed:
            life = self.life
            while not self.offered and life == self.life:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(left)
            if life != self.life:
                raise ConnectionResetError
            checks = [self.offered.popleft() for _ in range(min(len(self.offered), request.countMax))]
        return idl.PollChecksResponse(code=0, msg="OK", checks=checks)
