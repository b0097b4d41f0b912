"""The answers of requests, for their description in /openapi.json.

Handlers return plain dicts, which are never converted to these Structs: that would cost time on the loop that
carries messages. Tests hold the answers of a real server to them. A field without a default is in every
answer, a field that may be UNSET only in some, and null means that the value is not known or does not apply.
Times are epoch milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field

from ddmq.server.admin.contract.forms import OptionalText
from ddmq.server.admin.contract.structs.finding_answers import FindingsAnswer, UnevaluatedRule
from ddmq.server.admin.contract.structs.group_answers import SubscriptionRow
from ddmq.server.http.parameters import Answer

Counters = Annotated[
    dict[str, list[dict[str, Any]]],
    Meta(
        description="metrics by name: rows of labels with `value`, or with `count`, `mean`, `p50`, `p99` "
        "and `max`"
    ),
]
ByTopic = Annotated[dict[str, int], Meta(description="a number for each topic")]
MetricsText = Annotated[str, Meta(description="the metrics in Prometheus' text format")]
ExportText = Annotated[
    str, Meta(description="a JSON document a line: dead letters, and at the end `exported` and `next`")
]
Document = Annotated[dict[str, Any], Meta(description="an OpenAPI document")]


class ErrorAnswer(Answer):
    """The reason why a request was rejected or failed."""

    error: str


class EmptyAnswer(Answer):
    """An empty object: the change was made."""


class HealthAnswer(Answer, kw_only=True):
    """The health of the process. `reason`: why it is not ready."""

    ready: bool
    reason: OptionalText
    warning: str | UnsetType = UNSET


class AliveAnswer(HealthAnswer, kw_only=True):
    """The health of the process, which is alive."""

    alive: bool


class StatsAnswer(Answer):
    """Health, findings, topics, groups and counters; without `groups` if the consumer proxy is elsewhere."""

    health: HealthAnswer
    at_ms: int
    topics: list[TopicRow]
    counters: Counters
    silent_parts: Annotated[
        dict[str, str], Meta(description="processes that did not respond: name to admin address")
    ]
    findings: FindingsAnswer
    groups: list[SubscriptionRow] | UnsetType = UNSET


class UsageRow(Answer):
    """The usage of all processes of the server by one identity; `identity` is empty for clients without one.
    `requests`, `bytes`, `created` and `rejected` count since the start of each process."""

    identity: OptionalText
    connections: int
    requests: int
    bytes: int
    created: Annotated[int, Meta(description="topics and subscriptions that were made")]
    waiting_calls: int
    in_flight: int
    open_transactions: int
    pending_delays: int
    idempotency_keys: int
    producers: int
    rejected: Annotated[dict[str, int], Meta(description="a number for each quota")]


class ServerFindingsAnswer(FindingsAnswer, kw_only=True):
    """The findings of the server, and the health of the process that answers."""

    health: HealthAnswer


class FindingsListing(Answer):
    """The health of the process that answers, and what the list of findings lacks."""

    health: HealthAnswer
    left_out: Annotated[dict[str, int], Meta(description="the number of further findings of each rule")]
    unevaluated: list[UnevaluatedRule]


# --- topics and messages


class TopicSettingsAnswer(Answer, kw_only=True):
    """A topic's settings. The last three keys exist on Kafka."""

    topic: str
    queues: int
    durability: str
    readable: bool
    writable: bool
    delay: str
    delay_dialects: list[str]
    body_bytes_max: int | None
    incarnation: int
    source: str
    internal: bool
    replication_factor: int | UnsetType = UNSET
    min_insync: int | UnsetType = UNSET
    retention_ms: int | UnsetType = UNSET


class TopicRow(TopicSettingsAnswer, kw_only=True):
    """A topic with the numbers of its messages: retained now, and stored so far."""

    messages: int
    stored: int


class TopicChangedAnswer(TopicSettingsAnswer, kw_only=True):
    """A topic after its creation or change.

    `hold_delays`: no delayed message of the topic fires, since `delays_held_since_ms`.
    """

    trace_one_in: int
    hold_delays: bool
    delays_held_since_ms: int | None
    undo: str | UnsetType = UNSET


class QueueRow(Answer):
    """The offsets [min, next) of one queue."""

    queue: int
    min: int
    next: int
    messages: int


class TopicAnswer(TopicChangedAnswer, kw_only=True):
    """A topic with its queues."""

    messages: int
    by_queue: list[QueueRow]


class MessageRow(Answer):
    """A message as it is stored. Its body is in `body` or, if it is not UTF-8, in `body_base64`.

    `cut`: the message is truncated. `one_group`: the only group that gets it. `state` and the fields after it
    are about the requested group.
    """

    id: str
    topic: str
    queue: int
    offset: int
    position: int
    key: OptionalText
    tags: OptionalText
    properties: dict[str, str]
    born_ms: int
    stored_ms: int
    body_bytes: int
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    one_group: str | UnsetType = UNSET
    cut: bool | UnsetType = UNSET
    state: str | UnsetType = UNSET
    note: str | UnsetType = UNSET
    deliveries: int | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    on_retry_path: bool | UnsetType = UNSET
    due_ms: int | UnsetType = UNSET
    dead_letter_offset: int | UnsetType = UNSET


class MessageSentAnswer(Answer, kw_only=True):
    """The place of a sent message or, if it is delayed, its delay id and due time.

    `duplicate`, `body_differs`: of a send with an idempotency key: the message was stored before, and with
    another body.
    """

    topic: str
    queue: int | None
    offset: int | None
    id: str | None
    delay_id: str | None
    due_ms: int | None
    duplicate: bool | UnsetType = UNSET
    body_differs: bool | UnsetType = UNSET


