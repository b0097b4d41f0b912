"""The answers of GET /snapshot, /events and /history."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ddmq.server.admin.contract.structs.answers import HealthAnswer
from ddmq.server.admin.contract.structs.finding_answers import FindingRow
from ddmq.server.admin.contract.structs.group_answers import SubscriptionLag
from ddmq.server.http.parameters import Answer

Value = Annotated[float | None, Meta(description="null where there was no sample")]
EventsText = Annotated[
    str, Meta(description="server-sent events: `snapshot`, whose data is the answer of /snapshot, and `end`")
]
Missing = Annotated[dict[str, str], Meta(description="what did not answer: name to admin address or error")]


class SeriesTails(Answer):
    """The values of all totals in the last 60 seconds. `from_ms`: the time of the first value."""

    from_ms: int
    step_s: int
    values: dict[str, list[Value]]


class SnapshotAnswer(Answer):
    """The state of the server at a moment. What is null is not known.

    `behind`: the subscriptions that are furthest behind; `versions`: numbers that differ if a list may have
    changed.
    """

    at_ms: int
    health: HealthAnswer | None
    totals: dict[str, Value]
    due_next_hour: int | None
    behind: list[SubscriptionLag] | None
    behind_at_ms: int | None
    tails: SeriesTails
    findings: list[FindingRow] | None
    versions: dict[str, int]
    missing: Missing


class SubscriptionName(Answer):
    """A group's subscription to a topic."""

    group: str
    topic: str


class HistoryAnswer(Answer):
    """Values over time, the first at `from_ms`, each the mean of `step_s` seconds.

    `topics`, `subscriptions`: those whose series are recorded.
    """

    from_ms: int
    step_s: int
    series: dict[str, list[Value]]
    topics: list[str]
    subscriptions: list[SubscriptionName]
    missing: Missing
