"""Producer: sends messages to a topic through any of several producer proxies.

    with Producer("mq-1:9613,mq-2:9613") as producer:
        result = producer.send("orders", b"hello", key="order-17")
        print(result.message_id, result.queue_id, result.offset)

Safe for many threads; correct under gevent's monkey patching (threads are greenlets then).
`ddmq_client.aio` holds the asyncio twin. What was used before a fork raises ClientError after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.callables import check_function
from ddmq_client.core.pipeline import QueuedSend, needs_own_request
from ddmq_client.core.selectors import Selector
from ddmq_client.core.settings import ProducerSettings
from ddmq_client.net.background import Background
from ddmq_client.net.producer import ProducerBase
from ddmq_client.net.sync import now
from ddmq_client.observer import ClientObserver, ObservedSend, observe_send
from ddmq_client.outbox import send_alone_at
from ddmq_client.outgoing import OutgoingMessage, SendResult, has_key
from ddmq_client.process import new_client_id
from ddmq_client.security.login import TokenSource
from ddmq_client.security.profiles import choose_connection
from ddmq_client.security.tls import TlsOptions
from ddmq_client.serializers import Serializer
from ddmq_client.transactions import Check


class Producer(ProducerBase):
    """Sends messages. Close it, or use it as a context manager.

    proxies          "host:port", several with commas, or a list; the port may be left out (9613). A name with
                     several addresses counts as that many proxies and is resolved again every 30 s
    timeout_ms       for one call as a whole, including connecting, resending and waiting
    retry_unknown    also resend a message that may be stored if no proxy would recognise the resend: fewer
                     errors, but duplicates
    idempotent       number the messages, so that proxies recognise resent ones, and a message that may be
                     stored can be resent: fewer errors and no duplicates, if the engine supports it
                     (docs/client.md)
    attempts_max     per message, within the timeout (which by default ends sooner)
    selector         chooses the queue: "hash" (by shard_key; any queue without one), "key" (by shard_key,
                     else by key), "random", or a callable that gets the OutgoingMessage and returns a number
                     (taken modulo the queue count) or None for any queue
    connections_max  the maximum of open connections; a call beyond it waits, then raises BusyError
    in_flight_max    the maximum of unfinished `send_async` calls; a call beyond it waits, then raises
                     BusyError
    async_workers    threads of `send_async`, each with one request at a time. With 1, messages of one
                     shard key keep the order of their calls
    batch_bytes      encoded bytes per request of send_batch and send_async, at most 4 MiB
    batch_messages   messages per request of send_batch and send_async
    producer_group   name shared by producers that can check each other's transactions; needed for those
    check            function that gets an UndecidedTransaction of the producer group, perhaps from a process
                     that has died, and returns a Decision. It is called from the `with` or the first send
                     on, in a thread of its own, one call at a time; an exception counts as NOT_KNOWN_YET
    client_id        name in the proxies' logs; made from host and process when absent
    serializer       converts the `body` of every send into bytes: see ddmq_client.serializers
    observer         is called for every send: see ddmq_client.observer, and ddmq_client.opentelemetry for
                     spans
    tls              True, or TlsOptions with the CA and the client's own certificate: encrypt the
                     connections, and verify the servers. None: as the environment says (DDMQ_CA); False:
                     plain text
    token            the token that this client logs in with: a text, or a function that returns one. It is
                     read again for each connection; by default from the file that DDMQ_TOKEN_FILE names, or
                     from DDMQ_TOKEN
    token_file       a file with the token instead, which only its owner may read
    profile          the name of a profile in ~/.config/ddmq, which has the address, TLS and login; other
                     arguments override it. None: as the environment says (DDMQ_PROFILE)
    """

    @explain_arguments("docs/client.md#sending")
    def __init__(
        self,
        proxies: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 3_000,
        retry_unknown: bool = False,
        idempotent: bool = True,
        attempts_max: int = 1_000,
        selector: Selector = "hash",
        connections_max: int = 64,
        in_flight_max: int = 1_024,
        async_workers: int = 4,
        batch_bytes: int = 4 * 1024 * 1024,
        batch_messages: int = 500,
        producer_group: str | None = None,
        check: Check | None = None,
        client_id: str | None = None,
        serializer: Serializer | None = None,
        observer: ClientObserver | None = None,
        tls: bool | TlsOptions | None = None,
        token: TokenSource = None,
        token_file: str | os.PathLike[str] | None = None,
        profile: str | None = None,
    ) -> None:
        """Check the arguments (raises OptionError); the first send connects."""
        settings = ProducerSettings(
            timeout_ms=timeout_ms,
            retry_unknown=retry_unknown,
            idempotent=idempotent,
            attempts_max=attempts_max,
            connections_max=connections_max,
            in_flight_max=in_flight_max,
            async_workers=async_workers,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            selector=selector,
            producer_group=producer_group,
            client_id=client_id or new_client_id(),
            serializer=serializer,
        )
        connection = choose_connection("producer", profile, proxies, tls, token, token_file)
        super().__init__(connection.proxies, settings, check, observer, connection.tls, connection.login)
        self._background = Background(settings, self._outbox, self._sender)

    def send_async(
        self,
        message: OutgoingMessage,
        *,
        on_done: Callable[[SendResult], None] | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """Send in the background.

        Return a future with the SendResult, or with the error that `send` would raise. `on_done` is always
        called with the SendResult (see its `error`), on a worker's thread: it must not block. Sends that wait
        at the same time share a request. A future that is cancelled early enough is not sent.
        """
        check_function("on_done", on_done)
        if self._observer is None:
            return self._queue_send(message, on_done, timeout_ms)
        with observe_send(self._observer.sending((message,), self._single)) as send:
            future = self._queue_send(send.messages[0], on_done, timeout_ms)
        future.add_done_callback(partial(_report_outcome, send))
        return future

    def _queue_send(
        self,
        message: OutgoingMessage,
        on_done: Callable[[SendResult], None] | None,
        timeout_ms: int | None,
    ) -> Future[SendResult]:
        timeout_s = self._outbox.timeout_s(timeout_ms)
        encoded = self._encode(message)
        time = now()
        future: Future[SendResult] = Future()
        hurry = send_alone_at(time, timeout_s)
        alone, keyed = needs_own_request(message), has_key(message)
        waiting = QueuedSend(encoded, time + timeout_s, hurry, alone, future, on_done, keyed)
        self._background.put(waiting)
        return future

    def flush(self, timeout_ms: int | None = None) -> bool:
        """Wait until no `send_async` is in progress; return False if the timeout came first."""
        self._home.check_process()
        return self._background.flush(self._deadline_after(timeout_ms))

    def close(self, timeout_ms: int | None = None) -> None:
        """Send waiting messages, for at most `timeout_ms`, then close. The rest fails with NotStoredError."""
        if self._closed or self._home.is_forked:
            return
        self._closed = True
        deadline = self._deadline_after(timeout_ms)
        self._background.close(deadline)
        self._checks.close(deadline)
        self._router.close(deadline + 1.0)
        self._background.join(deadline + 1.0)


def _report_outcome(send: ObservedSend, future: Future[SendResult]) -> None:
    """Report the outcome of a background send to its observer."""
    error = CancelledError() if future.cancelled() else future.exception()
    if error is None:
        send.ended((future.result(),))
    else:
        send.failed(error)
