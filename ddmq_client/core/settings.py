"""Settings of producers and consumers: frozen, checked once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddmq_client.application.order_keys import unambiguous_order_keys
from ddmq_client.callables import ASYNC_CONSUMER, check_function
from ddmq_client.core.pipeline import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from ddmq_client.core.selectors import Selector
from ddmq_client.core.sending import ResendPolicy
from ddmq_client.errors import OptionError
from ddmq_client.serializers import Serializer, check_serializer

TIMEOUT_MS_MAX = 600_000
EXTEND_MS_MAX = 7 * 24 * 3600 * 1000
TEXT_MAX = 255
WORKERS_MAX = 1_024
BROADCASTING = "broadcasting"
MODELS = ("clustering", BROADCASTING)


def check(name: str, value: int, least: int, most: int) -> None:
    """Raise OptionError unless `value` is a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise OptionError(f"{name}={value!r}; allowed: a whole number from {least} to {most}")
    if not least <= value <= most:
        raise OptionError(f"{name}={value!r}; allowed: {least} to {most}")


def check_text(name: str, value: str) -> None:
    """Raise OptionError unless `value` is a text of 1 to 255 characters that UTF-8 can encode."""
    if not is_text(value) or not 1 <= len(value) <= TEXT_MAX:
        raise OptionError(f"{name}={value!r}; allowed: text of 1 to {TEXT_MAX} characters")


def check_order_key(order_key: str) -> None:
    """Raise OptionError unless `order_key` has the form of an order key; the proxy checks a JSONPath."""
    if not order_key or not is_text(order_key):
        raise OptionError(
            f"order_key={order_key!r}; allowed: 'KEY', 'QID', a JSONPath such as '$.order.id', or None"
        )
    if allowed := unambiguous_order_keys(order_key):
        raise OptionError(f"order_key={order_key!r}; {allowed}")


def check_handlers(awaits: bool, handler: object, batch_handler: object, workers: int) -> None:
    """Raise OptionError for both kinds of handler, one that this consumer cannot run, or too many workers."""
    check("concurrency" if awaits else "threads", workers, 1, WORKERS_MAX)
    if handler is not None and batch_handler is not None:
        raise OptionError("handler and batch_handler are both set; allowed: one of them, or none")
    check_function("handler", handler, awaits=awaits, instead=ASYNC_CONSUMER, argument="the message")
    check_function(
        "batch_handler", batch_handler, awaits=awaits, instead=ASYNC_CONSUMER, argument="the list of messages"
    )


def topic_names(topics: str | Sequence[str]) -> tuple[str, ...]:
    """Return one or several topic names as a tuple. Raises OptionError for anything else."""
    if isinstance(topics, str):
        return (topics,)
    if not isinstance(topics, Iterable):
        raise OptionError(f"topics={topics!r}; allowed: a name, or a list of names")
    return tuple(topics)


def is_text(value: object) -> bool:
    """Return whether the value is text that UTF-8 can encode."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of a producer; `ddmq_client.Producer` explains each."""

    timeout_ms: int = 3_000
    retry_unknown: bool = False
    attempts_max: int = 1_000
    connections_max: int = 64
    in_flight_max: int = 1_024
    async_workers: int = 4
    batch_bytes: int = BATCH_BYTES_MAX
    batch_messages: int = BATCH_MESSAGES_MAX
    selector: Selector = "hash"
    producer_group: str | None = None
    client_id: str = "client"
    idempotent: bool = True
    serializer: Serializer | None = None

    def __post_init__(self) -> None:
        check("timeout_ms", self.timeout_ms, 1, TIMEOUT_MS_MAX)
        if not isinstance(self.idempotent, bool):
            raise OptionError(f"idempotent={self.idempotent!r}; allowed: True, False")
        check_serializer(self.serializer)
        check("attempts_max", self.attempts_max, 1, 1_000)
        check("connections_max", self.connections_max, 1, 10_000)
        check("in_flight_max", self.in_flight_max, 1, 1_000_000)
        check("async_workers", self.async_workers, 1, 256)
        check("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_MAX)
        check("batch_messages", self.batch_messages, 1, 10_000)
        check_text("client_id", self.client_id)
        if self.producer_group is not None:
            check_text("producer_group", self.producer_group)

    def resend_policy(self) -> ResendPolicy:
        """The limits of resending."""
        return ResendPolicy(self.retry_unknown, self.attempts_max)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of a consumer; `ddmq_client.Consumer` explains each."""

    group: str
    topics: tuple[str, ...] = ()
    workers: int = 4
    max_batch: int = 32
    linger_ms: int = 500
    prefetch: int = 32
    lease_ms: int = 30_000
    ack_flush_ms: int = 50
    auto_ack: bool = True
    timeout_ms: int = 5_000
    results_max: int = 100_000
    tags: str | None = None
    sql: str | None = None
    extend_for_ms: int = 600_000
    model: str = "clustering"
    start: str | None = None
    order_key: str | None = None
    client_id: str = "client"
    serializer: Serializer | None = None

    def __post_init__(self) -> None:
        check_serializer(self.serializer)
        check_text("group", self.group)
        check("extend_for_ms", self.extend_for_ms, 0, EXTEND_MS_MAX)
        if self.model not in MODELS:
            raise OptionError(f"model={self.model!r}; allowed: {', '.join(MODELS)}")
        if self.broadcasting and (self.tags is not None or self.sql is not None):
            raise OptionError(
                "tags and sql do not exist with model='broadcasting': the subscription's filter holds"
            )
        if self.start is not None and (self.broadcasting or not self.topics):
            why = "with model='broadcasting'" if self.broadcasting else "without topics"
            raise OptionError(f"start is set {why}; allowed: beside topics, whose subscriptions a pull makes")
        if self.order_key is not None:
            check_order_key(self.order_key)
            if self.broadcasting:
                raise OptionError("order_key is set with model='broadcasting', which keeps no order per key")
        check("number of topics", len(self.topics), 0, 64)
        for topic in self.topics:
            check_text("topic", topic)
        check("workers", self.workers, 1, WORKERS_MAX)
        check("max_batch", self.max_batch, 1, 10_000)
        check("linger_ms", self.linger_ms, 1, 30_000)
        check("prefetch", self.prefetch, self.max_batch, 1_000_000)
        check("lease_ms", self.lease_ms, 10, TIMEOUT_MS_MAX)
        check("ack_flush_ms", self.ack_flush_ms, 1, 60_000)
        check("timeout_ms", self.timeout_ms, 1, TIMEOUT_MS_MAX)
        check("results_max", self.results_max, 1_000, 10_000_000)
        check_text("client_id", self.client_id)
        if self.tags is not None and self.sql is not None:
            raise OptionError("tags and sql are both set; allowed: one of them")
        for name, value in (("tags", self.tags), ("sql", self.sql)):
            if value is not None and not is_text(value):
                raise OptionError(f"{name}={value!r}; allowed: text, or None")

    @property
    def keeps_leases(self) -> bool:
        """Whether leases are extended while a handler runs."""
        return self.extend_for_ms > 0 and not self.broadcasting

    @property
    def broadcasting(self) -> bool:
        """Whether every instance gets all messages."""
        return self.model == BROADCASTING
