"""The answers of requests about groups and their keys; answers.py says what these Structs are for."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ddmq.server.http.parameters import Answer

Settings = Annotated[
    dict[str, Any], Meta(description="settings by name: keys of `defaults` in proxy_consumer.yaml")
]


class SubscriptionFigures(Answer):
    """A group's use of one topic. The fields that begin with `retry_` are null if they are not known."""

    group: str
    topic: str
    lag: int
    in_flight: int
    retrying: int
    retry_lag: int
    ack_span: int
    waiters: int
    dead_letters: int
    dead_letters_open: int
    dead_letters_since_start: int
    order_key: str
    retry_waiting: int | None
    retry_waiting_whole: bool | None
    retry_oldest_s: float | None
    retry_next_s: float | None


class SubscriptionRow(SubscriptionFigures):
    """A row of the listing of subscriptions. `clients`: those that are connected here and pull the topic."""

    clients: int


class SubscriptionLag(SubscriptionRow):
    """A subscription with its lag age and rates."""

    delivered_per_s: float | None
    acked_per_s: float | None
    lag_age_s: float | None
    consumed: bool | None


class GroupQueueRow(Answer):
    """The progress of a subscription on one queue. `holder`: the proxy that owns the queue."""

    queue: int
    qid: str
    committed: int
    next: int
    lag: int
    in_flight: int
    retrying: int
    ack_span: int
    held: bool
    lag_age_s: float | None
    holder: str | None


class SubscriptionDetail(SubscriptionFigures):
    """A subscription with its settings and queues."""

    delivered_per_s: float | None
    acked_per_s: float | None
    lag_age_s: float | None
    consumed: bool | None
    order_scope: str
    order_merged: bool
    filter: str
    source: str
    set_here: list[str]
    settings: Settings
    inconsistent: int
    push_fault: str
    queues: list[GroupQueueRow]


class GroupClientRow(Answer):
    """A client that consumes for the group at this proxy."""

    client_id: str
    address: str
    since_ms: int
    idle_s: float
    topics: list[str]
    in_flight: int
    connected: bool


class DifferenceRow(Answer):
    """A client that subscribes differently from its group."""

    topic: str
    client_id: str
    what: str
    since_ms: int


class StalledRow(Answer):
    """Queues of the group that make no progress."""

    topic: str
    queues: list[int]
    seconds: float
    held_up_by: list[str]


class BlockedKeyRow(Answer):
    """A key whose first message is unfinished. The last four fields are about the lease of that message."""

    key: str
    topic: str
    queue_id: int
    offset: int
    since_ms: int
    attempts: int
    state: str
    error: str
    waiting: int
    more: bool
    reason: str
    client: str
    address: str
    leased_ms: int
    until_ms: int
    extended: bool


class KeyHeadRow(BlockedKeyRow):
    """The first message of a key before an action, and the outcome of the action."""

    outcome: str


class KeyActionAnswer(Answer):
    """An action on a key. `parked`: the key was parked before."""

    group: str
    key: str
    action: str
    parked: bool
    heads: list[KeyHeadRow]


class GroupAnswer(Answer):
    """A consumer group with its subscriptions, its clients at this proxy and its blocked keys."""

    group: str
    source: str
    created_ms: int
    waiters: int
    dead_letters_open: int
    subscriptions: list[SubscriptionDetail]
    clients: list[GroupClientRow]
    clients_more: int
    differences: list[DifferenceRow]
    stalled: list[StalledRow]
    blocked_keys: list[BlockedKeyRow]
    blocked_keys_more: bool


class GroupShownAnswer(GroupAnswer):
    """A group whose keys were loaded. `blocked_keys_error`: why `blocked_keys` may lack some."""

    blocked_keys_error: str


class GroupCreatedAnswer(GroupAnswer):
    """A group after subscribing to topics. `subscribed`: the topics that are new to it."""

    created: bool
    subscribed: list[str]
    notes: list[str]


class SettingChanged(Answer):
    """A setting before and after a change."""

    key: str
    before: Any
    after: Any


class SubscriptionChangedAnswer(Answer):
    """The effect of changing a subscription."""

    group: str
    topic: str
    created: bool
    changed: list[SettingChanged]
    settings: Settings
    set_here: list[str]
    notes: list[str]
