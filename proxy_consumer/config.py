"""What can be set at a consumer proxy and at one subscription; frozen, validated once.

The names of the subscription's fields are those of conf/groups.yaml, of `ddmq group set` (with dashes)
and of the stored settings: one word everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddmq_common import names
from ddmq_common.config.loader import rules

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SubscriptionDefaults:
    """One group's settings for one topic; as a whole, the defaults of subscriptions that set nothing.

    `retry_intervals_ms`: waits after the first, second … failure; empty or a leading −1 = no retry, a
    last −1 repeats the one before for ever. `max_timeout_redeliveries`: −1 = for ever. `concurrency`:
    messages leased at once. `retrying_max`: messages waiting for their retry; at either bound, and at
    `in_flight_bytes_max` and `ack_span_max`, nothing new is read. `start`: first | last | epoch
    milliseconds as text; where queues start that exist when the subscription is made.
    """

    ack_timeout_ms: int = field(default=30_000, metadata=rules(low=100, high=86_400_000))
    retry_intervals_ms: tuple[int, ...] = field(
        default=(100, 150, 300), metadata=rules(low=-1, high=86_400_000)
    )
    max_timeout_redeliveries: int = field(default=16, metadata=rules(low=-1, high=1_000_000))
    concurrency: int = field(default=1024, metadata=rules(low=1, high=1_000_000))
    retrying_max: int = field(default=10_000, metadata=rules(low=1, high=1_000_000))
    in_flight_bytes_max: int = field(default=100 * MIB, metadata=rules(low=1, high=1 << 40))
    batch_max: int = field(default=100, metadata=rules(low=1, high=10_000))
    ack_span_max: int = field(default=10_000_000, metadata=rules(low=1, high=1 << 40))
    pressure_traffic: bool = False
    tags: str = field(default="*", metadata=rules(choices=("", "*")))
    start: str = "last"

    def __post_init__(self) -> None:
        if -1 in self.retry_intervals_ms[1:-1]:
            raise ValueError(
                f"retry_intervals_ms is {list(self.retry_intervals_ms)}; -1 may only stand first or last"
            )
        if self.start not in ("first", "last") and not self.start.isdecimal():
            raise ValueError(f"start is {self.start!r}; allowed: first, last, or epoch milliseconds")


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """One consumer proxy. Every bound says what happens at it.

    `auto_create_groups`: a pull that names a topic makes its group and subscription. `groups_max`: at it
    a pull of a new group gets code 15. `linger_*`: the shortest and the longest wait of an empty pull.
    `answer_bytes_max`: an answer stops growing there (never below one message). `offsets_per_call_max`,
    `results_per_call_max`: what one call may acknowledge; the rest is ignored and counted.
    `read_ahead_*`: messages read but not yet delivered, per read and over all subscriptions.
    `idle_ms`: after that long without a pull, and nothing leased, a subscription gives up its queues.
    """

    auto_create_groups: bool = True
    groups_max: int = field(default=10_000, metadata=rules(low=1, high=1_000_000))
    subscriptions_per_group_max: int = field(default=256, metadata=rules(low=1, high=100_000))
    linger_min_ms: int = field(default=20, metadata=rules(low=1, high=1_000))
    linger_max_ms: int = field(default=30_000, metadata=rules(low=20, high=600_000))
    answer_bytes_max: int = field(default=4 * MIB, metadata=rules(low=1024, high=1 << 30))
    offsets_per_call_max: int = field(default=10_000, metadata=rules(low=100, high=10_000_000))
    results_per_call_max: int = field(default=1_000, metadata=rules(low=1, high=100_000))
    waiters_max: int = field(default=100_000, metadata=rules(low=1, high=10_000_000))
    read_ahead_count: int = field(default=128, metadata=rules(low=1, high=10_000))
    read_ahead_bytes: int = field(default=MIB, metadata=rules(low=1024, high=1 << 30))
    read_ahead_bytes_max: int = field(default=64 * MIB, metadata=rules(low=0, high=1 << 34))
    fail_delay_max_ms: int = field(default=7_200_000, metadata=rules(low=0, high=86_400_000))
    commit_timeout_ms: int = field(default=10_000, metadata=rules(low=100, high=600_000))
    idle_ms: int = field(default=60_000, metadata=rules(low=1_000, high=86_400_000))
    tick_ms: int = field(default=5, metadata=rules(low=1, high=1_000))
    drain_leases_ms: int = field(default=1_000, metadata=rules(low=0, high=600_000))
    defaults: SubscriptionDefaults = field(default_factory=SubscriptionDefaults)


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One group of conf/groups.yaml. What a topic does not set has the program's default."""

    topics: Mapping[str, SubscriptionDefaults] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupsFile:
    """conf/groups.yaml: group → topics → settings."""

    groups: Mapping[str, GroupEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, entry in self.groups.items():
            faults = [names.group_fault(name), *map(names.topic_fault, entry.topics)]
            fault = next((fault for fault in faults if fault is not None), None)
            if fault is not None:
                raise ValueError(f"groups: {name}: {fault}")
