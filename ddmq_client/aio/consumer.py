"""AsyncConsumer: the asyncio twin of `ddmq_client.Consumer`.

    async def handle(message):
        print(message.topic, message.text())

    async with AsyncConsumer("mq-1:9713,mq-2:9713", "billing", ["orders"], handler=handle):
        await shutdown.wait()

One event loop, `concurrency` handlers at a time. Cancelling `stop` ends at once, and cancelling the block
as soon as the handlers that run have ended; what no handler has seen goes back for others. Messages may be
settled from other threads.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ddmq_client.aio.broadcast import AsyncBroadcastPool
from ddmq_client.aio.coordinator import AsyncCoordinator
from ddmq_client.aio.worker_pool import AsyncWorkerPool
from ddmq_client.core.nodes import parse_addresses
from ddmq_client.core.prefetch_buffer import ConsumerCounts
from ddmq_client.core.settings import TIMEOUT_MS_MAX, ConsumerSettings, check, check_functions, topic_names
from ddmq_client.errors import ClientError, ClosedError
from ddmq_client.idl.codes import CONSUMER_PORT
from ddmq_client.offsets_file import broadcast_place
from ddmq_client.process import RUN_LOOK_S, Signals, new_client_id
from ddmq_client.received import Message
from ddmq_client.teller import OnError, OnLate, Teller
from ddmq_client.wire.consuming import pull_settings

_log = logging.getLogger("ddmq_client.consumer")
AsyncHandler = Callable[[Message], object]
AsyncBatchHandler = Callable[[list[Message]], object]


class AsyncConsumer:
    """Receives messages. `start` and `stop` it, or use it as an async context manager.

    concurrency    handlers that run at the same time; the other arguments as of `ddmq_client.Consumer`.
    handler and batch_handler are coroutine functions (plain ones must not block).
    """

    def __init__(
        self,
        proxies: str | Sequence[str],
        group: str,
        topics: str | Sequence[str] = (),
        *,
        handler: AsyncHandler | None = None,
        batch_handler: AsyncBatchHandler | None = None,
        concurrency: int = 16,
        max_batch: int = 32,
        linger_ms: int = 500,
        prefetch: int | None = None,
        lease_ms: int = 30_000,
        ack_flush_ms: int = 50,
        auto_ack: bool = True,
        timeout_ms: int = 5_000,
        tags: str | None = None,
        sql: str | None = None,
        extend_for_ms: int = 600_000,
        model: str = "clustering",
        instance: str | None = None,
        offsets_file: str | Path | None = None,
        client_id: str | None = None,
        on_late: OnLate | None = None,
        on_error: OnError | None = None,
    ) -> None:
        """Checks its arguments (OptionError); connects when started."""
        check_functions(handler=handler, batch_handler=batch_handler, on_late=on_late, on_error=on_error)
        self._teller = Teller(on_late, on_error)
        self._settings = ConsumerSettings(
            group=group,
            topics=topic_names(topics),
            workers=concurrency,
            max_batch=max_batch,
            linger_ms=linger_ms,
            prefetch=max_batch if prefetch is None else prefetch,
            lease_ms=lease_ms,
            ack_flush_ms=ack_flush_ms,
            auto_ack=auto_ack,
            timeout_ms=timeout_ms,
            tags=tags,
            sql=sql,
            extend_for_ms=extend_for_ms,
            model=model,
            client_id=client_id or new_client_id(),
        )
        self._proxies = parse_addresses(proxies, CONSUMER_PORT)
        self._place = broadcast_place(self._settings, instance, offsets_file)
        self._handler = handler
        self._batch_handler = batch_handler
        self._coordinator: AsyncCoordinator | None = None
        self._pool: AsyncWorkerPool | None = None
        self._state = "new"
        self._paused = False
        self._ended = asyncio.Event()

    @property
    def client_id(self) -> str:
        """The name this consumer gives itself."""
        return self._settings.client_id

    @property
    def last_error(self) -> str | None:
        """Text of the last failed call; None when all went well."""
        return self._coordinator.last_error if self._coordinator else None

    def counts(self) -> ConsumerCounts:
        """What happened so far: a copy of the counters."""
        return self._coordinator.counts() if self._coordinator else ConsumerCounts()

    async def start(self) -> None:
        """Start pulling, and the handlers. Unreachable proxies are tried again and again."""
        if self._state != "new":
            raise ClientError(f"the consumer is {self._state}; it can be started once")
        self._state = "started"
        handling = bool(self._handler or self._batch_handler)
        self._coordinator = AsyncCoordinator(self._settings, handling, self._teller)
        self._coordinator.hold(self._paused)
        pulls = pull_settings(self._settings)
        if self._place is None:
            self._pool = AsyncWorkerPool(self._coordinator, self._proxies, pulls)
        else:
            self._pool = AsyncBroadcastPool(self._coordinator, self._proxies, pulls, *self._place)
        batch = self._settings.max_batch if self._batch_handler else 1
        await self._pool.start(self._settings.workers, batch, self._handle if handling else None)

    def pause(self) -> None:
        """Pull nothing more until `resume`; as `Consumer.pause`."""
        self._hold(True)

    def resume(self) -> None:
        """Pull again."""
        self._hold(False)

    def _hold(self, paused: bool) -> None:
        self._paused = paused
        if self._coordinator is not None:
            self._coordinator.hold(paused)

    async def stop(self, timeout_ms: int = 30_000) -> bool:
        """Stop pulling, handle what is here, submit the results, close; as `Consumer.stop`."""
        check("timeout_ms", timeout_ms, 0, TIMEOUT_MS_MAX)
        now, total_s = asyncio.get_running_loop().time(), timeout_ms / 1000
        started, self._state = self._state, "stopped"
        if self._pool is None:
            return True
        if started == "stopped":
            return await self._is_over(now if self._pool.is_worker() else now + total_s)
        try:
            return await self._pool.stop(now + total_s * 0.8, now + total_s)
        finally:
            self._ended.set()

    async def _is_over(self, until: float) -> bool:
        """The first `stop` is; waits for it until then."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._ended.wait()
        return self._ended.is_set()

    async def run(self, stop_timeout_ms: int = 30_000) -> bool:
        """Handle messages until SIGTERM or Ctrl-C (or `stop` is called); then stop. As `Consumer.run`."""
        check("stop_timeout_ms", stop_timeout_ms, 0, TIMEOUT_MS_MAX)
        if not (self._handler or self._batch_handler):
            raise ClientError("run needs a handler or a batch_handler")
        try:
            with Signals() as signals:
                if self._state == "new":
                    await self.start()
                assert self._coordinator is not None
                while not signals.came and self._state == "started":
                    self._coordinator.first.check_refusal()
                    await asyncio.sleep(RUN_LOOK_S)
        except BaseException:
            await self.stop(0)
            raise
        return await self.stop(stop_timeout_ms)

    async def pull(self, max_messages: int | None = None, timeout_ms: int = 1_000) -> list[Message]:
        """Up to `max_messages` (max_batch), as soon as there are any; as `Consumer.pull`."""
        count = self._settings.max_batch if max_messages is None else max_messages
        check("max_messages", count, 1, 1_000_000)
        check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        return await self._pull(count, timeout_ms)

    async def _pull(self, count: int, timeout_ms: int, one: bool = False) -> list[Message]:
        if self._handler or self._batch_handler:
            raise ClientError("this consumer has a handler: it gets the messages, pull would take them away")
        if self._state == "stopped":
            raise ClosedError("the consumer has been stopped")
        if self._state == "new":
            await self.start()
        assert self._coordinator is not None
        return await self._coordinator.ask(count, asyncio.get_running_loop().time() + timeout_ms / 1000, one)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages one by one, until `stop`; as iterating over a Consumer."""
        while True:
            try:
                messages = await self._pull(self._settings.max_batch, 1_000, one=True)
            except ClosedError:
                return
            try:
                for message in messages:
                    yield message
            except GeneratorExit:
                if self._coordinator is not None:
                    self._coordinator.leave_loop()
                raise

    async def __aenter__(self) -> AsyncConsumer:
        if self._state == "new":
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _handle(self, messages: list[Message]) -> int:
        """Run the handler; the number of times it raised."""
        try:
            if self._batch_handler is not None:
                answer = self._batch_handler(list(messages))
            else:
                assert self._handler is not None
                answer = self._handler(messages[0])
            if inspect.isawaitable(answer):
                await answer
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            _log.exception("the handler raised on %s", ", ".join(map(repr, messages[:3])))
            for message in messages:
                message.fail(reason=error)
            return 1
        if self._settings.auto_ack:
            for message in messages:
                message.ack()
        return 0


def _is_cancelled() -> bool:
    """This worker is, and not just something that its handler waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
