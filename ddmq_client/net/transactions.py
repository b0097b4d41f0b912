# Generated from ddmq_client/aio/transactions.py by tools/unasync.py: change that one.
"""Transaction: messages that become visible when the application's own work is done, all or none.

    with producer.transaction(check=was_committed, reference="order-17") as tx:
        tx.send("orders", b"paid", key="order-17")
        database.commit()

A send returns when its message is durable; no consumer receives it before the commit. Leaving the block
commits, an exception rolls back. If the outcome is uncertain, the check decides it later
(docs/transactions.md).
The blocking one is safe for many threads, that of `ddmq_client.aio` for the tasks of one event loop.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.core.transactions import (
    RANDOM_BYTES,
    ROLLBACK,
    TransactionState,
    end_error,
    new_id,
)
from ddmq_client.delays import When
from ddmq_client.errors import (
    ClientError,
    InvalidMessageError,
    NotStoredError,
    OptionError,
    UnknownEndError,
)
from ddmq_client.idl.codes import TransactionAction
from ddmq_client.net.sender import JobSender, Sends
from ddmq_client.net.sync import Home, Lock, now
from ddmq_client.observer import ClientObserver, SendCall, observe_send
from ddmq_client.outbox import Outbox
from ddmq_client.outgoing import OutgoingMessage, SendResult, check_batch
from ddmq_client.transactions import check_reference, with_reference
from ddmq_client.wire.transactions import read_end_result, read_prepared

_log = logging.getLogger("ddmq_client.producer")


class TransactionCalls:
    """Makes the calls to the proxies for all transactions of one producer."""

    def __init__(self, outbox: Outbox, sender: JobSender, home: Home) -> None:
        self.outbox = outbox
        self._home = home
        self._sender = sender

    def prepare(
        self,
        transaction_id: str,
        messages: Sequence[OutgoingMessage],
        when: When | None,
        deadline: float,
        check_after_ms: int | None,
    ) -> list[SendResult]:
        """Store messages, durable but invisible, as part of the transaction: all or none."""
        self._home.check_process()
        job = self.outbox.job_of_prepare(transaction_id, messages, deadline, check_after_ms, when)
        return self._sender.run(job, read_prepared)

    def end(
        self,
        transaction_id: str,
        action: TransactionAction,
        through_offset: int | None,
        deadline: float,
        check: int | None = None,
        messages: int | None = None,
    ) -> Sequence[SendResult]:
        """End the transaction at the proxies, with retries; return where its messages are stored.

        The result is empty unless this call committed. Raises TransactionError if the transaction ended
        otherwise, or no proxy has confirmed the end.
        """
        self._home.check_process()
        job = self.outbox.end(transaction_id, action, through_offset, deadline, check, messages)
        (result,) = self._sender.run(job, read_end_result)
        error = end_error(action, transaction_id, result)
        if error is not None:
            raise error
        return getattr(result, "locations", ())


class Transaction(Sends):
    """One transaction, created by the producer's `transaction`; a context manager.

    id         32 hexadecimal digits, known from the start; a check receives it
    reference  the application's name for the transaction
    results    after the commit, one result per message in the order of the sends, with its location; empty
               if the answer to the commit was lost and the commit repeated
    """

    def __init__(
        self,
        calls: TransactionCalls,
        reference: str | None,
        check_after_ms: int | None,
        timeout_ms: int | None,
        checked: Callable[[], bool],
        observer: ClientObserver | None = None,
    ) -> None:
        """Create the transaction.

        `checked` returns whether this producer has a check that can decide it later.
        """
        check_reference(reference)
        calls.outbox.timeout_s(timeout_ms)
        self.reference = reference
        self.results: Sequence[SendResult] = ()
        self._calls = calls
        self._check_after_ms = check_after_ms
        self._timeout_ms = timeout_ms
        self._checked = checked
        self._lock = Lock()
        self._state = TransactionState(new_id(time.time_ns() // 1_000_000, secrets.token_bytes(RANDOM_BYTES)))
        self._observer = observer
        self._single = SendCall(calls.outbox.settings.client_id, transaction=self.id)

    @property
    def id(self) -> str:
        """The id of the transaction, 32 hexadecimal digits."""
        return self._state.id

    @explain_arguments("docs/client.md#many-messages")
    def send_batch(
        self, messages: Iterable[OutgoingMessage], *, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send many messages in one request: all become durable, or none does and an error says why.

        A request has 5,000,000 bytes at most; a transaction has bounds of its own.
        """
        check_batch(messages)
        outgoing = list(messages)
        if not outgoing:
            return []
        if self._observer is None:
            return self._send_all(outgoing, None, timeout_ms)
        call = replace(self._single, batch=True)
        with observe_send(self._observer.sending(outgoing, call)) as send:
            results = self._send_all(send.messages, None, timeout_ms)
            send.ended(results)
            return results

    def commit(self) -> None:
        """Make all messages visible; raise the reason if they are not. Leaving the block does this.

        Raises NotCommittedError if no message is visible, or UnknownEndError if that is unknown: the check
        will then settle it.
        """
        with self._lock:
            action = self._state.commit()
        if self._state.must_roll_back:
            self._roll_back(action)
            raise self._state.rolled_back()
        if action is not None:
            self.results = self._end(action)

    def rollback(self) -> None:
        """Discard all messages. An exception that leaves the block does this."""
        with self._lock:
            action = self._state.roll_back()
        self._roll_back(action)

    def undecided(self) -> None:
        """Leave the outcome to the check: the application does not know it, for instance because the commit
        of its database brought no answer.

        The check is called a minute after the first message.
        """
        with self._lock:
            self._state.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state.is_closed:
            return
        if error is None:
            self.commit()
        elif (self._is_uncertain_commit(error) or not isinstance(error, Exception)) and self._checked():
            self.undecided()  # interrupted, cancelled: perhaps after the local commit
        else:
            try:
                self.rollback()
            except ClientError as failure:
                _log.warning("%s (its block raised %r)", failure, error)

    def _is_uncertain_commit(self, error: BaseException) -> bool:
        """Return whether the error means that the local commit may have happened; DecisionTable raises it."""
        return isinstance(error, UnknownEndError) and error.transaction_id == self.id

    def _argument_error(self, error: OptionError) -> OptionError:
        with self._lock:
            self._state.fail(f"a send of it was wrong: {error}")
        return error

    def _send(self, message: OutgoingMessage, when: When | None, timeout_ms: int | None) -> SendResult:
        return (self._send_all([message], when, timeout_ms))[0]

    def _send_all(
        self, messages: Sequence[OutgoingMessage], when: When | None, timeout_ms: int | None
    ) -> list[SendResult]:
        with self._lock:
            self._state.begin_send()
        try:
            messages = [with_reference(message, self.reference) for message in messages]
            deadline = self._deadline_after(timeout_ms)
            results = self._calls.prepare(self.id, messages, when, deadline, self._check_after_ms)
            for result in results:
                result.raise_for_error()
        except BaseException as error:
            with self._lock:
                self._state.send_failed(error, uncertain=may_be_stored(error))
            raise
        with self._lock:
            self._state.record_sent(results)
        return results

    def _roll_back(self, action: TransactionAction | None) -> None:
        if action is not None:
            self._end(ROLLBACK)

    def _end(self, action: TransactionAction) -> Sequence[SendResult]:
        state, deadline = self._state, self._deadline_after(None)
        messages = None if action is ROLLBACK else state.message_count
        return self._calls.end(self.id, action, state.through_offset, deadline, messages=messages)

    def _deadline_after(self, timeout_ms: int | None) -> float:
        return now() + self._calls.outbox.timeout_s(self._timeout_ms if timeout_ms is None else timeout_ms)


def may_be_stored(error: BaseException) -> bool:
    """Return whether a send that raised this error may have made its message durable."""
    return not isinstance(error, InvalidMessageError | NotStoredError)
