"""The answers of searches that walk over stored messages within limits of time and number."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from ddmq.server.admin.contract.forms import OptionalText
from ddmq.server.admin.contract.structs.answers import GroupsReached, MessageRow
from ddmq.server.admin.contract.structs.live_answers import Missing
from ddmq.server.http.parameters import Answer

Total = Annotated[int | None, Meta(description="the number of all matches; null if it is not known")]


class MessagesFoundAnswer(Answer):
    """Messages of a topic that match. `scanned`: the number of messages that this request has examined.

    `exact`: this request has examined all messages of the requested time.
    """

    items: list[MessageRow]
    next: str | None
    total: Total
    exact: bool
    missing: Missing
    scanned: int


class RetryRow(Answer):
    """A message on the retry path. `queue`, `offset`: in its `topic`; `due_ms`: when it is or was due;
    `step`: the retries so far; `deliveries`: the deliveries so far; `error`: of the last one. `level`,
    `level_offset`: where it waits; absent if it is due."""

    group: str
    topic: str
    queue: int
    offset: int
    id: str
    key: OptionalText
    state: Literal["waiting", "due"]
    due_ms: int
    step: int
    deliveries: int
    since_ms: int
    error: OptionalText
    body_bytes: int
    level: int | UnsetType = UNSET
    level_offset: int | UnsetType = UNSET


class RetryOutcomeRow(Answer):
    """A message of a change. `reason`: why it stays as it is, if it is not changed."""

    offset: int
    id: str
    changed: bool
    reason: OptionalText


class RetriesChangedAnswer(Answer):
    """The outcome of a change of retries; with `dry_run`, what it would be. `changed`: the number of messages
    that are changed. `reaches`: the groups that they are delivered to, by topic."""

    changed: int
    items: list[RetryOutcomeRow]
    reaches: dict[str, GroupsReached]
    dry_run: bool


class RetriesListing(Answer):
    """The further key of a page of retries. `scanned`: the number of messages that a request has examined."""

    scanned: int


class RetriesAnswer(Answer):
    """Messages on the retry path of a group. `scanned`: the number of messages that this request has
    examined. `exact`: this request has examined all."""

    items: list[RetryRow]
    next: str | None
    total: Total
    exact: bool
    missing: Missing
    scanned: int
