"""DdmqBroker: Dramatiq's messages in topics of a ddmq server."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import dramatiq
from dramatiq.common import current_millis, q_name

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.core.nodes import parse_addresses
from ddmq_client.core.settings import EXTEND_MS_MAX, check
from ddmq_client.delays import CancelOutcome
from ddmq_client.dramatiq.admin import QueueAdmin
from ddmq_client.dramatiq.consuming import DdmqConsumer
from ddmq_client.dramatiq.delivered import DeliveredMessage
from ddmq_client.dramatiq.leases import LeaseKeeper
from ddmq_client.dramatiq.queued_message import (
    DELAY_ID_OPTION,
    ETA_OPTION,
    KEY_OPTION,
    QueuedMessage,
    queue_message,
    topic_name,
)
from ddmq_client.errors import NotStoredError, OptionError, UnknownOutcomeError
from ddmq_client.idl.codes import CONSUMER_PORT, PRODUCER_PORT
from ddmq_client.net.consumer import Consumer
from ddmq_client.producer import Producer

PULL_BATCH_MAX = 256
LINGER_MS_MAX = 30_000
NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")
DAY_MS = 24 * 3600 * 1000
AFTER_ACTOR = ("process_message", "skip_message")  # signals after which a message is only to be settled


class DdmqBroker(dramatiq.Broker):
    """A Dramatiq broker on a ddmq server. A queue is a topic NAMESPACE-QUEUE and a group of that name.

    producer_proxies  "host:port", several with commas, or a list; the port may be left out (9613)
    consumer_proxies  the same, for workers (9713)
    admin             "host:port" of an admin port (9813): workers then create their queues so that messages
                      with `ddmq_key` keep their order; `join` and `flush` need it
    namespace         prefix of topics and groups: applications with different ones share nothing
    middleware        Dramatiq's: all of it, if it is given
    timeout_ms        for one enqueue, end to end, resending included
    extend_for_ms     for how long a worker keeps a message: as long as the slowest actor takes, and the
                      messages before it in the same worker (24 hours; 7 days at most)

    Connections are made when they are needed, in each process. Safe for many threads and for gevent.
    """

    @explain_arguments("docs/dramatiq.md")
    def __init__(
        self,
        producer_proxies: str | Sequence[str] = "127.0.0.1:9613",
        consumer_proxies: str | Sequence[str] = "127.0.0.1:9713",
        *,
        admin: str | None = None,
        namespace: str = "dramatiq",
        middleware: list[dramatiq.Middleware] | None = None,
        timeout_ms: int = 3_000,
        extend_for_ms: int = DAY_MS,
    ) -> None:
        """Check the arguments (OptionError); nothing connects yet."""
        if not isinstance(namespace, str) or NAMESPACE.fullmatch(namespace) is None:
            raise OptionError(f"namespace={namespace!r}; allowed: 1 to 64 letters, digits, _ and -")
        check("extend_for_ms", extend_for_ms, 0, EXTEND_MS_MAX)
        parse_addresses(producer_proxies, PRODUCER_PORT, "producer_proxies")
        parse_addresses(consumer_proxies, CONSUMER_PORT, "consumer_proxies")
        Producer(producer_proxies, timeout_ms=timeout_ms)  # its checks; it is dropped unused
        super().__init__(middleware=middleware)
        self.actor_options |= {KEY_OPTION}
        self.queues: set[str] = set()
        self.namespace = namespace
        self._producer_proxies = producer_proxies
        self._consumer_proxies = consumer_proxies
        self._admin = None if admin is None else QueueAdmin(admin)
        self._timeout_ms = timeout_ms
        self._leases = LeaseKeeper(extend_for_ms / 1000)
        self._lock = threading.Lock()  # of the two below
        self._producer: Producer | None = None
        self._consumers: list[DdmqConsumer] = []
        self._process = os.getpid()
        self._state = threading.local()  # `finished`: the message whose middleware runs after its actor

    # --- declaring

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue, unless that was done before. The server keeps delayed messages, so no delay queue
        is needed.

        Raises OptionError if the server cannot have a topic and group for this name.
        """
        name = q_name(queue_name)
        if name not in self.queues:
            topic_name(self.namespace, name)  # raises for a name that no worker could consume
            self.emit_before("declare_queue", name)
            self.queues.add(name)
            self.emit_after("declare_queue", name)

    def get_declared_queues(self) -> set[str]:
        """Return the names of all declared queues."""
        return self.queues.copy()

    # --- sending

    def enqueue(
        self, message: dramatiq.Message[Any] | dramatiq.MessageProxy, *, delay: int | None = None
    ) -> dramatiq.Message[Any]:
        """Store the message, which is delivered at once, or after `delay` milliseconds.

        When it returns, the message is stored. Messages that middleware enqueues after an actor are stored
        with its acknowledgement instead. Raises ConnectionFailed if the message is not stored,
        ConnectionClosed if that is not known, and the errors of `Producer.send` if the message is wrong, or
        OptionError if its queue's name is.
        """
        finished: DeliveredMessage | None = getattr(self._state, "finished", None)
        eta = {} if delay is None else {ETA_OPTION: current_millis() + delay}
        copy: dramatiq.Message[Any] = message.copy(queue_name=q_name(message.queue_name), options=eta)
        self.emit_before("enqueue", copy, delay)
        try:
            if finished is not None and message is finished and finished.is_keyed:
                finished.retry_delay_ms = delay or 0
            else:
                self._store_message(self._queue_message(copy, delay), copy, finished)
        except Exception as error:
            if finished is not None:
                finished.enqueue_error = error
            raise
        self.emit_after("enqueue", copy, delay)
        return copy

    def schedule(
        self,
        message: dramatiq.Message[Any],
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: timedelta | None = None,
        times: int | None = None,
    ) -> str:
        """Store a message that is delivered repeatedly; return its delay id, by which it can be cancelled.

        The arguments are those of `Producer.send`. Each call makes one more schedule, so call it once, when
        the application is deployed. All deliveries have the same Dramatiq message id.
        """
        if cron is None and every is None:
            raise OptionError("schedule has no time; allowed: cron, every, or both")
        copy = message.copy(queue_name=q_name(message.queue_name))
        self.emit_before("enqueue", copy, None)
        queued = self._queue_message(copy, None)
        with _dramatiq_errors():
            result = self._get_producer().send(
                queued.topic,
                queued.body,
                key=queued.key,
                shard_key=queued.key,
                tags=queued.tags,
                cron=cron,
                zone=zone,
                every=every,
                times=times,
            )
        self.emit_after("enqueue", copy, None)
        return result.delay_id or ""

    def cancel(self, message: dramatiq.Message[Any] | str, *, queue_name: str | None = None) -> CancelOutcome:
        """Cancel a delayed message: one that `enqueue` or `send_with_options` returned, or a delay id.

        `queue_name`: of the message, if the server checks rights and only the delay id is given.
        The outcome is the truth: `cancelled`, or already delivered and when.
        """
        options = getattr(message, "options", {})
        delay_id = message if isinstance(message, str) else options.get(DELAY_ID_OPTION)
        if not isinstance(delay_id, str):
            raise OptionError(
                f"{message!r} has no delay id; allowed: a message enqueued with a delay, or its delay id"
            )
        queue_name = getattr(message, "queue_name", queue_name)
        topic = None if queue_name is None else topic_name(self.namespace, q_name(queue_name))
        return self._get_producer().cancel(delay_id, topic=topic)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Run the middleware. Messages that it enqueues after an actor are stored with the
        acknowledgement."""
        if signal not in AFTER_ACTOR or not args or not isinstance(args[0], DeliveredMessage):
            super().emit_after(signal, *args, **kwargs)
            return
        self._state.finished = args[0]
        try:
            super().emit_after(signal, *args, **kwargs)
        finally:
            self._state.finished = None

    def _queue_message(self, message: dramatiq.Message[Any], delay_ms: int | None) -> QueuedMessage:
        actor = self.actors.get(message.actor_name)
        key_option = None if actor is None else actor.options.get(KEY_OPTION)
        topic = topic_name(self.namespace, message.queue_name)
        return queue_message(message, topic, key_option, delay_ms, datetime.now(UTC))

    def _store_message(
        self, queued: QueuedMessage, message: dramatiq.Message[Any], finished: DeliveredMessage | None
    ) -> None:
        if finished is not None and queued.idempotency_key is None:
            finished.followers.append(queued)
            return
        with _dramatiq_errors():
            result = queued.send(self._get_producer())
        if result.delay_id is not None:
            message.options[DELAY_ID_OPTION] = result.delay_id

    # --- receiving

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> dramatiq.Consumer:
        """Return a consumer of a declared queue that holds at most `prefetch` messages.

        `timeout` is for how many milliseconds it waits for a message.
        """
        name = q_name(queue_name)
        if name not in self.queues:
            raise dramatiq.QueueNotFound(queue_name)
        topic = topic_name(self.namespace, name)
        if self._admin is not None:
            self._admin.create_queue(topic)
        batch = min(prefetch, PULL_BATCH_MAX)
        client = Consumer(
            self._consumer_proxies,
            topic,
            topic,
            max_batch=batch,
            linger_ms=min(max(timeout, 1), LINGER_MS_MAX),
            start="first",
        )
        consumer = DdmqConsumer(name, client, self._get_producer, self._leases, prefetch, timeout)
        with self._lock:
            self._consumers = [other for other in self._consumers if not other.is_stopped]
            self._consumers.append(consumer)
        return consumer

    # --- for tests and operators

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until the queue has no message left: waiting, in an actor, retried or delayed. For tests.

        `interval`, between two counts, and `timeout` are milliseconds; QueueJoinTimeout when it is over.
        """
        admin, topic = self._get_admin("join"), self._get_topic(queue_name)
        admin.create_queue_once(topic)
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        zero_counts = 0  # in a row: between two counts a message may have moved from one place to another
        while True:
            zero_counts = 0 if admin.count_unfinished(topic) else zero_counts + 1
            if zero_counts == 2:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise dramatiq.QueueJoinTimeout(queue_name)
            if not zero_counts:
                time.sleep(interval / 1000)

    def flush(self, queue_name: str) -> None:
        """Drop the queue's waiting and delayed messages; its dead letters stay."""
        admin, topic = self._get_admin("flush"), self._get_topic(queue_name)
        admin.create_queue_once(topic)
        for delay_id in admin.list_delayed(topic):
            self._get_producer().cancel(delay_id, topic=topic)
        admin.skip_waiting(topic)

    def flush_all(self) -> None:
        """Drop the messages of all declared queues, their dead letters too."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)
            self._get_admin("flush_all").purge_dead_letters(self._get_topic(queue_name))

    def close(self) -> None:
        """Stop all clients and threads of the broker. A message that an actor has is redelivered after its
        lease."""
        with self._lock:
            consumers, self._consumers = self._consumers, []
            producer, self._producer = self._producer, None
        for consumer in consumers:
            consumer.stop()
        self._leases.stop()
        if producer is not None:
            producer.close()

    def _get_topic(self, queue_name: str) -> str:
        name = q_name(queue_name)
        if name not in self.queues:
            raise dramatiq.QueueNotFound(queue_name)
        return topic_name(self.namespace, name)

    def _get_admin(self, method: str) -> QueueAdmin:
        if self._admin is None:
            raise OptionError(
                f"{method} needs the admin port; allowed: DdmqBroker(..., admin='127.0.0.1:9813')"
            )
        return self._admin

    def _get_producer(self) -> Producer:
        """Return the producer of this process: one that was used before a fork is left to the parent."""
        with self._lock:
            if self._producer is None or self._process != os.getpid():
                self._producer = Producer(self._producer_proxies, timeout_ms=self._timeout_ms)
                self._process = os.getpid()
            return self._producer


@contextmanager
def _dramatiq_errors() -> Iterator[None]:
    """Raise the errors of a send that may be repeated as those that users of Dramatiq know."""
    try:
        yield
    except NotStoredError as error:
        raise dramatiq.ConnectionFailed(str(error)) from error
    except UnknownOutcomeError as error:
        raise dramatiq.ConnectionClosed(str(error)) from error
