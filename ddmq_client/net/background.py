"""Threads that carry what `send_async` was given: take a batch, send it, complete its futures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ddmq_client.callables import check_result
from ddmq_client.core.pipeline import Pipeline, QueuedSend
from ddmq_client.core.sending import result_of
from ddmq_client.core.settings import ProducerSettings
from ddmq_client.errors import BusyError, ClosedError, NotStoredError, UnknownOutcomeError
from ddmq_client.net.sender import JobSender
from ddmq_client.outbox import Outbox
from ddmq_client.outgoing import SendResult

_log = logging.getLogger("ddmq_client.producer")
SendFuture = Future[SendResult]
T = TypeVar("T")


class Background:
    """The sends of `send_async`, their lock and their worker threads. Workers start with the first send."""

    def __init__(self, settings: ProducerSettings, outbox: Outbox, sender: JobSender) -> None:
        self._settings = settings
        self._outbox = outbox
        self._sender = sender
        self._pipeline: Pipeline[SendFuture] = Pipeline(
            settings.in_flight_max, settings.batch_bytes, settings.batch_messages
        )
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._freed = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._closed = False

    def put(self, waiting: QueuedSend[SendFuture]) -> None:
        """Add a send; wait for free space until its deadline, then raise BusyError."""
        with self._lock:
            while self._pipeline.is_full and not self._closed:
                if not self._freed.wait(waiting.deadline - time.monotonic()):
                    raise BusyError(f"{self._settings.in_flight_max} sends are in flight (in_flight_max)")
            if self._closed:
                raise ClosedError("the producer has been closed")
            self._pipeline.put(waiting)
            if len(self._threads) < self._settings.async_workers:
                self._start_one()
            self._arrived.notify()

    def flush(self, deadline: float) -> bool:
        """Wait until nothing is in flight; return False if the deadline came first."""
        with self._lock:
            while self._pipeline.in_flight:
                if not self._freed.wait(deadline - time.monotonic()):
                    return False
            return True

    def close(self, deadline: float) -> None:
        """Send waiting messages until the deadline; fail the rest with NotStoredError.

        Then end the workers.
        """
        self.flush(deadline)
        with self._lock:
            self._closed = True
            unsent = self._drain()
            self._arrived.notify_all()
            self._freed.notify_all()
        error = NotStoredError("not sent: the producer was closed first")
        unsent = [waiting for waiting in unsent if self._start_send(waiting)]
        self._complete_batch(unsent, [result_of(error) for _ in unsent])

    def join(self, deadline: float) -> None:
        """Wait until the workers end, at most until `deadline`."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _start_one(self) -> None:
        name = f"ddmq-producer-{len(self._threads)}"
        thread = threading.Thread(target=self._run_worker, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _drain(self) -> list[QueuedSend[SendFuture]]:
        unsent: list[QueuedSend[SendFuture]] = []
        while batch := self._pipeline.take_batch(0.0):
            unsent += batch
        return unsent

    def _run_worker(self) -> None:
        while True:
            with self._lock:
                while not len(self._pipeline):
                    if self._closed:
                        return
                    self._arrived.wait()
                batch = self._pipeline.take_batch(time.monotonic())
            self._send(batch)

    def _send(self, batch: list[QueuedSend[SendFuture]]) -> None:
        batch = [waiting for waiting in batch if self._start_send(waiting)]
        if not batch:
            return
        messages = [waiting.encoded for waiting in batch]
        deadline = min(waiting.deadline for waiting in batch)
        keyed = frozenset(at for at, waiting in enumerate(batch) if waiting.keyed)
        try:
            results = self._sender.run(self._outbox.build_job(messages, deadline, keyed))
        except Exception as error:
            _log.exception("a background send of %d messages broke", len(batch))
            results = [result_of(UnknownOutcomeError(f"the send broke: {error!r}")) for _ in batch]
        self._complete_batch(batch, results)

    def _start_send(self, waiting: QueuedSend[SendFuture]) -> bool:
        """Start a send; return False if the application has cancelled it."""
        if waiting.future.set_running_or_notify_cancel():
            return True
        self._release_slots(1)
        return False

    def _complete_batch(self, batch: list[QueuedSend[SendFuture]], results: list[SendResult]) -> None:
        for waiting, result in zip(batch, results, strict=True):
            if result.error is None:
                _call_back(waiting.future.set_result, result)
            else:
                _call_back(waiting.future.set_exception, result.error)
            if waiting.on_done is not None:
                _call_back(waiting.on_done, result)
        self._release_slots(len(batch))

    def _release_slots(self, count: int) -> None:
        with self._lock:
            self._pipeline.complete_sends(count)
            self._freed.notify_all()


def _call_back(call: Callable[[T], object], value: T) -> None:
    """Call a function of the application, or a future's method that may call one, and log its errors."""
    try:
        check_result("the callback", call(value), ends=False)
    except BaseException:  # also SystemExit: the worker goes on
        _log.exception("a callback of a send raised")
