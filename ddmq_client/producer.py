"""Producer: sends messages to a topic through any of several producer proxies.

    with Producer("mq-1:9613,mq-2:9613") as producer:
        result = producer.send("orders", b"hello", key="order-17")
        print(result.message_id, result.queue_id, result.offset)

Safe for many threads; correct under gevent's monkey patching (threads are greenlets then).
`ddmq_client.aio` holds the asyncio twin. What was used before a fork raises ClientError after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from types import TracebackType

from ddmq_client.core.nodes import parse_addresses
from ddmq_client.core.pipeline import QueuedSend, goes_alone
from ddmq_client.core.selectors import Selector
from ddmq_client.core.settings import ProducerSettings
from ddmq_client.delays import CancelOutcome, When, outcome_of, when_of
from ddmq_client.errors import ClosedError, OptionError
from ddmq_client.idl.codes import PRODUCER_PORT, DelayAction
from ddmq_client.net.background import Background
from ddmq_client.net.router import ProxyRouter
from ddmq_client.net.sender import JobSender
from ddmq_client.outbox import Outbox, hurry_at, oneway_frame
from ddmq_client.outgoing import OutgoingMessage, SendResult, ShardKey, with_level
from ddmq_client.process import Home, new_client_id
from ddmq_client.wire.producing import heartbeat


class Producer:
    """Sends messages. Close it, or use it as a context manager.

    proxies          "host:port", several with commas, or a list; the port may be left out (9613). A name with
                     several addresses counts as that many proxies and is resolved again every 30 s
    timeout_ms       for one call, end to end: connecting, resending and waiting included
    retry_unknown    also resend what may be stored already: fewer errors, but duplicates
    attempts_max     per message, within the timeout (which ends sooner, by default)
    selector         which queue: "hash" (by shard_key; any queue without), "key" (by shard_key, else by key),
                     "random", or a callable that gets the OutgoingMessage and returns a number (taken modulo
                     the queue count) or None for any queue
    connections_max  open connections; a call past it waits, then raises BusyError
    in_flight_max    sends of `send_async` under way; a call past it waits, then raises BusyError
    async_workers    threads behind `send_async`, each with one request at a time. With 1, messages of one
                     shard key keep the order of their calls
    batch_bytes      encoded bytes per request of send_batch and send_async, at most 4 MiB
    batch_messages   messages per request of the same
    producer_group   name shared by producers that stand for each other; optional
    client_id        in the proxies' logs; made from host and process when absent
    """

    def __init__(
        self,
        proxies: str | Sequence[str],
        *,
        timeout_ms: int = 3_000,
        retry_unknown: bool = False,
        attempts_max: int = 1_000,
        selector: Selector = "hash",
        connections_max: int = 64,
        in_flight_max: int = 1_024,
        async_workers: int = 4,
        batch_bytes: int = 4 * 1024 * 1024,
        batch_messages: int = 500,
        producer_group: str | None = None,
        client_id: str | None = None,
    ) -> None:
        """Checks its arguments (OptionError); connects with the first send."""
        self._settings = ProducerSettings(
            timeout_ms=timeout_ms,
            retry_unknown=retry_unknown,
            attempts_max=attempts_max,
            connections_max=connections_max,
            in_flight_max=in_flight_max,
            async_workers=async_workers,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            selector=selector,
            producer_group=producer_group,
            client_id=client_id or new_client_id(),
        )
        self._outbox = Outbox(self._settings)
        parsed = parse_addresses(proxies, PRODUCER_PORT)
        self._router = ProxyRouter(parsed, connections_max, heartbeat(self._settings.client_id))
        self._sender = JobSender(self._router)
        self._background = Background(self._settings, self._sender)
        self._home = Home("producer")
        self._closed = False

    @property
    def client_id(self) -> str:
        """The name this producer gives itself."""
        return self._settings.client_id

    def proxies(self) -> list[tuple[str, bool]]:
        """("host:port", in rotation) of every proxy known so far."""
        return self._router.nodes()

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        key: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        shard_key: ShardKey | None = None,
        queue: int | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        level: int | None = None,
        cron: str | None = None,
        zone: str | None = None,
        every: timedelta | None = None,
        times: int | None = None,
        catch_up: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored. Arguments: see OutgoingMessage; timeout_ms: see
        the class.

        delay, deliver_at  deliver it so much later, or at that moment (a datetime with a time zone)
        level              deliver it after that delay level (1 to 18), without an id to cancel it by
        cron, zone         deliver it at each time of a five-field cron, in that time zone (UTC)
        every, times       deliver it again and again, `times` in all (for ever when absent); beside a cron:
                           so often at each of its times
        catch_up           deliveries missed while nothing ran: "fire_once" (default), "all" or "skip"

        The result of a delayed message (but for `level`) is a DelayResult with `delay_id` and `due_at`.

        Raises InvalidMessageError, NoSuchTopicError, NotStoredError (ThrottledError, BusyError): certainly
        not stored; UnknownOutcomeError: it may be; ClosedError.
        """
        when = when_of(delay, deliver_at, cron, zone, every, times, catch_up, level)
        message = OutgoingMessage(topic, body, key, tags, with_level(properties, level), shard_key, queue)
        if when is None:
            return self.send_message(message, timeout_ms=timeout_ms)
        self._check_open()
        job = self._outbox.delayed(message, when, self._deadline(timeout_ms))
        return (self._sender.run(job))[0].raise_for_error()

    def cancel(self, delay: str | SendResult, *, timeout_ms: int | None = None) -> CancelOutcome:
        """Take a delayed message back, by its delay_id or the result of its send, and say what came of it.

        Raises InvalidMessageError for what is no delay id; NotStoredError when the cancel did not get
        through; UnknownOutcomeError when nobody answered: then cancel again.
        """
        return self._change(DelayAction.CANCEL, delay, None, timeout_ms)

    def reschedule(
        self,
        delay_id: str | SendResult,
        *,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        timeout_ms: int | None = None,
    ) -> CancelOutcome:
        """Give a delayed message another due time (of a repeated one: of its next delivery)."""
        when = when_of(delay, deliver_at)
        if when is None:
            raise OptionError("neither delay nor deliver_at is set; allowed: one of them")
        return self._change(DelayAction.RESCHEDULE, delay_id, when, timeout_ms)

    def fire_now(self, delay: str | SendResult, *, timeout_ms: int | None = None) -> CancelOutcome:
        """Deliver a delayed message now, not when it is due (of a repeated one: its next delivery)."""
        return self._change(DelayAction.FIRE, delay, None, timeout_ms)

    def send_message(self, message: OutgoingMessage, *, timeout_ms: int | None = None) -> SendResult:
        """`send`, for a message at hand."""
        job = self._outbox.job([self._encode(message)], self._deadline(timeout_ms))
        return self._sender.run(job)[0].raise_for_error()

    def send_batch(
        self, messages: Iterable[OutgoingMessage], *, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send many; one result per message, in their order. Raises nothing for single messages: see `error`.

        The messages are cut into requests by bytes and count. Requests go one after the other, each with
        `timeout_ms`. Messages of one queue keep their order, except that what is resent comes later.
        """
        self._check_open()
        plan = self._outbox.plan(messages)
        for request in plan.requests:
            job = self._outbox.job([data for _, data in request], self._deadline(timeout_ms))
            plan.fill(request, self._sender.run(job))
        return plan.results

    def send_async(
        self,
        message: OutgoingMessage,
        *,
        on_done: Callable[[SendResult], None] | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """Send in the background: a future with the SendResult, or the error that `send` would raise.

        `on_done` is called with the SendResult either way (see `error`), on a worker's thread: it must not
        block. Sends that wait together travel in one request. A future cancelled early is not sent.
        """
        timeout_s = self._outbox.timeout_s(timeout_ms)
        encoded = self._encode(message)
        now = time.monotonic()
        future: Future[SendResult] = Future()
        hurry = hurry_at(now, timeout_s)
        waiting = QueuedSend(encoded, now + timeout_s, hurry, goes_alone(message), future, on_done)
        self._background.put(waiting)
        return future

    def send_oneway(self, message: OutgoingMessage, *, timeout_ms: int | None = None) -> None:
        """Send without waiting for an answer: whether it was stored stays unknown.

        NotStoredError where it could not even be written to a proxy.
        """
        encoded = self._encode(message)

        def frame(now: float, sequence_id: int) -> bytes:
            return oneway_frame(encoded, sequence_id)

        self._sender.oneway(frame, self._deadline(timeout_ms))

    def flush(self, timeout_ms: int | None = None) -> bool:
        """Wait until no `send_async` is under way; False when the time was up first."""
        self._home.enter()
        return self._background.flush(self._deadline(timeout_ms))

    def close(self, timeout_ms: int | None = None) -> None:
        """Send what waits, at most for `timeout_ms`, then close. What is left gets NotStoredError."""
        if self._closed or self._home.left:
            return
        self._closed = True
        deadline = self._deadline(timeout_ms)
        self._background.close(deadline)
        self._router.close(deadline + 1.0)
        self._background.join(deadline + 1.0)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _change(
        self, action: DelayAction, delay: str | SendResult, when: When | None, timeout_ms: int | None
    ) -> CancelOutcome:
        self._check_open()
        job = self._outbox.change(action, delay, self._deadline(timeout_ms), when)
        return outcome_of((self._sender.run(job))[0].raise_for_error())

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer has been closed")
        self._home.enter()

    def _encode(self, message: OutgoingMessage) -> bytes:
        self._check_open()
        return self._outbox.encode(message)

    def _deadline(self, timeout_ms: int | None) -> float:
        return time.monotonic() + self._outbox.timeout_s(timeout_ms)
