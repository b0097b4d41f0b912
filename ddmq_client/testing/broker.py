"""TestBroker: a broker in the test's process, for the ordinary producers and consumers, in milliseconds.

    with TestBroker() as broker:
        producer = broker.producer()
        consumer = broker.consumer("billing", "orders", handle)
        producer.send("orders", b"one espresso", key="order-17")
        broker.run_until_idle()

It is the server's own code over its engine in memory. Consumers handle on their own threads, as ever; the
broker itself does nothing between calls, and its time stands still until `clock.advance`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from ddmq_client.admin.setting_checks import check_group_settings
from ddmq_client.aio.consumer import AsyncConsumer
from ddmq_client.aio.producer import AsyncProducer
from ddmq_client.core.settings import topic_names
from ddmq_client.delays import duration_ms, epoch_ms, to_datetime
from ddmq_client.errors import ClientError, OptionError
from ddmq_client.net.consumer import Consumer
from ddmq_client.producer import Producer
from ddmq_client.testing.engine import load_server_class
from ddmq_client.testing.proxies import enter_proxy, remove_proxy
from ddmq_client.testing.running_handlers import RunningHandlers
from ddmq_client.testing.sockets import BrokerProxy
from ddmq_client.testing.views import DeadLetterView, DelayedMessageView, KeyView, MessageView, view_of

HOST = "192.0.2.1"  # of a network that is kept for documentation, so it is nobody's
TIMEOUT_S = 10.0
CHANGE_S = 0.05  # the longest wait for a change between two checks
LAST_MS = 0.001  # a delay counts from the end of the millisecond in which it was accepted
JOIN_MAX = timedelta(days=30)
GROUP_TOPICS = ("%DLQ%", "%RETRY%")  # prefixes: these topics exist once their group needs them
PARKED_SHOWN_MAX = 3  # keys in an error text
_ports = itertools.count(1)


class BusyBrokerError(ClientError, TimeoutError):
    """The clients of a broker did not come to rest in time; the text says what was under way."""


class BrokerClock:
    """The clock of a test broker. Its time does not pass until a test advances it."""

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker

    def now(self) -> datetime:
        """The time, in UTC."""
        return to_datetime(self._broker.server.clock.wall_ms())

    def advance(self, by: timedelta, *, timeout_s: float = TIMEOUT_S) -> None:
        """Advance the clock by `by`, stopping at each delay, retry, lease or check as it falls due.

        Handlers run at each stop as in `run_until_idle`, so their effects happen at that time. A delay that
        ends less than 1 ms after the new time fires too, because proxies count in whole milliseconds.

        Raises ClientError in a handler, because it would wait for that handler to return.
        """
        self._broker.running.check_outside("clock.advance")
        for _ in self._broker.pass_time(by):
            self._broker.run_until_idle(timeout_s)


class BrokerClients(ABC):
    """The clients that a broker makes, and stops when it closes."""

    @abstractmethod
    def producer(self, **options: Any) -> Any:
        """Return a producer of this broker. `options`: as the class takes them."""

    @abstractmethod
    def consumer(
        self,
        group: str,
        topics: str | Sequence[str] = (),
        handler: Callable[..., object] | None = None,
        **options: Any,
    ) -> Any:
        """Return a consumer of this broker, started if it has a handler."""


class TestBroker(BrokerClients):
    """A broker of the test's own. Close it, or use it as a context manager.

    now        the time at which it begins, with a time zone; the machine's when absent
    seed       what its random choices follow, lease ids for example
    producers  where producers find it, as any producer takes it: Producer(broker.producers)
    consumers  the same for consumers
    clock      its time: see BrokerClock
    aio        the same for asyncio: see AsyncBroker
    """

    __test__ = False  # pytest: this is no test

    def __init__(self, *, now: datetime | None = None, seed: int = 0) -> None:
        """ClientError where the packages that it needs are not installed."""
        begin_ms = epoch_ms("now", datetime.now(UTC) if now is None else now)  # rejects a time without a zone
        self.server: Any = load_server_class()(begin_ms, seed)
        self.clock = BrokerClock(self)
        self.aio = AsyncBroker(self)
        self.producers = self._enter_proxy("producer")
        self.consumers = self._enter_proxy("consumer")
        self._clients: list[Producer | Consumer] = []
        self._pull_clients: set[str] = set()
        self._subscriptions: set[tuple[str, tuple[str, ...]]] = set()  # of its consumers
        self.running = RunningHandlers(lambda: self.server.report_change())
        self._is_closed = False

    def _enter_proxy(self, service: str) -> str:
        address = (HOST, next(_ports) % 65_535 + 1)
        enter_proxy(address, BrokerProxy(lambda: self.server.connect(service)))
        return f"{address[0]}:{address[1]}"

    # --- clients

    def producer(self, **options: Any) -> Producer:
        """Return a producer of this broker. The broker closes it. `options`: the options of the class
        Producer."""
        producer = Producer(self.producers, **options)
        self._clients.append(producer)
        return producer

    def consumer(
        self,
        group: str,
        topics: str | Sequence[str] = (),
        handler: Callable[..., object] | None = None,
        **options: Any,
    ) -> Consumer:
        """Return a consumer of this broker, started if it has a handler; the broker stops it when it closes.

        The arguments are those of the class, without `proxies`. A group that does not exist is created, and
        starts at the first message (`start`). OptionError if `group` and `topics` seem to be exchanged.
        """
        self.record_names(group, topics)
        handler, options = self.running.count_calls(handler, options)
        consumer = Consumer(self.consumers, group, topics, handler=handler, **options)
        self._clients.append(consumer)
        if self.record_handling(consumer, handler, options):
            consumer.start()
            self._wait(lambda: self.arrival_reason(consumer, group), TIMEOUT_S)
        return consumer

    def record_handling(
        self, consumer: Consumer | AsyncConsumer, handler: object, options: Mapping[str, object]
    ) -> bool:
        """Return whether a consumer has a handler; record a consumer without one, for which nothing waits."""
        is_handling = handler is not None or options.get("batch_handler") is not None
        if not is_handling:
            self._pull_clients.add(consumer.client_id)
        return is_handling

    def record_names(self, group: str, topics: str | Sequence[str]) -> None:
        """Record the names of a new consumer. Raises OptionError if group and topic seem to be exchanged."""
        names = topic_names(topics)
        self._check_names(group, names)
        self._subscriptions.add((group, names))

    def check_subscriptions(self) -> None:
        """Raise OptionError if the names of a consumer seem to be exchanged, now that topics were sent to."""
        for group, topics in self._subscriptions:
            self._check_names(group, topics)

    def _check_names(self, group: str, topics: Collection[str]) -> None:
        """Raise OptionError if a consumer's group and topics are probably in the wrong order, by existing
        names."""
        existing, groups = self.server.list_topics(), self.server.list_groups()
        missing = [topic for topic in topics if topic not in existing]
        if not missing or len(missing) < len(topics):
            return
        if group in existing:
            reason = f"{group!r} is a topic, and {missing[0]!r} is none"
        elif missing[0] in groups and group not in groups:
            reason = f"{missing[0]!r} is a group, and no topic"
        else:
            return
        raise OptionError(
            f"consumer(group={group!r}, topics={missing[0]!r}): {reason}; allowed: consumer(group, topics,"
            f" handler), in the order of Consumer. If the names are right: create_topic({missing[0]!r}) first"
        )

    def busy_reason(self) -> str:
        """Return a text that names the work that a client has still to do; "" if all clients are waiting."""
        reason: str = self.server.busy_reason(self._pull_clients)
        return reason or ("a handler has not returned" if self.running.calls else "")

    def arrival_reason(self, consumer: Consumer | AsyncConsumer, group: str) -> str:
        """Return a text that explains why a started consumer does not pull yet; "" if it pulls.

        Raises ClientError if its pulls were rejected.
        """
        if consumer.client_id in self.server.list_clients(group):
            return ""
        if consumer.last_error is not None:
            raise ClientError(consumer.last_error)
        return f"consumer {consumer.client_id} has not pulled yet"

    # --- topics and groups

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic, as the first send to it would do. An existing topic is not changed."""
        with self._translate_rejections():
            self.server.create_topic(topic, queues)

    def create_group(self, group: str, topic: str | Sequence[str], **settings: Any) -> None:
        """Create a group's subscription to a topic or several, or change it, as `ddmq group set` does.

        `settings`: order_key, retry_intervals_ms, retry_steps, on_dead_letter … (docs/configuration.md).
        """
        if settings.get("actions"):
            raise OptionError(
                f"actions={settings['actions']!r}; allowed: none, the test broker pushes nothing"
            )
        names = topic_names(topic)
        if not names:
            raise OptionError(f"topic={topic!r}; allowed: a name, or a list of at least one")
        check_group_settings(settings)
        with self._translate_rejections():
            for name in names:
                self.server.set_group(group, name, {"start": "first", **settings})

    def park(self, group: str, key: str) -> None:
        """Deliver nothing of an order key until it is replayed."""
        self._act_on_key(group, "park", key)

    def skip(self, group: str, key: str) -> None:
        """Make the head of a blocked order key a dead letter; the messages behind it go on."""
        self._act_on_key(group, "skip", key)

    def replay(self, group: str, key: str) -> None:
        """Deliver the head of a blocked or parked order key now, and count its attempts from zero."""
        self._act_on_key(group, "replay", key)

    def _act_on_key(self, group: str, action: str, key: str) -> None:
        with self._translate_rejections():
            self.server.act_on_key(group, action, key)

    @contextmanager
    def _translate_rejections(self) -> Iterator[None]:
        """Raise OptionError in place of the server's rejections."""
        try:
            yield
        except self.server.rejection as error:
            raise OptionError(str(error)) from error

    # --- running

    def run_until_idle(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until no handler runs and every consumer has pulled all messages available now. Time does not
        pass.

        What waits for its time, a delay or a retry, is not waited for: see `clock.advance` and `join`. A
        consumer without a handler is not either. BusyBrokerError when the time is up first; ClientError in a
        handler, because it would wait for that handler to return.
        """
        self.running.check_outside("run_until_idle")
        self._flush(timeout_s)
        self.check_subscriptions()
        self._wait(self.busy_reason, timeout_s)

    def join(self, topic: str, timeout_s: float = TIMEOUT_S) -> None:
        """Let time pass until every message of the topic is finished, or a dead letter.

        That is in each group that has a consumer. Delayed messages are not waited for. BusyBrokerError where
        it takes more than 30 days, for example because a key is parked; OptionError if there is no such
        topic; ClientError in a handler.
        """
        self.running.check_outside("join")
        for _ in self.join_steps(topic):
            self.run_until_idle(timeout_s)

    def pass_time(self, by: timedelta) -> Iterator[None]:
        """Let time pass; at each yield the clients should come to rest."""
        server = self.server
        duration_ms("by", by, 0)  # raises OptionError for what is none
        until = server.clock.monotonic() + by.total_seconds()
        yield
        while server.clock.monotonic() < until:
            server.step_time(until)
            yield
        if server.next_event() <= until + LAST_MS:
            server.step_time(until + LAST_MS)
            yield

    def join_steps(self, topic: str) -> Iterator[None]:
        """Yield before each step in which `join` lets time pass; the caller runs the clients meanwhile."""
        server = self.server
        until = server.clock.monotonic() + JOIN_MAX.total_seconds()
        yield
        self._check_topic(topic)  # only now: the first step sends what waits in a producer
        while reason := server.waiting_for_retry(topic):
            if server.clock.monotonic() >= until or server.next_event() > until:
                raise BusyBrokerError(
                    f"topic {topic} is not finished: {reason}{self._describe_parked(topic)}"
                )
            server.step_time(until)
            yield

    def _describe_parked(self, topic: str) -> str:
        """Return the parked keys of a topic, and what a test can do with them; "" if there are none."""
        keys = [
            f"{key.key} of group {group} is parked" + (f" ({key.error})" if key.error else "")
            for group in self.server.list_groups()
            for key in self.blocked_keys(group)
            if key.topic == topic and key.state == "parked"
        ]
        if not keys:
            return ""
        more = f" and {len(keys) - PARKED_SHOWN_MAX} more" if len(keys) > PARKED_SHOWN_MAX else ""
        text = ", ".join(keys[:PARKED_SHOWN_MAX])
        return f"; key {text}{more}; allowed: replay or skip it, or clock.advance(...) in place of join"

    def _wait(self, find_reason: Callable[[], str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while reason := find_reason():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise BusyBrokerError(f"the broker is not idle after {timeout_s:g} s: {reason}")
            self.server.wait_for_change(min(remaining, CHANGE_S))

    def _flush(self, timeout_s: float) -> None:
        for client in self._clients:
            if isinstance(client, Producer):
                with suppress(ClientError):
                    client.flush(int(timeout_s * 1000))

    # --- reading the state

    def messages(self, topic: str) -> list[MessageView]:
        """Return every message of a topic, consumed or not, in the order in which they were stored.

        OptionError if there is no such topic.
        """
        self._check_topic(topic)
        return [view_of(MessageView, row) for row in self.server.list_messages(topic)]

    def dead_letters(self, group: str) -> list[DeadLetterView]:
        """The dead letters of a group, oldest first. OptionError if there is no such group."""
        rows = self.server.dead_letters(group) if self._has_group(group) else ()
        return [view_of(DeadLetterView, row) for row in rows]

    def delayed_messages(self) -> list[DelayedMessageView]:
        """The delayed messages that wait, the one that is due first first. Not those of a delay level."""
        return [view_of(DelayedMessageView, row) for row in self.server.waiting_delays()]

    def blocked_keys(self, group: str) -> list[KeyView]:
        """The order keys of a group whose head is not finished. OptionError if there is no such group."""
        rows = self.server.blocked_keys(group) if self._has_group(group) else ()
        return [view_of(KeyView, row) for row in rows]

    def group_lag(self, group: str, topic: str) -> int:
        """Count the messages of a topic that a group has not finished, without those on the retry path.

        OptionError if there is no such group.
        """
        self._has_group(group)
        return sum(each.lag for each in self.server.list_stats(group) if each.topic == topic)

    def _has_group(self, group: str) -> bool:
        """Return whether a group exists: not before its first pull. OptionError for a name of no consumer."""
        groups = self.server.list_groups()
        names = {*groups, *(name for name, _ in self._subscriptions)}
        if group not in names:
            raise OptionError(f"group {group!r} does not exist; groups: {', '.join(sorted(names)) or 'none'}")
        return group in groups

    def _check_topic(self, topic: str) -> None:
        """Raise OptionError for a topic that neither exists nor is subscribed to."""
        server = self.server
        if topic.startswith(GROUP_TOPICS) or topic in server.list_topics():
            return
        topics = {*server.list_topics(internal=False)}
        topics.update(*(names for _, names in self._subscriptions))
        topics.update(each.topic for group in server.list_groups() for each in server.list_stats(group))
        if topic not in topics:
            raise OptionError(
                f"topic {topic!r} does not exist; topics: {', '.join(sorted(topics)) or 'none'}."
                f" If the name is right: create_topic({topic!r}) first"
            )

    # --- the end

    def close(self) -> None:
        """Stop all clients that this broker created, then the broker itself."""
        if self._is_closed:
            return
        self._is_closed = True
        for client in reversed(self._clients):
            if isinstance(client, Producer):
                client.close(1_000)
            else:
                client.stop(1_000)
        self.server.close()
        for address in (self.producers, self.consumers):
            host, _, port = address.rpartition(":")
            remove_proxy((host, int(port)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncBroker(BrokerClients):
    """A broker's clients and waits for asyncio. What TestBroker shows never blocks: use it as it is."""

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker

    def producer(self, **options: Any) -> AsyncProducer:
        """Return a producer; close it, or use it in an `async with`."""
        return AsyncProducer(self._broker.producers, **options)

    async def consumer(
        self,
        group: str,
        topics: str | Sequence[str] = (),
        handler: Callable[..., object] | None = None,
        **options: Any,
    ) -> AsyncConsumer:
        """Return a consumer, started if it has a handler; stop it. Else as TestBroker's."""
        broker = self._broker
        broker.record_names(group, topics)
        handler, options = broker.running.count_calls(handler, options)
        consumer = AsyncConsumer(broker.consumers, group, topics, handler=handler, **options)
        if broker.record_handling(consumer, handler, options):
            await consumer.start()
            await self._wait(lambda: broker.arrival_reason(consumer, group), TIMEOUT_S)
        return consumer

    async def run_until_idle(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait as TestBroker.run_until_idle does."""
        self._broker.running.check_outside("run_until_idle")
        self._broker.check_subscriptions()
        await self._wait(self._broker.busy_reason, timeout_s)

    async def advance(self, by: timedelta, *, timeout_s: float = TIMEOUT_S) -> None:
        """Let time pass as BrokerClock.advance does."""
        self._broker.running.check_outside("advance")
        for _ in self._broker.pass_time(by):
            await self.run_until_idle(timeout_s)

    async def join(self, topic: str, timeout_s: float = TIMEOUT_S) -> None:
        """Let time pass as TestBroker.join does."""
        self._broker.running.check_outside("join")
        for _ in self._broker.join_steps(topic):
            await self.run_until_idle(timeout_s)

    async def _wait(self, find_reason: Callable[[], str], timeout_s: float) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        deadline = loop.time() + timeout_s
        stop = self._broker.server.watch_changes(lambda: loop.call_soon_threadsafe(changed.set))
        try:
            while True:
                changed.clear()
                reason = find_reason()
                if not reason:
                    return
                remaining = deadline - loop.time()
                if remaining <= 0:
                    raise BusyBrokerError(f"the broker is not idle after {timeout_s:g} s: {reason}")
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(remaining, CHANGE_S)):
                        await changed.wait()
        finally:
            stop()
