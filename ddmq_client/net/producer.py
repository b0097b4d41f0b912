# Generated from ddmq_client/aio/producer.py by tools/unasync.py: change that one.
"""The producer, both blocking and for tasks: sends messages, and changes delayed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.core.nodes import parse_addresses
from ddmq_client.core.settings import ProducerSettings
from ddmq_client.delays import CancelOutcome, DelayResult, When, duration_ms, outcome_of, when_of
from ddmq_client.errors import ClosedError, OptionError, SendError
from ddmq_client.idl.codes import PRODUCER_PORT, DelayAction
from ddmq_client.net.checks import Checks
from ddmq_client.net.router import ProxyRouter
from ddmq_client.net.sender import JobSender, Sends
from ddmq_client.net.sync import Home, now
from ddmq_client.net.transactions import Transaction, TransactionCalls
from ddmq_client.observer import ClientObserver, SendCall, check_observer, observe_send
from ddmq_client.outbox import Outbox, oneway_frame
from ddmq_client.outgoing import OutgoingMessage, SendResult, check_batch
from ddmq_client.security.login import ClientLogin, make_login
from ddmq_client.security.tls import TlsOptions, secure_addresses
from ddmq_client.transactions import Check, CheckCounts
from ddmq_client.wire.producing import encode_heartbeat

CLOSE_S = 1.0  # for the upkeep to end


class ProducerBase(Sends):
    """The methods of the producer, without its constructor."""

    def __init__(
        self,
        proxies: str | Sequence[str],
        settings: ProducerSettings,
        check: Check | None = None,
        observer: ClientObserver | None = None,
        tls: bool | TlsOptions | None = None,
        login: ClientLogin | None = None,
    ) -> None:
        check_observer(observer)
        self._settings = settings
        self._observer = observer
        self._single = SendCall(settings.client_id)
        self._outbox = Outbox(settings)
        parsed = parse_addresses(proxies, PRODUCER_PORT, login=login or make_login())
        parsed = secure_addresses(parsed, tls)
        self._router = ProxyRouter(parsed, settings.connections_max, encode_heartbeat(settings.client_id))
        self._sender = JobSender(self._router)
        self._home = Home("producer")
        self._calls = TransactionCalls(self._outbox, self._sender, self._home)
        self._checks = Checks(settings, self._router, self._calls)
        if check is not None:
            self._checks.register(check)
        self._closed = False

    @property
    def client_id(self) -> str:
        """This producer's name in the proxies' logs."""
        return self._settings.client_id

    @property
    def has_serializer(self) -> bool:
        """Whether a serializer converts the bodies of sends into bytes."""
        return self._settings.serializer is not None

    @property
    def last_error(self) -> SendError | None:
        """The error of the latest attempt, also while a resend is pending; None after a success."""
        return self._sender.last_error

    def proxies(self) -> list[tuple[str, bool]]:
        """The ("host:port", whether it is in rotation) of every known proxy."""
        return self._router.nodes()

    def cancel(
        self, delay: str | SendResult, *, topic: str | None = None, timeout_ms: int | None = None
    ) -> CancelOutcome:
        """Cancel a delayed message, given by its delay_id or the result of its send; return the outcome.

        `topic`: the message's, if the server checks rights and only the delay_id is given.
        Raises InvalidMessageError for a malformed delay id; NotStoredError if the cancel was not stored;
        UnknownOutcomeError if no proxy answered: then cancel again.
        """
        return self._change_delay(DelayAction.CANCEL, delay, topic, None, timeout_ms)

    def reschedule(
        self,
        delay_id: str | SendResult,
        *,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        topic: str | None = None,
        timeout_ms: int | None = None,
    ) -> CancelOutcome:
        """Change the due time of a delayed message; for a repeated one, of its next delivery."""
        when = when_of(delay, deliver_at)
        if when is None:
            raise OptionError("neither delay nor deliver_at is set; allowed: one of them")
        return self._change_delay(DelayAction.RESCHEDULE, delay_id, topic, when, timeout_ms)

    def fire_now(
        self, delay: str | SendResult, *, topic: str | None = None, timeout_ms: int | None = None
    ) -> CancelOutcome:
        """Deliver a delayed message now, before it is due; of a repeated one, the next delivery."""
        return self._change_delay(DelayAction.FIRE, delay, topic, None, timeout_ms)

    @explain_arguments("docs/client.md#many-messages")
    def send_batch(
        self, messages: Iterable[OutgoingMessage], *, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send many messages; return one result per message, in their order.

        Raises nothing for single messages: see `error` of each result. Messages are split into requests by
        bytes and count. Requests are sent one after the other, each with `timeout_ms`. Messages of one queue
        keep their order, except that resent ones come later.
        """
        self._check_open()
        check_batch(messages)
        if self._observer is None:
            return self._send_many(messages, timeout_ms)
        outgoing = list(messages)
        with observe_send(self._observer.sending(outgoing, SendCall(self.client_id, batch=True))) as send:
            results = self._send_many(send.messages, timeout_ms)
            send.ended(results)
            return results

    def _send_many(self, messages: Iterable[OutgoingMessage], timeout_ms: int | None) -> list[SendResult]:
        plan = self._outbox.plan_batch(messages)
        for request in plan.requests:
            job = self._outbox.job_of_request(plan, request, self._deadline_after(timeout_ms))
            plan.fill_results(request, self._sender.run(job))
        return plan.results

    def send_oneway(self, message: OutgoingMessage, *, timeout_ms: int | None = None) -> None:
        """Send without waiting for an answer, so that it stays unknown whether the message is stored.

        It is never resent. Raises NotStoredError if it could not be written to any proxy.
        """
        if self._observer is None:
            self._write(message, timeout_ms)
            return
        with observe_send(self._observer.sending((message,), self._single)) as send:
            self._write(send.messages[0], timeout_ms)
            send.ended(())

    def _write(self, message: OutgoingMessage, timeout_ms: int | None) -> None:
        encoded = self._encode(message)
        self._sender.oneway(
            lambda at, number: oneway_frame(encoded, number), self._deadline_after(timeout_ms)
        )

    def transaction(
        self,
        *,
        check: Check | None = None,
        reference: str | None = None,
        check_after: timedelta | None = None,
        timeout_ms: int | None = None,
    ) -> Transaction:
        """Begin a transaction: all messages sent in its block become visible at the block's end, or none.

            with producer.transaction(reference="order-17") as tx:
                tx.send("orders", b"paid", key="order-17")
                database.commit()

        check        the producer's check, if it was not given to the producer itself; see the class
        reference    the application's name for the transaction, 1 to 255 characters; the check receives it,
                     and consumers see it as property `transaction-reference`
        check_after  if the transaction has not ended: the time after its first message at which the check
                     is first called (60 s)
        timeout_ms   for each of its sends, and for its end; the producer's own when absent

        Raises OptionError if the producer has no producer_group. docs/transactions.md has the details.
        """
        if self._settings.producer_group is None:
            raise OptionError(
                "a transaction without producer_group; allowed: Producer(..., producer_group='bank')"
            )
        if check is not None:
            self._checks.register(check)
        self._check_open()
        after_ms = None if check_after is None else duration_ms("check_after", check_after, 1)
        return Transaction(
            self._calls, reference, after_ms, timeout_ms, lambda: self._checks.has_check, self._observer
        )

    def check_counts(self) -> CheckCounts:
        """Return a copy of the check's counters."""
        return self._checks.counts()

    def close(self) -> None:
        """Close every connection; sends in progress end with an error."""
        if self._home.is_forked:
            return
        self._closed = True
        self._checks.close(now() + CLOSE_S)
        self._router.close(now() + CLOSE_S)

    def __enter__(self) -> Self:
        if self._checks.has_check:
            self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: OutgoingMessage, when: When | None, timeout_ms: int | None) -> SendResult:
        self._check_open()
        deadline = self._deadline_after(timeout_ms)
        if when is None:
            job = self._outbox.job_of_message(message, deadline)
        else:
            job = self._outbox.job_of_delay(message, when, deadline)
        result = (self._sender.run(job))[0].raise_for_error()
        if isinstance(result, DelayResult):
            result.topic = message.topic
        return result

    def _change_delay(
        self, action: DelayAction, delay: str | SendResult, topic: str | None, when: When | None,
        timeout_ms: int | None,
    ) -> CancelOutcome:  # fmt: skip
        self._check_open()
        job = self._outbox.job_of_change(action, delay, topic, self._deadline_after(timeout_ms), when)
        return outcome_of((self._sender.run(job))[0].raise_for_error())

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer has been closed")
        self._home.check_process()
        self._checks.begin()

    def _encode(self, message: OutgoingMessage) -> bytes:
        self._check_open()
        return self._outbox.encode(message)

    def _deadline_after(self, timeout_ms: int | None) -> float:
        return now() + self._outbox.timeout_s(timeout_ms)
