"""The answers of requests about delayed messages; answers.py says what these Structs are for."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ddmq.server.admin.contract.forms import OptionalText
from ddmq.server.admin.contract.structs.answers import ByTopic, HealthAnswer
from ddmq.server.http.parameters import Answer

HeldTopics = Annotated[dict[str, int], Meta(description="the topics whose delays are held, with since when")]


class DelayShardRow(Answer):
    """A delay shard, as its owner describes it. `why`: why it does not fire."""

    shard: int
    epoch: int
    fires: bool
    why: OptionalText
    pending: int
    orders_waiting: int


class DelayStandbyRow(Answer):
    """A standby store of a delay shard."""

    shard: int
    warm: bool
    why: OptionalText


class DelayScopeAnswer(Answer):
    """The shards whose messages an answer lacks, because their owners have not answered or they are not open,
    and the topics whose delays are held."""

    elsewhere: list[int]
    not_open: list[int]
    held: HeldTopics


class DelayAnswer(DelayScopeAnswer):
    """The delayed messages that wait, by topic, and the shards."""

    health: HealthAnswer
    topics: ByTopic
    shards: list[DelayShardRow]
    standbys: list[DelayStandbyRow]
    set_aside: Annotated[dict[str, str], Meta(description="unavailable topics, with the reason of each")]
    pending: int


class DelayRow(Answer):
    """A delayed message that waits. `shard`, `offset`: where its command is, in the topic of delays. `held`:
    it does not fire until it is released. `error`: its record is damaged, so further fields are missing."""

    id: OptionalText
    due_ms: int
    shard: int
    offset: int
    topic: str
    occurrence: int
    message_id: str
    born_ms: int
    held: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET
    kind: int | UnsetType = UNSET
    repeats: OptionalText | UnsetType = UNSET
    key: OptionalText | UnsetType = UNSET
    tags: OptionalText | UnsetType = UNSET
    body_bytes: int | UnsetType = UNSET
    preview: str | UnsetType = UNSET


class DelaysAnswer(DelayScopeAnswer):
    """Delayed messages by due time. `orders_waiting`: commands that have not been ingested yet."""

    messages: list[DelayRow]
    next: str | None
    orders_waiting: int


class DelaysListing(DelayScopeAnswer):
    """The gaps of a list of delayed messages. `orders_waiting`: commands that have not been ingested yet."""

    orders_waiting: int


class DelayStateAnswer(Answer):
    """The state of a delayed message; while it waits, also the message."""

    uuid: str
    shard: int
    state: str
    at_ms: int | UnsetType = UNSET
    kept_until_ms: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    due_ms: int | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    occurrence: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    born_ms: int | UnsetType = UNSET
    held: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET
    kind: int | UnsetType = UNSET
    repeats: OptionalText | UnsetType = UNSET
    key: OptionalText | UnsetType = UNSET
    tags: OptionalText | UnsetType = UNSET
    body_bytes: int | UnsetType = UNSET
    properties: dict[str, str] | UnsetType = UNSET
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class DelayChangeAnswer(Answer, kw_only=True):
    """The outcome of a change of a delayed message. `fired_ms`: when it fired; `due_ms`: when it is due."""

    id: str
    outcome: str
    fired_ms: int | None
    due_ms: int | None
    text: str | UnsetType = UNSET


class DelayNotFoundAnswer(DelayChangeAnswer, kw_only=True):
    """The outcome of a change of a delayed message that is not known, or not any more."""

    error: str


class DelayCountAnswer(DelayScopeAnswer):
    """The number of delayed messages. `exact`: there are not more. `orders_waiting`: commands that have not
    been ingested yet."""

    topic: str | None
    count: int
    exact: bool
    orders_waiting: int
    next: str | None


class DueCount(Answer):
    """The number of delayed messages that are due in the step that begins at `from_ms`."""

    from_ms: int
    count: int


class DelayHistogramAnswer(Answer):
    """The number of delayed messages by due time, in steps of equal length.

    `from_ms`, `to_ms`, `step_ms`: null if no message waits and no range was requested. `before`, `after`: due
    before and after the range. `exact`: nothing is missing.
    """

    topic: str | None
    from_ms: int | None
    to_ms: int | None
    step_ms: int | None
    items: list[DueCount]
    before: int
    after: int
    total: int
    exact: bool
    missing: Annotated[dict[str, str], Meta(description="shards that are not counted, with the reasons")]


class DelayLevelRow(Answer):
    """A delay level of RocketMQ, with the number of messages that wait there."""

    level: int
    delay_ms: int
    waiting: int


class DelayBackupAnswer(Answer):
    """A backup of the delay service: its folder, and the number of its shards."""

    folder: str
    shards: int
