"""The producer proxy's configuration: one frozen object, read once (conf/proxy_producer.yaml).

Every bound of the proxy is a field here. Units stand last in the name: `_ms` milliseconds, `_s` seconds,
`_bytes` bytes (YAML may write 2MiB), `_per_s` per second. A rate of 0 means: no such limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ddmq_common.config import rules
from ddmq_common.delays.schedules import PERIOD_MS_MIN
from ddmq_common.names import QUEUES_DEFAULT, find_topic_name_error
from proxy_producer.core.dialects import select_dialects


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The rate limit of one topic or of a whole proxy, in messages and bytes per second, with a burst after a
    pause."""

    messages_per_s: float = field(default=0.0, metadata=rules(low=0.0))
    bytes_per_s: float = field(default=0.0, metadata=rules(low=0.0))
    burst_ms: int = field(default=1_000, metadata=rules(low=1, high=60_000))
    """The burst, as the time in which the rate would allow it: 1,000 ms at 500/s is a burst of 500."""


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """Limits for the delays that sendDelaySync accepts."""

    period_ms_min: int = field(default=PERIOD_MS_MIN, metadata=rules(low=1_000, high=86_400_000))
    """The shortest period of a schedule with a repeat: one message of a client is one write so often."""
    delay_s_max: int = field(default=62 * 86_400, metadata=rules(low=1, high=100 * 365 * 86_400))
    """How far ahead a due time may lie, seconds (62 days). At most 100 years: ids have ten digits for it."""
    occurrences_max: int = field(default=1_000_000, metadata=rules(low=1, high=1_000_000))
    """Field `times` of a loop message. At most a million: deliveries are counted, and get ids, modulo 2²⁰."""
    shards: int = field(default=16, metadata=rules(low=1, high=1_024))
    """Shard numbers that ids may carry (code 34 for others): as many as the delay service has, or an old
    delay server had whose ids are still cancelled. How many there are is said by the delay service."""
    absent_ms: int = field(default=10_000, metadata=rules(low=0, high=600_000))
    """For so long no delay service may be seen (a takeover, a restart) before delayed sends get code 21."""
    waiters_max: ClassVar[int] = 10_000
    """Callers that wait for the outcome of a cancel. Above: the command is stored, the answer "pending"."""
    dialects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By topic: whose delay properties mean a delay there (docs/delay.md); else they are ordinary ones."""


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Limits and intervals for transactions.

    Limits per shard are enforced by the proxy that owns the shard.
    """

    shards: int = field(default=16, metadata=rules(low=1, high=1_024))
    """Queues of the half topic when it is made; later it keeps what it has."""
    open_max: int = field(default=5_000, metadata=rules(low=2, high=1_000_000))
    """Transactions of one shard that are not decided; a producer group may have half of them. Above: 15."""
    messages_max: int = field(default=1_000, metadata=rules(low=1, high=4_096))
    """Messages of one transaction, as far as one proxy took them in. Above: code 11."""
    bytes_max: int = field(default=4 << 20, metadata=rules(low=1, high=4 << 20))
    """Their bodies, keys, tags and properties together. Above: code 11."""
    check_after_ms: int = field(default=60_000, metadata=rules(low=0, high=86_400_000))
    """After so long the producer group is asked how a transaction ended, unless its sender says otherwise."""
    check_interval_ms: int = field(default=60_000, metadata=rules(low=1, high=86_400_000))
    """Between two such checks."""
    checks_max: int = field(default=15, metadata=rules(low=1, high=1_000))
    """Checks of one transaction; after the last it goes to the dead letters."""
    age_ms_max: int = field(default=86_400_000, metadata=rules(low=1, high=30 * 86_400_000))
    """A transaction that is open for so long goes there, whoever was asked about it."""
    outcomes_max: int = field(default=10_000, metadata=rules(low=1, high=1_000_000))
    """Ended transactions of one shard that are remembered; older ones are looked up, where the engine can."""

    def __post_init__(self) -> None:
        if self.check_after_ms > self.age_ms_max:
            raise ValueError(
                f"transactions: check_after_ms is {self.check_after_ms}; allowed: at most age_ms_max"
                f" ({self.age_ms_max})"
            )


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """All settings of one producer proxy, with their defaults."""

    body_bytes_max: int = field(default=2 << 20, metadata=rules(low=1))
    """Largest body; a topic's own `body_bytes_max` goes before it. Above: code 11."""
    batch_bytes_max: int = field(default=4 << 20, metadata=rules(low=1))
    """Bodies of one batch together. Above: code 11."""
    batch_messages_max: int = field(default=4_096, metadata=rules(low=1, high=100_000))
    """Messages of one batch: a batch holds the event loop for about 4 µs a message. Above: code 11."""
    timeout_ms_max: int = field(default=10_000, metadata=rules(low=1, high=600_000))
    """The longest a send waits: sendAsync, sendBatchSync, and callers that give no timeout. Then code 12."""
    sweep_ms: ClassVar[int] = 5
    """How often overdue and deferred sends are looked for; an overdue one is answered up to this early."""

    auto_create_topics: bool = True
    """Create a topic on its first send; off: code 13."""
    queues_default: int = field(default=QUEUES_DEFAULT, metadata=rules(low=1, high=1_024))
    """Queues of a topic created on its first send."""
    topics_max: int = field(default=10_000, metadata=rules(low=1))
    """No topic is created by a send when the backend has this many. Above: code 15."""
    creations_max: ClassVar[int] = 64
    """Topics being created by this proxy at the same time. Above: code 15."""

    inflight_requests_max: int = field(default=20_000, metadata=rules(low=1))
    """Requests accepted and not yet settled by the backend. Above: code 15."""
    inflight_bytes_max: int = field(default=256 << 20, metadata=rules(low=1))
    """Their frames' bytes together. Above: code 15."""
    deferred_max: ClassVar[int] = 1_000
    """Requests that wait for a rate limit at the same time. Above: code 15."""
    defer_ms_max: int = field(default=100, metadata=rules(low=0, high=10_000))
    """Longest wait for a rate limit; never more than half of what the caller's timeout leaves."""

    rate: RateLimit = field(default_factory=RateLimit)
    """The whole proxy's limit."""
    topic_rate: RateLimit = field(default_factory=RateLimit)
    """Each topic's limit unless `topic_rates` names it."""
    topic_rates: Mapping[str, RateLimit] = field(default_factory=dict)
    """Limits by topic name; topics need not exist yet."""

    advertise: str = ""
    """HOST:PORT where other proxies reach this one; "": where it listens."""
    delay: DelayLimits = field(default_factory=DelayLimits)
    transactions: TransactionLimits = field(default_factory=TransactionLimits)

    def __post_init__(self) -> None:
        if self.body_bytes_max > self.batch_bytes_max:
            raise ValueError(
                f"body_bytes_max is {self.body_bytes_max}; allowed: at most batch_bytes_max"
                f" ({self.batch_bytes_max})"
            )
        for name, spoken in self.delay.dialects.items():
            if error := find_topic_name_error(name):
                raise ValueError(f"delay.dialects: {error}")
            select_dialects(spoken)
        for name in self.topic_rates:
            if error := find_topic_name_error(name):
                raise ValueError(f"topic_rates: {error}")


LIVE_KEYS = frozenset(  # those that a reload puts in force; the others wait for the next start
    {
        "body_bytes_max", "batch_bytes_max", "batch_messages_max", "timeout_ms_max", "auto_create_topics",
        "queues_default", "topics_max", "inflight_requests_max", "inflight_bytes_max",
        "defer_ms_max", "rate", "topic_rate", "topic_rates",
    }
)  # fmt: skip
