# Generated from ddmq_client/aio/consumer.py by tools/unasync.py: change that one.
"""Consumer: receives messages of a group from all of its consumer proxies.

    def handle(message):
        print(message.topic, message.text())

    with Consumer("mq-1:9713,mq-2:9713", "billing", ["orders"], handler=handle):
        shutdown.wait()

A message is acknowledged when the handler returns and fails when it raises, unless the handler itself calls
`ack`, `fail`, `skip` or `extend`. Without a handler, take messages with `pull` or by iterating. Messages are
delivered at least once.

The blocking consumer is safe for many threads, and works under gevent's monkey patching (threads are then
greenlets). The consumer of `ddmq_client.aio` belongs to one event loop: cancelling its `stop` ends it now,
and cancelling the block ends it when the running handlers have ended; messages that no handler has started go
back for other consumers. A consumer that was started before a fork raises ClientError in the fork.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.application.handler_errors import HandlerErrors
from ddmq_client.application.tags import find_tag_note
from ddmq_client.callables import ASYNC_CONSUMER, check_result
from ddmq_client.core.nodes import parse_addresses
from ddmq_client.core.prefetch_buffer import ConsumerCounts
from ddmq_client.core.settings import (
    TIMEOUT_MS_MAX,
    ConsumerSettings,
    check,
    check_handlers,
    topic_names,
)
from ddmq_client.delays import start_text
from ddmq_client.errors import ClientError, ClosedError
from ddmq_client.idl.codes import CONSUMER_PORT
from ddmq_client.net.broadcast import BroadcastPool
from ddmq_client.net.coordinator import Coordinator
from ddmq_client.net.sync import (
    AWAITS,
    WORKERS,
    Condition,
    Home,
    Lock,
    await_result,
    current_worker,
    ends_worker,
    is_failure,
    now,
    set_apart,
    sleep,
)
from ddmq_client.net.worker_pool import WorkerPool
from ddmq_client.notifications import ConsumerNotifications, OnError, OnLate
from ddmq_client.observer import (
    ClientObserver,
    HandleCall,
    ObservedHandling,
    check_observer,
    notify_handed_out,
    observe_handling,
)
from ddmq_client.offsets_file import build_broadcast_settings
from ddmq_client.process import RUN_POLL_S, Signals, new_client_id
from ddmq_client.received import Message
from ddmq_client.security.login import TokenSource
from ddmq_client.security.profiles import ClientConnection, choose_connection
from ddmq_client.security.tls import TlsOptions, secure_addresses
from ddmq_client.serializers import Serializer
from ddmq_client.serializers.values import deserialize_messages
from ddmq_client.wire.consuming import pull_settings

_log = logging.getLogger("ddmq_client.consumer")
Handler = Callable[[Message], object]
BatchHandler = Callable[[list[Message]], object]


class Consumer:
    """Receives messages of a group. `start` and `stop` it, or use it as a context manager.

    proxies        "host:port", several with commas, or a list; the port may be left out (9713). Messages
                   are pulled from all, as each may own other queues. A name is resolved again every 30 s
    group          the consumer group, which shares progress
    topics         names, at most 64; empty: all topics that the group subscribes to
    handler        called with one message at a time. Handlers of the asyncio consumer are coroutine
                   functions (plain ones must not block)
    batch_handler  called with up to `max_batch` messages, perhaps of several topics; if it raises, the
                   messages that it has not settled fail
    threads        the number of workers, which call the handler at the same time
    max_batch      messages per pull
    linger_ms      how long a proxy holds a pull while there are no messages: 20 to 30,000
    prefetch       messages that may wait here per proxy and topic; at least max_batch, its default. A message
                   that has waited for a second, or a third of its lease, goes back for other consumers; this
                   does not count as an attempt
    lease_ms       the group's ack time-out, used if an older proxy does not state it
    ack_flush_ms   results that no pull has carried for this time are submitted in a call of their own
    auto_ack       a handler's return acknowledges its messages; if False, the application settles each itself
    timeout_ms     for one call, in addition to the linger time
    tags, sql      the subscription's filter ("A || B", or SQL92 on properties). If the subscription has
                   another one, the proxy refuses the pull, so that no message is lost. The first pull of a
                   new subscription sets it
    extend_for_ms  while a handler runs, its messages' leases are extended, for at most this time (10
                   minutes); 0: never. If it takes longer, its messages are given to another consumer
    start          where a group starts that this consumer's first pull creates: "first" (the oldest message),
                   "last" (only messages sent from then on), or a datetime with a time zone (messages stored
                   since). None: the server's default, normally "last". An existing group continues where it
                   is; a server of the first release ignores it
    order_key      messages with the same order key are handled one after another: "KEY" (the message's key),
                   "QID" (its queue), or a JSONPath into the body such as "$.order.id". The first pull of a
                   new group sets it; if an existing group has another one, the pull is rejected
                   (SubscriptionError). None: the group's setting. A server of the first release ignores it
    model          "clustering" (consumers share the messages) or "broadcasting": this instance gets all
                   messages from the newest on, at least once, without order; failed ones are not repeated
    instance       broadcasting: a permanent name of this instance; client_id when absent
    offsets_file   broadcasting: the file that stores this instance's offsets over restarts (needs `instance`)
    client_id      name in the proxies' logs; made from host and process when absent
    on_late        called with a LateResult for each ack or fail that did not count because the lease had
                   ended; these are also logged and counted (`counts().late`)
    on_error       called with the error when pulls begin to fail: rejected (PullError, LoginError), or not
                   answered
    serializer     converts each body into `message.value`: see ddmq_client.serializers. A message whose body
                   it rejects with a ValueError becomes a dead letter, with the reason, and no handler sees it
    observer       is called for messages that are handed out and handled: see ddmq_client.observer, and
                   ddmq_client.opentelemetry for spans
    tls            True, or TlsOptions with the CA and the client's own certificate: encrypt the connections,
                   and verify the servers. None: as the environment says (DDMQ_CA); False: plain text
    token          the token that this client logs in with: a text, or a function that returns one. It is read
                   again for each connection; by default from the file that DDMQ_TOKEN_FILE names, or from
                   DDMQ_TOKEN
    token_file     a file with the token instead, which only its owner may read
    profile        the name of a profile in ~/.config/ddmq, which has the address (`proxies` is then None),
                   TLS and login; other arguments override it. None: as the environment says (DDMQ_PROFILE)
    """

    _coordinator: Coordinator | None = None  # this and the next from the start on
    _pool: WorkerPool | None = None
    _state, _stop_completed, _paused = "new", False, False
    _amid: set[object]  # workers that are starting or stopping the consumer
    _lock: Lock  # of _state and _stop_completed

    @explain_arguments("docs/client.md#receiving")
    def __init__(
        self,
        proxies: str | Sequence[str] | None,
        group: str,
        topics: str | Sequence[str] = (),
        *,
        handler: Handler | None = None,
        batch_handler: BatchHandler | None = None,
        threads: int = WORKERS,
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
        start: Literal["first", "last"] | datetime | None = None,
        order_key: Literal["KEY", "QID"] | str | None = None,
        model: Literal["clustering", "broadcasting"] = "clustering",
        instance: str | None = None,
        offsets_file: str | Path | None = None,
        client_id: str | None = None,
        serializer: Serializer | None = None,
        on_late: OnLate | None = None,
        on_error: OnError | None = None,
        observer: ClientObserver | None = None,
        tls: bool | TlsOptions | None = None,
        token: TokenSource = None,
        token_file: str | os.PathLike[str] | None = None,
        profile: str | None = None,
    ) -> None:
        """Check the arguments (raises OptionError); `start` connects."""
        self._set_callbacks(handler, batch_handler, threads, on_late, on_error, observer)
        self._settings = ConsumerSettings(
            group=group,
            topics=topic_names(topics),
            workers=threads,
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
            start=start_text(start),
            order_key=order_key,
            model=model,
            client_id=client_id or new_client_id(),
            serializer=serializer,
        )
        self._set_proxies(choose_connection("consumer", profile, proxies, tls, token, token_file))
        self._broadcast = build_broadcast_settings(self._settings, instance, offsets_file)
        self._home, self._lock, self._amid = Home("consumer"), Lock(), set()
        self._stop_done = Condition(self._lock)

    def _set_proxies(self, connection: ClientConnection) -> None:
        """Store the addresses of the proxies, with their login and TLS. Raises OptionError."""
        addresses = parse_addresses(connection.proxies, CONSUMER_PORT, login=connection.login)
        self._proxies = secure_addresses(addresses, connection.tls)

    def _set_callbacks(
        self,
        handler: Handler | None,
        batch_handler: BatchHandler | None,
        threads: int,
        on_late: OnLate | None,
        on_error: OnError | None,
        observer: ClientObserver | None,
    ) -> None:
        """Check and store the functions that the application passes. Raises OptionError."""
        check_observer(observer)
        check_handlers(AWAITS, handler, batch_handler, threads)
        self._handler, self._batch_handler, self._observer = handler, batch_handler, observer
        self._notifications, self._errors = ConsumerNotifications(on_late, on_error), HandlerErrors()

    @property
    def client_id(self) -> str:
        """This consumer's name in the proxies' logs."""
        return self._settings.client_id

    @property
    def last_error(self) -> str | None:
        """The error text of the last call to a proxy; None if it succeeded."""
        return self._coordinator.last_error if self._coordinator else None

    def counts(self) -> ConsumerCounts:
        """Return a copy of the counters."""
        return self._coordinator.counts() if self._coordinator else ConsumerCounts()

    def start(self) -> None:
        """Start pulling, and the workers. Returns at once; unreachable proxies are retried."""
        if not self._begin_once():
            raise ClientError(f"the consumer is {self._state}; it can be started once")

    def _begin_once(self) -> bool:
        """Start unless `start` or `stop` was called before; return whether this call started the consumer."""
        handling = bool(self._handler or self._batch_handler)
        with self._lock:
            if self._state != "new":
                return False
            self._home.check_process()
            if note := find_tag_note(self._settings.tags):
                _log.warning("tags=%r: %s", self._settings.tags, note)
            self._coordinator = Coordinator(self._settings, handling, self._notifications)
            self._coordinator.set_paused(self._paused)
            pulls = pull_settings(self._settings)
            if self._broadcast is None:
                self._pool = WorkerPool(self._coordinator, self._proxies, pulls)
            else:
                self._pool = BroadcastPool(self._coordinator, self._proxies, pulls, *self._broadcast)
            self._state = "started"
        batch = self._settings.max_batch if self._batch_handler else 1
        self._amid.add(current_worker())
        try:
            self._pool.start(self._settings.workers, batch, self._handle if handling else None)
        finally:
            self._amid.discard(current_worker())
        return True

    def pause(self) -> None:
        """Stop pulling until `resume`.

        Messages that no handler has started go back at once for other consumers, and do not count as
        attempts. Running handlers finish. Messages from an older proxy or a broadcast are still handled.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Resume pulling after `pause`."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        with self._lock:
            self._paused = paused
            if self._coordinator is not None:
                self._coordinator.set_paused(paused)

    def stop(self, timeout_ms: int = 30_000) -> bool:
        """Stop pulling, let handlers finish, submit results and close, within `timeout_ms` in all.

        Messages that no handler has started go back at once for other consumers, and do not count as
        attempts. Returns True if handlers have ended and all results were delivered. Messages whose results
        were not delivered are delivered again after the group's ack time-out, as are messages of `pull` that
        were not settled. A handler may call this after settling its own messages, which are otherwise
        delivered again. A further call waits for the first one. A signal handler may call this too; if it
        has interrupted this consumer's own work, a thread stops the consumer, and False is returned at once.
        """
        check("timeout_ms", timeout_ms, 0, TIMEOUT_MS_MAX)
        if self._home.is_forked:
            return False
        locks = [self._lock, self._coordinator.lock] if self._coordinator else [self._lock]
        if set_apart(partial(self._stop, timeout_ms), current_worker() in self._amid, locks):
            return False
        return self._stop(timeout_ms)

    def _stop(self, timeout_ms: int) -> bool:
        time, total_s = now(), timeout_ms / 1000
        with self._lock:
            started, self._state = self._state, "stopped"
            if self._pool is None:
                return True
            if started != "stopped":
                self._amid.add(current_worker())  # under the lock: signal handlers check both
        if started == "stopped":
            return self._is_over(time if self._pool.is_worker() else time + total_s)
        try:
            return self._pool.stop(time + total_s * 0.8, time + total_s)
        finally:
            with self._lock:
                self._stop_completed = True
                self._stop_done.notify_all()
            self._amid.discard(current_worker())

    def _is_over(self, until: float) -> bool:
        """Wait until the first `stop` ends, at most until `until`; return whether it has ended."""
        with self._lock:
            while not self._stop_completed and self._stop_done.wait(until - now()):
                pass
            return self._stop_completed

    def run(self, stop_timeout_ms: int = 30_000) -> bool:
        """Handle messages until SIGTERM or Ctrl-C, or until `stop` is called; then stop, as `stop` does.

        Starts the consumer if necessary. Raises PullError if the first pulls are rejected for good (no such
        group, another filter, a failed login) or go to a producer or admin port, so that a wrong
        configuration shows at the start. A server that cannot be reached, or does not answer, causes a
        warning in the log; `run` waits for it.
        Signals are handled on the main thread only; a second signal has its former effect.
        """
        check("stop_timeout_ms", stop_timeout_ms, 0, TIMEOUT_MS_MAX)
        if not (self._handler or self._batch_handler):
            raise ClientError("run needs a handler or a batch_handler")
        try:
            with Signals() as signals:
                self._begin_once()
                while not signals.came and self._state == "started":
                    assert self._coordinator is not None
                    self._coordinator.first.check_rejection()
                    sleep(RUN_POLL_S)
        except BaseException:
            self.stop(0)
            raise
        return self.stop(stop_timeout_ms)

    @explain_arguments("docs/client.md#receiving")
    def pull(self, max_messages: int | None = None, timeout_ms: int = 1_000) -> list[Message]:
        """Return up to `max_messages` (default: max_batch) as soon as there are any.

        An empty list after `timeout_ms`. Starts the consumer if necessary. Settle each message. No messages
        are pulled beyond those requested. Raises PullError if the proxies refuse, or while none has answered
        and one could not be reached; ClosedError after `stop`; ClientError if the consumer has a handler.
        """
        count = self._settings.max_batch if max_messages is None else max_messages
        check("max_messages", count, 1, 1_000_000)
        check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        return self._pull(count, timeout_ms)

    def _pull(self, count: int, timeout_ms: int, one: bool = False) -> list[Message]:
        if self._handler or self._batch_handler:
            raise ClientError("this consumer has a handler: it gets the messages, pull would take them away")
        if self._state == "new":
            self._begin_once()
        if self._state == "stopped":
            raise ClosedError("the consumer has been stopped")
        self._home.check_process()
        assert self._coordinator is not None
        deadline, requested_ns = now() + timeout_ms / 1000, time.time_ns()
        messages = self._request_messages(count, deadline, one)
        if messages and self._observer is not None:
            notify_handed_out(self._observer, messages, self.client_id, requested_ns)
        return messages

    def _request_messages(self, count: int, deadline: float, one: bool) -> list[Message]:
        """Wait for messages from the coordinator, until some have a body that can be deserialized."""
        assert self._coordinator is not None
        while True:
            messages = self._coordinator.request_messages(count, deadline, one)
            usable = self._deserialize(messages)
            if usable or not messages:
                return usable

    def _deserialize(self, messages: list[Message]) -> list[Message]:
        serializer = self._settings.serializer
        return messages if serializer is None else deserialize_messages(serializer, messages, self._errors)

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages, one by one, until `stop`. Settle each one.

        Messages that were pulled and not yet returned go back for other consumers without counting as
        attempts: when the loop is left, or when one message takes longer than a second (or a third of the
        lease).
        """
        while True:
            try:
                messages = self._pull(self._settings.max_batch, 1_000, one=True)
            except ClosedError:
                return
            try:
                yield from messages
            except GeneratorExit:
                if self._coordinator is not None:
                    self._coordinator.leave_loop()
                raise

    def __enter__(self) -> Consumer:
        self._begin_once()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _handle(self, messages: list[Message]) -> int:
        """Run the handler on messages; return how often it raised."""
        messages = self._deserialize(messages)
        if not messages:
            return 0
        if self._observer is None:
            return self._call_handler(messages, None)
        notify_handed_out(self._observer, messages, self.client_id, None)
        call = HandleCall(self.client_id, self._batch_handler is not None)
        handling = observe_handling(self._observer, messages, call)
        if handling is None:
            return 1
        with handling:
            return self._call_handler(messages, handling)

    def _call_handler(self, messages: list[Message], handling: ObservedHandling | None) -> int:
        try:
            self._run_handler(messages)
        except BaseException as error:
            if handling is not None:
                handling.raised(error)
            if is_failure(error):
                self._errors.report_error(messages, error)
                for message in messages:
                    message.fail(reason=error)
            if ends_worker(error):
                raise
            return 1
        if self._settings.auto_ack:
            for message in messages:
                message.ack()
        return 0

    def _run_handler(self, messages: list[Message]) -> None:
        """Call the handler and wait for it. Raises OptionError if it returned work that was not done."""
        if self._batch_handler is not None:
            name, answer = "batch_handler", self._batch_handler(list(messages))
        else:
            assert self._handler is not None
            name, answer = "handler", self._handler(messages[0])
        if answer is not None:
            result = await_result(answer)
            ends = self._settings.auto_ack
            check_result(name, result, awaits=AWAITS, instead=ASYNC_CONSUMER, ends=ends)
