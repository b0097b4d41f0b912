"""AsyncProducer: the asyncio twin of `ddmq_client.Producer`.

    async with AsyncProducer("mq-1:9613,mq-2:9613") as producer:
        result = await producer.send("orders", b"hello", key="order-17")

One event loop, any number of tasks. A cancelled send closes its connection; whether its message was stored is
then unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType

from ddmq_client.aio.router import AsyncProxyRouter
from ddmq_client.aio.sender import AsyncJobSender
from ddmq_client.aio.sync import now
from ddmq_client.core.nodes import parse_addresses
from ddmq_client.core.selectors import Selector
from ddmq_client.core.settings import ProducerSettings
from ddmq_client.delays import CancelOutcome, When, outcome_of, when_of
from ddmq_client.errors import ClosedError, OptionError
from ddmq_client.idl.codes import PRODUCER_PORT, DelayAction
from ddmq_client.outbox import Outbox, oneway_frame
from ddmq_client.outgoing import OutgoingMessage, SendResult, ShardKey, with_level
from ddmq_client.process import new_client_id
from ddmq_client.wire.producing import heartbeat

CLOSE_S = 1.0  # for the upkeep to end


class AsyncProducer:
    """Sends messages. Close it, or use it as an async context manager.

    The arguments are those of `ddmq_client.Producer`.
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
        batch_bytes: int = 4 * 1024 * 1024,
        batch_messages: int = 500,
        producer_group: str | None = None,
        client_id: str | None = None,
    ) -> None:
        """Checks its arguments (OptionError); connects with the first send."""
        settings = ProducerSettings(
            timeout_ms=timeout_ms,
            retry_unknown=retry_unknown,
            attempts_max=attempts_max,
            connections_max=connections_max,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            selector=selector,
            producer_group=producer_group,
            client_id=client_id or new_client_id(),
        )
        self.client_id = settings.client_id
        self._outbox = Outbox(settings)
        parsed = parse_addresses(proxies, PRODUCER_PORT)
        self._router = AsyncProxyRouter(parsed, connections_max, heartbeat(settings.client_id))
        self._sender = AsyncJobSender(self._router)
        self._closed = False

    def proxies(self) -> list[tuple[str, bool]]:
        """("host:port", in rotation) of every proxy known so far."""
        return self._router.nodes()

    async def send(
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
        """Send one message and wait until it is stored; arguments and errors as `Producer.send`."""
        when = when_of(delay, deliver_at, cron, zone, every, times, catch_up, level)
        message = OutgoingMessage(topic, body, key, tags, with_level(properties, level), shard_key, queue)
        if when is None:
            return await self.send_message(message, timeout_ms=timeout_ms)
        self._check_open()
        job = self._outbox.delayed(message, when, self._deadline(timeout_ms))
        return (await self._sender.run(job))[0].raise_for_error()

    async def cancel(self, delay: str | SendResult, *, timeout_ms: int | None = None) -> CancelOutcome:
        """Take a delayed message back, by its delay_id or the result of its send, and say what came of it.

        Raises InvalidMessageError for what is no delay id; NotStoredError when the cancel did not get
        through; UnknownOutcomeError when nobody answered: then cancel again.
        """
        return await self._change(DelayAction.CANCEL, delay, None, timeout_ms)

    async def reschedule(
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
        return await self._change(DelayAction.RESCHEDULE, delay_id, when, timeout_ms)

    async def fire_now(self, delay: str | SendResult, *, timeout_ms: int | None = None) -> CancelOutcome:
        """Deliver a delayed message now, not when it is due (of a repeated one: its next delivery)."""
        return await self._change(DelayAction.FIRE, delay, None, timeout_ms)

    async def send_message(self, message: OutgoingMessage, *, timeout_ms: int | None = None) -> SendResult:
        """`send`, for a message at hand."""
        job = self._outbox.job([self._encode(message)], self._deadline(timeout_ms))
        return (await self._sender.run(job))[0].raise_for_error()

    async def send_batch(
        self, messages: Iterable[OutgoingMessage], *, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send many; one result per message, in their order. As `Producer.send_batch`."""
        self._check_open()
        plan = self._outbox.plan(messages)
        for request in plan.requests:
            job = self._outbox.job([data for _, data in request], self._deadline(timeout_ms))
            plan.fill(request, await self._sender.run(job))
        return plan.results

    async def send_oneway(self, message: OutgoingMessage, *, timeout_ms: int | None = None) -> None:
        """Send without waiting for an answer; NotStoredError where it could not be written."""
        encoded = self._encode(message)
        await self._sender.oneway(
            lambda at, number: oneway_frame(encoded, number), self._deadline(timeout_ms)
        )

    async def close(self) -> None:
        """Close every connection; sends under way end with an error."""
        self._closed = True
        await self._router.close(now() + CLOSE_S)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _change(
        self, action: DelayAction, delay: str | SendResult, when: When | None, timeout_ms: int | None
    ) -> CancelOutcome:
        self._check_open()
        job = self._outbox.change(action, delay, self._deadline(timeout_ms), when)
        return outcome_of((await self._sender.run(job))[0].raise_for_error())

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer has been closed")

    def _encode(self, message: OutgoingMessage) -> bytes:
        self._check_open()
        return self._outbox.encode(message)

    def _deadline(self, timeout_ms: int | None) -> float:
        return now() + self._outbox.timeout_s(timeout_ms)
