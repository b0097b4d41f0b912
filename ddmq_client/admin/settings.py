"""The settings of topics and subscriptions that the admin clients take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, get_args

from ddmq_client.errors import OptionError


class TopicSettings(TypedDict, total=False):
    """The settings of a topic.

    On creation, absent ones are the server's defaults; on a change, they stay unchanged.
    """

    queues: int
    durability: Literal["sync", "written", "replicated"]
    readable: bool
    writable: bool
    delay: Literal["both", "none", "only"]
    delay_dialects: Sequence[str]
    body_bytes_max: int
    trace_one_in: int
    hold_delays: bool  # no delayed message fires; also of a topic that a file declares
    replication_factor: int  # this and the next two on Kafka alone
    min_insync: int
    retention_ms: int


class GroupSettings(TypedDict, total=False):
    """The settings of a subscription; conf/proxy_consumer.yaml explains them.

    On creation, absent ones are the server's defaults; on a change, they stay unchanged.
    """

    ack_timeout_ms: int
    concurrency: int
    retrying_max: int
    in_flight_bytes_max: int
    batch_max: int
    ack_span_max: int
    rate_max: int
    retry_intervals_ms: Sequence[int]
    max_timeout_redeliveries: int
    retry_steps: int
    order_key: str
    order_scope: Literal["", "group", "topic", "queue"]
    chain_batch: int
    ordered_interval_ms: int
    ordered_deliveries_max: int
    on_dead_letter: Literal["dead_letter", "park"]
    tags: str
    sql: str
    pressure_traffic: bool
    start: Literal["first", "last"] | datetime
    model: Literal["clustering", "broadcasting"]
    assignment: Literal["averagely", "by-circle", "consistent-hash"]
    handover_wait_ms: int
    trace_one_in: int
    actions: Sequence[str]
    push: Mapping[str, Any]
    paused: bool  # nothing is delivered; also of a subscription that a file declares


# The first four are those of groups, the others those of delayed messages and transactions.
DeadLetterReason = Literal[
    "failed", "timed-out", "given-up", "skipped",
    "topic gone", "refused", "unreadable", "unanswered", "too old", "too large", "damaged",
]  # fmt: skip
DEAD_LETTER_REASONS: tuple[str, ...] = get_args(DeadLetterReason)


class DeadLetterChoice(TypedDict, total=False):
    """Selects dead letters: those that match all stated fields."""

    reason: DeadLetterReason
    topic: str
    since: datetime


def check_reason(choice: DeadLetterChoice) -> None:
    """Raise OptionError if no dead letter can have the reason in `choice`."""
    if "reason" in choice and choice["reason"] not in DEAD_LETTER_REASONS:
        raise OptionError(f"reason={choice['reason']!r}; allowed: {', '.join(DEAD_LETTER_REASONS)}")