class StorySpanRow(Answer):
    """A span of a message's time. `known`: a record says what the message waited for."""

    start_ms: int
    end_ms: int
    ms: int
    phase: str
    what: str
    known: bool
    who: OptionalText
    why: OptionalText


class GroupStoryRow(Answer):
    """The story of a message in one group. `end`: null while it has no known end."""

    group: str
    state: str
    whole_ms: int
    end: str | None
    ended_ms: int | None
    end_why: OptionalText
    spans: list[StorySpanRow]


class StoryAnswer(Answer):
    """The story of a message in all groups. `queue`, `offset`: of its record in its topic, if any."""

    id: str
    topic: str
    key: OptionalText
    sent_ms: int
    now_ms: int
    trace_events: int
    notes: list[str]
    stories: list[GroupStoryRow]
    queue: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET


# --- offsets and dead letters


class OffsetRow(Answer):
    """The progress of a group on one queue."""

    topic: str
    queue: int
    min: int
    committed: int
    next: int
    lag: int
    finished_above: int
    attempted: int
    generation: int


class QueueResetRow(Answer):
    """The effect of a reset on one queue."""

    queue: int
    start: int = field(name="from")
    to: int
    again: int
    passed_over: int


class OffsetResetAnswer(Answer):
    """The effect of a reset; with `dry_run`, the effect that it would have."""

    group: str
    topic: str
    to: str
    dry_run: bool
    filter: str | None
    queues: list[QueueResetRow]
    again: int
    passed_over: int
    undo: str | UnsetType = UNSET


class DeadLetterCounts(Answer):
    """The numbers of dead letters of a group: the open ones, and all that are stored."""

    group: str
    topic: str
    letters: int
    stored: int
    oldest_ms: int | None


class DeadLetterRow(Answer):
    """An open dead letter. `topic`, `topic_queue`, `topic_offset`: its origin."""

    queue: int
    offset: int
    id: str
    key: OptionalText
    tags: OptionalText
    reason: OptionalText
    error: OptionalText
    topic: OptionalText
    topic_queue: int | None
    topic_offset: int | None
    attempts: int
    resent: int
    transaction: OptionalText
    delay: OptionalText
    time_ms: int
    born_ms: int
    properties: dict[str, str]
    body_bytes: int
    preview: str


class DeadLettersAnswer(Answer):
    """Open dead letters of a group.

    `letters`: the number of all; `scanned`: of those that this request has examined; `next`: the `from` of
    the next page.
    """

    group: str
    letters: int
    shown: list[DeadLetterRow]
    next: int | None
    scanned: int


class DeadLettersListing(Answer):
    """The numbers of open dead letters of the group: all (`letters`), and those that this request has
    examined."""

    group: str
    letters: int
    scanned: int


class FacetRow(Answer):
    """The number of dead letters with one value of a facet."""

    value: str
    letters: int


class HourRow(Answer):
    """The number of dead letters of one hour, which begins at `value`."""

    value: int
    letters: int


class FacetOthers(Answer):
    """The number of dead letters whose values are not listed, for each facet."""

    by_reason: int
    by_error: int
    by_topic: int
    by_hour: int


class DeadLetterFacetsAnswer(Answer):
    """The number of open dead letters that match (`counted`), by the values of each facet.

    `letters`: the number of all; `scanned`: of those that this request has examined; `exact`: it has examined
    all; `next`: the `from` with which another request continues.
    """

    group: str
    letters: int
    counted: int
    scanned: int
    exact: bool
    next: int | None
    by_reason: list[FacetRow]
    by_error: list[FacetRow]
    by_topic: list[FacetRow]
    by_hour: list[HourRow]
    others: FacetOthers


class GroupsReached(Answer):
    """The number of groups that receive messages, and some of their names."""

    count: int
    groups: list[str]


class DeadLettersResentAnswer(Answer):
    """The effect of a resend. `resent`: by topic; `kept`: dead letters that were not sent, by reason."""

    group: str
    dry_run: bool
    to_topic: bool
    resent: ByTopic
    reached: dict[str, GroupsReached]
    kept: Annotated[dict[str, int], Meta(description="a number for each reason")]
    cursor: list[list[int]] | None


class DeadLettersPurgedAnswer(Answer):
    """The number of dead letters that were discarded or, with `dry_run`, would be."""

    group: str
    dry_run: bool
    purged: int


# --- transactions


class TransactionRow(Answer):
    """A transaction that is not decided yet."""

    transaction: str
    group: str
    shard: int
    began_ms: int
    messages: int
    bytes: int
    checks: int
    topics: list[str]


class TransactionsAnswer(Answer):
    """Open transactions, oldest first. `open`: the number of all; `whole`: all were examined."""

    open: int
    whole: bool
    transactions: list[TransactionRow]


class PreparedMessage(Answer):
    """A message of an open transaction."""

    topic: str
    queue: int
    message_id: str
    key: OptionalText
    tags: OptionalText
    level: int
    delayed: bool
    body_bytes: int
    preview: str


class TransactionAnswer(Answer):
    """A transaction: with its messages while it is open, else with its outcome as far as it is known."""

    transaction: str
    state: str
    group: str | UnsetType = UNSET
    messages: int | UnsetType = UNSET
    shard: int | UnsetType = UNSET
    began_ms: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    checks: int | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    contents: list[PreparedMessage] | UnsetType = UNSET
    ended_ms: int | UnsetType = UNSET
    reason: OptionalText | UnsetType = UNSET


class TransactionEndedAnswer(Answer):
    """The state in which a transaction ended."""

    transaction: str
    state: str
    group: str
