"""The answers of requests about groups and their keys; answers.py says what these Structs are for."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from ddmq.server.admin.contract.forms import OptionalNumber, OptionalText, OptionalTime
from ddmq.server.admin.lag.causes import LagCause
from ddmq.server.http.parameters import Answer

Settings = Annotated[
    dict[str, Any], Meta(description="settings by name: keys of `defaults` in proxy_consumer.yaml")
]


class SubscriptionFigures(Answer):
    """A group's use of one topic. The fields that begin with `retry_` are null if they are not known.

    `paused_since_ms`: null if it is not paused.
    """

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
    order_key: OptionalText
    paused: bool
    paused_since_ms: int | None
    retry_waiting: int | None
    retry_waiting_whole: bool | None
    retry_oldest_s: float | None
    retry_next_s: float | None


class SubscriptionRow(SubscriptionFigures):
    """A row of the listing of subscriptions. `clients`: those that are connected here and pull the topic."""

    clients: int


class SubscriptionRates(SubscriptionFigures):
    """A group's use of one topic, with its lag age and its rates."""

    delivered_per_s: float | None
    acked_per_s: float | None
    lag_age_s: float | None
    consumed: bool | None
    unfinished: int | None
    arriving_per_s: float | None
    finished_per_s: float | None
    drain_s: float | None
    why: LagCause | None


class SubscriptionLag(SubscriptionRates):
    """A subscription with its lag age and rates; null: not known, or there is none.

    `unfinished`: the lag without finished and deleted messages. `drain_s`: until none is unfinished, at these
    rates. `why`: the cause of unfinished messages. `clients`: as in SubscriptionRow.
    """

    clients: int


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


class SubscriptionDetail(SubscriptionRates):
    """A subscription with its settings and queues."""

    order_scope: str
    order_merged: bool
    filter: OptionalText
    source: str
    set_here: list[str]
    settings: Settings
    inconsistent: int
    push_fault: OptionalText
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
    topic: OptionalText
    queue_id: OptionalNumber
    offset: OptionalNumber
    since_ms: OptionalTime
    attempts: int
    state: str
    error: OptionalText
    waiting: int
    more: bool
    reason: OptionalText
    client: OptionalText
    address: OptionalText
    leased_ms: OptionalTime
    until_ms: OptionalTime
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
    undo: str | UnsetType = UNSET


class GroupKeyRow(Answer):
    """A blocked or parked key of one of the groups. A parked key need not have a message.

    `failing_since_ms`: null if it is not failing. The last four fields before `error_class` are about the
    lease of its first message.
    """

    group: str
    key: str
    topic: str | None
    queue_id: int | None
    offset: int | None
    since_ms: int | None
    attempts: int
    state: str
    error: OptionalText
    waiting: int
    more: bool
    reason: OptionalText
    client: OptionalText
    address: OptionalText
    leased_ms: int | None
    until_ms: int | None
    extended: bool
    error_class: OptionalText
    failing_since_ms: int | None


class KeyErrorRow(Answer):
    """The keys with one error class. `waiting`: the messages behind their first ones; `more`: there are more;
    `failing_since_ms`: of the key that has been failing longest."""

    error: OptionalText
    keys: int
    waiting: int
    more: bool
    failing_since_ms: int | None


class MissingQueuesRow(Answer):
    """Queues with unfinished messages whose keys are not known here. `holder`: the proxy that knows them."""

    group: str
    topic: str
    queues: list[int]
    why: str
    holder: str | None


class KeysAnswer(Answer):
    """Blocked and parked keys of all groups, and the number of those that match (`total`) by error class.

    `complete`: this request has examined all keys that are known here; `exact`: and there are no others.
    `by_error_others`: keys with other errors; `missing_more`: further rows of `missing`, and groups that were
    not looked up.
    """

    keys: list[GroupKeyRow]
    next: str | None
    total: int
    complete: bool
    exact: bool
    by_error: list[KeyErrorRow]
    by_error_others: int
    missing: list[MissingQueuesRow]
    missing_more: int


class KeysListing(Answer):
    """The number of keys behind the beginning of the page that match (`counted`), by error class, and the
    queues whose keys are not known here.

    `by_error_others`: keys with other errors; `missing_queues_more`: further rows of `missing_queues`, and
    groups that were not looked up.
    """

    counted: int
    by_error: list[KeyErrorRow]
    by_error_others: int
    missing_queues: list[MissingQueuesRow]
    missing_queues_more: int


class GroupAnswer(Answer):
    """A consumer group with its subscriptions, its clients at this proxy and its blocked keys."""

    group: str
    source: str
    created_ms: OptionalTime
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

    blocked_keys_error: OptionalText


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
    paused: bool
    set_here: list[str]
    notes: list[str]
    undo: str | UnsetType = UNSET
