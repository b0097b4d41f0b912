"""The topics that this proxy sends to: a cache by wire name, creation on first use, rate limits.

A CachedTopic has what one send needs of a topic; one dict lookup by the received bytes returns it. The
backend's watch (`topic/NAME`) keeps it current, and it is changed in place, so that its rate limits and its
round robin survive a change of settings. Only topics that exist are cached.

The first process that needs an internal topic (of the delay levels, the delay commands, their outcomes)
creates it, be it a delay service or a proxy. So a delayed message is stored also while no service runs, and
fires when one does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.port import Backend
from backend.records import AppendResult, NewRecord, TopicInfo
from backend.traces import Facts, TraceWriter, one_in_of
from ddmq_client.idl.codes import Code
from ddmq_common.clock import Clock
from ddmq_common.names import TRACE_PREFIX
from ddmq_common.queue_choice import choose_queue
from ddmq_common.token_bucket import CREATIONS_PER_S, TokenBucket, creations_bucket
from ddmq_common.trace.events import TraceKind
from ddmq_common.trace.sampling import OFF, is_sampled, limit_of
from ddmq_rpc.api import Call
from proxy_producer.config import ProducerConfig, RateLimit
from proxy_producer.core.rejections import SendRejection, build_rejection, to_rejection
from proxy_producer.core.validation import ContentLimits
from proxy_producer.counts import SendCounts


class TopicTrace:
    """Traces the sends of one topic.

    `limit`: the bound on message ids that are sampled (ddmq_common.trace.sampling).
    """

    __slots__ = ("_limit", "_topic", "_writer")

    def __init__(self, writer: TraceWriter, topic: str, limit: int) -> None:
        self._writer = writer
        self._topic = topic
        self._limit = limit

    def add_stored(
        self, call: Call, record: NewRecord, result: AppendResult, now_s: float, rate_delay: tuple[float, str]
    ) -> None:
        """Trace a message that was stored at `now_s`, if its id is sampled and it is not a duplicate.

        `rate_delay`: the seconds for which a rate limit delayed the message, and that limit's description.
        """
        if result.first is not None or not is_sampled(record.message_id, self._limit):
            return
        writer, now_ms = self._writer, self._writer.now_ms()
        sent_ms = now_ms - round((now_s - call.received_at) * 1_000)
        facts: Facts = {"topic": self._topic, "client": _client_of(call), "address": call.peer}
        if rate_delay[0]:
            facts |= {"held_ms": round(rate_delay[0] * 1_000), "held_by": rate_delay[1]}
        writer.add(record.message_id, TraceKind.SENT, "", facts, sent_ms)
        position: Facts = {"topic": record.topic, "queue": record.queue_id, "offset": result.offset}
        writer.add(record.message_id, TraceKind.STORED, "", position, now_ms)


def trace_of(backend: Backend, writer: TraceWriter | None, topic: str) -> TopicTrace | None:
    """Return the trace of a topic, or None if the topic is not traced."""
    limit = OFF if writer is None else limit_of(one_in_of(backend, topic))
    return None if writer is None or limit == OFF else TopicTrace(writer, topic, limit)


def _client_of(call: Call) -> str:
    """Return the sender's client id from the call's arguments."""
    args: Any = getattr(call.args, "request", call.args)  # a prepare has its messages there
    messages = getattr(args, "messages", None)
    message = (
        messages[0] if messages else getattr(args, "message", None) or getattr(args, "delayMessage", None)
    )
    client: bytes = getattr(message, "clientId", None) or b""
    return client.decode("utf-8", "replace")


class RateLimiter:
    """One rate limit with a token bucket for messages and one for bytes; None means unlimited.

    `what`: its name.
    """

    __slots__ = ("body_bytes", "messages", "what")

    def __init__(
        self, what: str, messages_per_s: float, bytes_per_s: float, burst_s: float, now: float
    ) -> None:
        self.what = what
        self.messages = TokenBucket(messages_per_s, messages_per_s * burst_s, now) if messages_per_s else None
        self.body_bytes = TokenBucket(bytes_per_s, bytes_per_s * burst_s, now) if bytes_per_s else None

    @property
    def open_always(self) -> bool:
        return self.messages is None and self.body_bytes is None

    def wait_s(self, messages: int, body_bytes: int, now: float) -> float:
        """Return the seconds until the limit admits `messages` more messages with `body_bytes`."""
        wait = self.messages.wait_s(messages, now) if self.messages else 0.0
        return max(wait, self.body_bytes.wait_s(body_bytes, now)) if self.body_bytes else wait

    def take_tokens(self, messages: int, body_bytes: int) -> None:
        if self.messages:
            self.messages.take_tokens(messages)
        if self.body_bytes:
            self.body_bytes.take_tokens(body_bytes)

    def describe(self) -> str:
        """Return a description of the limit for the text of a rejection."""
        limits = [f"{self.messages.rate:g} messages/s"] if self.messages else []
        limits += [f"{self.body_bytes.rate:g} bytes/s"] if self.body_bytes else []
        return f"{self.what} is limited to {' and '.join(limits)}"


def longest_wait(
    limiters: Sequence[RateLimiter], messages: int, body_bytes: int, now: float
) -> tuple[float, RateLimiter | None]:
    """Return the longest wait in seconds that any limiter demands, and that limiter (None if there is no
    wait)."""
    longest_s, slowest = 0.0, None
    for limiter in limiters:
        wait_s = limiter.wait_s(messages, body_bytes, now)
        if wait_s > longest_s:
            longest_s, slowest = wait_s, limiter
    return longest_s, slowest


_TOPIC_KEY = "topic/"


class TopicWaiter(Protocol):
    """A request that waits until its topic exists."""

    def topic_settled(self, name: str, topic: CachedTopic | SendRejection) -> None:
        """Continue with the topic, which exists now, or with the rejection of its creation."""


class CachedTopic:
    """The settings and counters of one topic that a send needs.

    `round_robin`: the next queue for a message that names none, unless it has a key and `by_key` is on; each
    send advances it. `trace`: None if the topic is not traced.
    """

    __slots__ = (
        "by_key", "counts", "limiters", "limits", "name", "plain_now", "queues", "round_robin",
        "takes_delayed", "takes_plain", "trace", "writable",
    )  # fmt: skip

    def __init__(
        self,
        info: TopicInfo,
        round_robin: int,
        limiters: tuple[RateLimiter, ...],
        counts: SendCounts,
        by_key: bool,
        trace: TopicTrace | None,
    ) -> None:
        self.name = info.name
        self.trace = trace
        self.round_robin = round_robin
        self.by_key = by_key
        self.limiters = limiters
        self.counts = counts.make_topic_counts(info.name)

    def update(self, info: TopicInfo, limits: ContentLimits) -> None:
        """Replace the cached settings with `info`."""
        self.queues = info.queues
        self.writable = info.writable
        self.takes_plain = info.delay != "only"
        self.plain_now = self.writable and self.takes_plain
        self.takes_delayed = info.delay != "none"
        self.limits = limits

    def choose_queue(self, key: bytes, partition_id: int, hash_id: int) -> int:
        """Return the queue for a message. Advance `round_robin` first, once for each call and topic."""
        return choose_queue(partition_id, hash_id, self.queues, self.round_robin, key if self.by_key else b"")

    def check_writable(self) -> SendRejection | None:
        """Return code 13 if the topic is not writable, else None."""
        if self.writable:
            return None
        return build_rejection(
            Code.TOPIC_REFUSED,
            "not_writable",
            f"topic {self.name!r} is not writable",
            "allowed: topics open to sends",
        )

    def check_plain_send(self, from_chronos: bool) -> SendRejection | None:
        """Return code 19 for a plain send to a topic for delayed messages, else None.

        Delay services may always send.
        """
        if self.takes_plain or from_chronos:
            return None
        what = f"topic {self.name!r} takes only delayed messages"
        return build_rejection(
            Code.TAKES_ONLY_DELAY, "only_delay", what, "allowed: sendDelaySync, or a delay property"
        )

    def check_delayed_send(self) -> SendRejection | None:
        """Return code 18 for a delayed send to a topic that accepts no delays, else None."""
        if self.takes_delayed:
            return None
        what = f"topic {self.name!r} takes no delayed messages"
        return build_rejection(Code.TAKES_NO_DELAY, "no_delay", what, "allowed: plain sends")


class _Creation(Completion[TopicInfo]):
    """A topic creation under way, and the requests that wait for it."""

    __slots__ = ("name", "table", "waiters")

    def __init__(self, table: TopicTable, name: str, waiter: TopicWaiter) -> None:
        super().__init__()
        self.table = table
        self.name = name
        self.waiters: list[TopicWaiter] = [waiter]

    def settled(self) -> None:
        self.table.on_created(self)


class TopicTable:
    """The cache of all topics of one producer proxy, with their creation and their rate limits."""

    def __init__(
        self,
        backend: Backend,
        config: ProducerConfig,
        clock: Clock,
        counts: SendCounts,
        random: Random,
        traces: TraceWriter | None = None,
    ) -> None:
        self._traces = traces
        self.cached: dict[bytes, CachedTopic] = {}
        self._backend = backend
        self._by_key = not backend.capabilities.topic_order
        self._config = config
        self._clock = clock
        self._counts = counts
        self._random = random
        self._creations: dict[str, _Creation] = {}
        self._creation_rate = creations_bucket(clock.monotonic())
        self._proxy_limiter = self._make_limiter("this proxy", config.rate)
        self.default_limits = self._read_limits(None)
        self._unwatch: Callable[[], None] = backend.watch_settings(self._on_setting, TRACE_PREFIX, _TOPIC_KEY)

    def close(self) -> None:
        self._unwatch()

    def reconfigure(self, config: ProducerConfig) -> None:
        """Use the limits of `config`. Where a rate changed, its token buckets start full."""
        before, self._config = self._config, config
        if config.rate != before.rate:
            self._proxy_limiter = self._make_limiter("this proxy", config.rate)
        self.default_limits = self._read_limits(None)
        for topic in self.cached.values():
            rates = [
                settings.topic_rates.get(topic.name, settings.topic_rate) for settings in (before, config)
            ]
            if config.rate != before.rate or rates[0] != rates[1]:
                topic.limiters = self._make_limiters(topic.name)
            info = self._backend.topic(topic.name)
            if info is not None:
                topic.update(info, self._read_limits(info))

    def find_topic(self, name: str) -> CachedTopic | None:
        """Return a topic from the cache or from the backend's memory; None if it does not exist."""
        topic = self.cached.get(name.encode())
        if topic is not None:
            return topic
        info = self._backend.topic(name)
        if info is None:
            return None
        start, limiters = self._random.randrange(1 << 16), self._make_limiters(name)
        trace = trace_of(self._backend, self._traces, name)
        topic = CachedTopic(info, start, limiters, self._counts, self._by_key, trace)
        topic.update(info, self._read_limits(info))
        self.cached[name.encode()] = topic
        return topic

    def check_creation(self, name: str) -> SendRejection | None:
        """Return why a send may not create topic `name` now; None if it may, or if the creation is under
        way."""
        config = self._config
        if not config.auto_create_topics:
            return build_rejection(
                Code.TOPIC_REFUSED,
                "topic_unknown",
                f"topic {name!r} does not exist",
                "allowed: topics created by an operator (creation on first use is off)",
            )
        if name in self._creations:
            return None
        if len(self._backend.topics()) >= config.topics_max:
            what = f"topic {name!r} does not exist and there are {config.topics_max} topics"
            return build_rejection(Code.BUSY, "topics_max", what, "no more are created by sends (topics_max)")
        if len(self._creations) >= config.creations_max:
            what = f"topic {name!r} does not exist and {config.creations_max} topics are being created"
            return build_rejection(Code.BUSY, "creations_max", what, "send it again (creations_max)")
        if self._creation_rate.wait_s(1, self._clock.monotonic()):
            what = f"topic {name!r} does not exist and sends have created many topics just now"
            return build_rejection(
                Code.BUSY, "creations_rate", what, f"send it again; {CREATIONS_PER_S} a second"
            )
        return None

    def create(self, name: str, waiter: TopicWaiter) -> None:
        """Create a topic and call `waiter.topic_settled` at the end, perhaps at once.

        Call check_creation first.
        """
        creation = self._creations.get(name)
        if creation is not None:
            creation.waiters.append(waiter)
            return
        creation = self._creations[name] = _Creation(self, name, waiter)
        self._creation_rate.take_tokens(1)
        info = TopicInfo(name, 0, self._config.queues_default)
        deadline = self._clock.monotonic() + self._config.timeout_ms_max / 1_000
        try:
            self._backend.put_topic(info, deadline, creation, self._config.topics_max)
        except BaseException:
            self._creations.pop(name, None)
            raise

    def on_created(self, creation: _Creation) -> None:
        """Finish a creation and notify its waiters in the order of their requests."""
        name = creation.name
        del self._creations[name]
        rejection = None if creation.error is None else to_rejection(creation.error)
        self._counts.count_created("failed" if rejection else "created")
        topic = rejection or self.find_topic(name)
        if topic is None:
            what = f"topic {name!r} was deleted meanwhile"
            topic = build_rejection(Code.NO_SUCH_QUEUE, "topic_missing", what, "send it again")
        for waiter in creation.waiters:
            waiter.topic_settled(name, topic)

    def _on_setting(self, key: str) -> None:
        if key.startswith(TRACE_PREFIX):
            self._update_trace(key.removeprefix(TRACE_PREFIX))
        if not key.startswith(_TOPIC_KEY):
            return
        name = key.removeprefix(_TOPIC_KEY)
        topic = self.cached.get(name.encode())
        if topic is None:
            return
        info = self._backend.topic(name)
        if info is None:
            del self.cached[name.encode()]
        else:
            topic.update(info, self._read_limits(info))

    def _update_trace(self, name: str) -> None:
        topic = self.cached.get(name.encode())
        if topic is not None:
            topic.trace = trace_of(self._backend, self._traces, name)

    def _read_limits(self, info: TopicInfo | None) -> ContentLimits:
        can = self._backend.capabilities
        body_max = self._config.body_bytes_max
        if info is not None and info.body_bytes_max is not None:
            body_max = info.body_bytes_max
        return ContentLimits(min(body_max, can.body_bytes_max), can.properties_bytes_max, can.forbidden_bytes)

    def _make_limiters(self, name: str) -> tuple[RateLimiter, ...]:
        config = self._config
        own = self._make_limiter(f"topic {name!r}", config.topic_rates.get(name, config.topic_rate))
        return tuple(limiter for limiter in (own, self._proxy_limiter) if not limiter.open_always)

    def _make_limiter(self, what: str, rate: RateLimit) -> RateLimiter:
        now = self._clock.monotonic()
        return RateLimiter(what, rate.messages_per_s, rate.bytes_per_s, rate.burst_ms / 1_000, now)


