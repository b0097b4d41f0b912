"""Settings of a consumer proxy and of one subscription; frozen, validated once.

The names of the subscription's fields are those of conf/groups.yaml, of `ddmq group set` (with dashes)
and of the stored settings: one word everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ddmq_common import names
from ddmq_common.config import Overlay, rules
from ddmq_common.trace.sampling import ONE_IN_MAX
from proxy_consumer.filters.message_filters import find_expression_error
from proxy_consumer.order_keys.reader import find_order_key_error
from proxy_consumer.push.actions.config import PUSH_SINKS, PushConfig
from proxy_consumer.push.actions.targets import AllowList

MIB = 1 << 20
_START_MS = re.compile(r"[0-9]{1,15}\Z")


def find_start_error(start: str) -> str:
    """Return the error text for a `start` value that is not allowed; "" if it is allowed."""
    if start in ("first", "last") or _START_MS.match(start):
        return ""
    return f"start is {start[:40]!r}; allowed: first, last, or epoch milliseconds"


@dataclass(frozen=True, slots=True)
class SubscriptionDefaults:
    """The settings of one group for one topic; also the defaults for subscriptions that set nothing.

    Leases: `ack_timeout_ms`; `concurrency`: how many messages may be leased at once. `retrying_max`: how many
    messages may wait for their retry. At either bound, and at `in_flight_bytes_max` and `ack_span_max`,
    nothing new is read.
    `rate_max`: messages delivered per second, redeliveries included; 0 = no limit.
    Retry: `retry_intervals_ms`: the waits after the first, second … failure; empty or a leading −1 = no quick
    retry, a last −1 repeats the interval before it for ever. `max_timeout_redeliveries`: −1 = no limit. After
    both are used up, a message gets `retry_steps` deliveries through `%RETRY%group` (0: it becomes a dead
    letter at once). With an order key it stays at the head of its chain instead: it is delivered every
    `ordered_interval_ms` after the quick retries, up to `ordered_deliveries_max` deliveries in all (−1 = no
    limit), and then becomes a dead letter; or, with `on_dead_letter`: park, it stays there undelivered until
    an operator replays or skips the key.
    Order: `order_key`: "" | QID | KEY | a JSONPath. `order_scope`: group | topic | queue; "" = group for KEY
    and JSONPath; QID is always queue. `chain_batch`: how many consecutive messages of one key one pull may
    return.
    Delivered messages: `tags` or `sql` (not both), `pressure_traffic`. `start`: first | last | epoch
    milliseconds as text: where the subscription starts in queues that exist when it is created.
    Several proxies: `model`, `assignment`; `handover_wait_ms`: how long the new owner of an ordered queue
    waits for the leases of an owner that died.
    `trace_one_in`: one message in this many is traced (docs/story.md); 0 = none.
    `actions`: the processing steps of a message, the sink last; empty = clients pull the messages
    (docs/push.md). `push`: settings of the actions.
    """

    ack_timeout_ms: int = field(default=30_000, metadata=rules(low=100, high=86_400_000))
    concurrency: int = field(default=1024, metadata=rules(low=1, high=1_000_000))
    retrying_max: int = field(default=10_000, metadata=rules(low=1, high=1_000_000))
    in_flight_bytes_max: int = field(default=100 * MIB, metadata=rules(low=1, high=1 << 40))
    batch_max: int = field(default=100, metadata=rules(low=1, high=10_000))
    ack_span_max: int = field(default=10_000_000, metadata=rules(low=1, high=1 << 40))
    rate_max: int = field(default=0, metadata=rules(low=0, high=100_000_000))
    retry_intervals_ms: tuple[int, ...] = field(
        default=(100, 150, 300), metadata=rules(low=-1, high=86_400_000)
    )
    max_timeout_redeliveries: int = field(default=16, metadata=rules(low=-1, high=1_000_000))
    retry_steps: int = field(default=16, metadata=rules(low=0, high=16))
    order_key: str = ""
    order_scope: str = field(default="", metadata=rules(choices=("", "group", "topic", "queue")))
    chain_batch: int = field(default=1, metadata=rules(low=1, high=10_000))
    ordered_interval_ms: int = field(default=1_000, metadata=rules(low=1, high=86_400_000))
    ordered_deliveries_max: int = field(default=16, metadata=rules(low=-1, high=1_000_000))
    on_dead_letter: str = field(default="dead_letter", metadata=rules(choices=("dead_letter", "park")))
    tags: str = "*"
    sql: str = ""
    pressure_traffic: bool = False
    start: str = "last"
    model: str = field(default="clustering", metadata=rules(choices=("clustering", "broadcasting")))
    assignment: str = field(
        default="averagely", metadata=rules(choices=("averagely", "by-circle", "consistent-hash"))
    )
    handover_wait_ms: int = field(default=0, metadata=rules(low=0, high=3_600_000))
    trace_one_in: int = field(default=0, metadata=rules(low=0, high=ONE_IN_MAX))
    actions: tuple[str, ...] = ()
    push: PushConfig = field(default_factory=PushConfig)

    def __post_init__(self) -> None:
        if self.actions:
            self._check_actions()
        error = find_expression_error(self.tags, self.sql) or find_order_key_error(self.order_key)
        if error is not None:
            raise ValueError(error)
        if -1 in self.retry_intervals_ms[1:-1]:
            raise ValueError(
                f"retry_intervals_ms is {list(self.retry_intervals_ms)}; -1 may only stand first or last"
            )
        if error := find_start_error(self.start):
            raise ValueError(error)
        if self.ordered_deliveries_max == 0:
            raise ValueError("ordered_deliveries_max is 0; allowed: 1 or more, or -1 for ever")
        if self.on_dead_letter == "park" and not self.order_key:
            raise ValueError(
                "on_dead_letter is park and order_key is blank; a key can only be parked where there is one: "
                "set order_key (QID, KEY or a JSONPath), or on_dead_letter: dead_letter"
            )
        if self.order_key and self.model == "broadcasting":
            raise ValueError(
                f"order_key is {self.order_key!r} and model is broadcasting; "
                "broadcasting keeps no order per key"
            )

    def _check_actions(self) -> None:
        from proxy_consumer.push.chain import build_chain  # CEL is loaded where actions are used

        build_chain(self.actions, self.push)
        if self.pushed and self.model == "broadcasting":
            raise ValueError(
                f"actions end with {self.actions[-1]} and model is broadcasting; "
                "pushed messages are divided among the proxies"
            )

    @property
    def pushed(self) -> bool:
        """Whether the proxy pushes the messages to a sink, so that no client pulls them."""
        return bool(self.actions) and self.actions[-1] in PUSH_SINKS

    @property
    def scope(self) -> str:
        """Return the scope of the chains: "" (unordered), queue, topic or group."""
        if not self.order_key:
            return ""
        return "queue" if self.order_key == "QID" else self.order_scope or "group"


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The settings of one consumer proxy. Each bound says what happens when it is reached.

    `auto_create_groups`: a pull that names a topic creates its group and subscription. `groups_max`,
    `subscriptions_per_group_max`, `subscriptions_max` (of all groups): at any of these bounds nothing new is
    created, and a pull that would create something gets code 15; existing subscriptions continue.
    `linger_max_ms`: the longest wait of a pull that finds no message.
    `answer_bytes_max`: the largest reply to a pull (at least one message is returned).
    `read_ahead_bytes_max`: bytes of messages read but not yet delivered, over all subscriptions.
    `advertise`: HOST:PORT at which other proxies reach this one, if it differs from the listening address
    (NAT).
    `idle_ms`: a subscription without a pull and without leases for this long releases its queues.
    `push_targets`: hosts, addresses, networks and URLs that AsyncHttp and Redis may use; empty = none.
    `secrets_dir`: the folder of the secrets that are written as `file:NAME`.
    `push_files_dir`: the folder in which the File action writes ("" = File is not available); messages fail
    once its files reach `push_files_bytes_max`.
    """

    auto_create_groups: bool = True
    groups_max: int = field(default=10_000, metadata=rules(low=1, high=1_000_000))
    subscriptions_per_group_max: int = field(default=256, metadata=rules(low=1, high=100_000))
    subscriptions_max: int = field(default=20_000, metadata=rules(low=1, high=10_000_000))
    linger_max_ms: int = field(default=30_000, metadata=rules(low=20, high=600_000))
    answer_bytes_max: int = field(default=4 * MIB, metadata=rules(low=1024, high=1 << 30))
    waiters_max: int = field(default=100_000, metadata=rules(low=1, high=10_000_000))
    read_ahead_bytes_max: int = field(default=64 * MIB, metadata=rules(low=0, high=1 << 34))
    fail_delay_max_ms: int = field(default=7_200_000, metadata=rules(low=0, high=86_400_000))
    idle_ms: int = field(default=60_000, metadata=rules(low=1_000, high=86_400_000))
    advertise: str = ""
    drain_leases_ms: int = field(default=1_000, metadata=rules(low=0, high=600_000))
    push_targets: tuple[str, ...] = ()
    secrets_dir: str = ""
    push_files_dir: str = ""
    push_files_bytes_max: int = field(default=10 << 30, metadata=rules(low=1 << 20, high=1 << 50))
    defaults: SubscriptionDefaults = field(default_factory=SubscriptionDefaults)

    linger_min_ms: ClassVar[int] = 20  # the shortest wait of an empty pull
    offsets_per_call_max: ClassVar[int] = 10_000  # acknowledged by one call; more are ignored and counted
    results_per_call_max: ClassVar[int] = 1_000  # elements of the linked list of results; the same
    read_ahead_count: ClassVar[int] = 128  # messages read at once for clients with small batches
    read_ahead_bytes: ClassVar[int] = MIB  # and their bytes
    commit_timeout_ms: ClassVar[int] = 10_000  # acknowledgements not stored by then get an error
    tick_ms: ClassVar[int] = 5  # how exact lingers, retries and lease deadlines are

    def __post_init__(self) -> None:
        AllowList(self.push_targets)


LIVE_KEYS = frozenset(  # keys of ConsumerConfig that a reload applies; the others apply at the next start
    {
        "auto_create_groups", "groups_max", "subscriptions_per_group_max", "subscriptions_max",
        "linger_max_ms", "waiters_max", "read_ahead_bytes_max", "fail_delay_max_ms", "idle_ms",
        "drain_leases_ms", "push_targets", "secrets_dir", "defaults",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One group of conf/groups.yaml; settings that a topic leaves out come from `defaults` in
    proxy_consumer.yaml."""

    topics: Mapping[str, Overlay[SubscriptionDefaults]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupsFile:
    """conf/groups.yaml: group → topics → settings."""

    groups: Mapping[str, GroupEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, entry in self.groups.items():
            errors = [names.find_group_name_error(name), *map(names.find_topic_name_error, entry.topics)]
            error = next((error for error in errors if error is not None), None)
            if error is not None:
                raise ValueError(f"groups: {name}: {error}")