Ready = Callable[[SendRejection | None], None]


class InternalTopic:
    """An internal topic. This proxy creates it on first use, or extends it to the queues that are needed.

    `queues`: the number of queues, at least as many as this proxy needs. `ready`: the topic exists with all
    of them. The hot path reads both. `timeout_s`: time limit of the creation.
    """

    def __init__(self, backend: Backend, name: str, queues: int, clock: Clock, timeout_s: float) -> None:
        self._backend = backend
        self._name = name
        self._queues = queues
        self._clock = clock
        self._timeout_s = timeout_s
        # A list while the topic is being created; bounded like all calls in flight.
        self._waiting: list[Ready] | None = None
        self.queues = queues
        self.ready = False
        self._unwatch: Callable[[], None] = backend.watch_settings(self._on_setting, f"topic/{name}")
        self.refresh()

    def close(self) -> None:
        """Stop watching the topic."""
        self._unwatch()

    def _on_setting(self, key: str) -> None:
        if key == f"topic/{self._name}":
            self.refresh()

    def refresh(self) -> bool:
        """Update `queues` and `ready` from the backend's memory; return whether the topic is ready."""
        info = self._backend.topic(self._name)
        self.ready = info is not None and info.queues >= self._queues
        if info is not None:
            self.queues = max(self._queues, info.queues)
        return self.ready

    def when_ready(self, call: Ready) -> None:
        """Create the topic if necessary, then call `call(None)`, or `call(rejection)` if that fails.

        A ready topic calls at once.
        """
        if self.ready or self.refresh():
            call(None)
        elif self._waiting is not None:
            self._waiting.append(call)
        else:
            self._waiting = [call]
            deadline = self._clock.monotonic() + self._timeout_s
            ready_topic(self._backend, self._name, self._queues, deadline).then(self._on_created)

    def _on_created(self, creation: Completion[TopicInfo]) -> None:
        if creation.error is None:
            self.refresh()
        rejection = None if creation.error is None else to_rejection(creation.error)
        waiting, self._waiting = self._waiting or [], None
        for call in waiting:
            call(rejection)
