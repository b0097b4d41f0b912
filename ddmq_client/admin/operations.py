"""Operations on all that matches, findings and recorded changes, as admin clients return them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from ddmq_client.admin.settings import DeadLetterReason
from ddmq_client.delays import epoch_ms
from ddmq_client.errors import OptionError

OperationKind = Literal["dead_letters", "keys", "delays", "retries"]
_TIMES = {
    "since": "since_ms", "until": "until_ms", "due_from": "from_ms", "due_before": "to_ms",
    "born_from": "born_from_ms", "born_before": "born_to_ms",
}  # fmt: skip


class OperationChoice(TypedDict, total=False):
    """Selects what an operation changes: all that matches the stated fields.

    Dead letters: `group`, topic, error, text, reason, offsets, since, until. Keys: `group`, keys, state,
    error, text. Delays: topic, key, and the ranges of due and send times, whose ends are exclusive. Retries:
    `group`, ids, topic, key, error, text, level, and the range of due times.
    """

    group: str
    topic: str
    key: str
    keys: Sequence[str]
    state: Literal["retrying", "in flight", "parked"]
    error: str
    text: str
    reason: DeadLetterReason
    offsets: Sequence[int]
    ids: Sequence[str]
    level: int
    since: datetime
    until: datetime
    due_from: datetime
    due_before: datetime
    born_from: datetime
    born_before: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDescription:
    """A plan, or an operation with its progress.

    `counted` items will be changed, or more unless `exact`; `skipped`: by reason, those that are not changed.
    `reaches`: the groups that get resent dead letters, by topic. `token`: starts exactly this plan; only
    `plan_operation` returns it.
    """

    id: str
    kind: str
    action: str
    state: str
    counted: int
    exact: bool
    changed: int
    skipped: Mapping[str, int]
    remaining: int | None = None
    filter: Mapping[str, Any] = field(default_factory=dict)
    sample: Sequence[Mapping[str, Any]] = ()
    reaches: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    rate: int | None = None
    planned_at: datetime | None = None
    expires_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str = ""
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingDescription:
    """Something that is wrong now. `id`: the name of its alert rule; `command`: a first command, which
    changes nothing; `action`: what to do, in words."""

    id: str
    severity: str  # critical, warning or info
    text: str
    since_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    action: str = ""
    runbook: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKeyDescription:
    """A blocked or parked key of any group. A parked key need not have a message."""

    group: str
    key: str
    state: str
    error: str = ""
    error_class: str = ""
    attempts: int = 0
    waiting: int = 0
    topic: str | None = None
    queue_id: int | None = None
    offset: int | None = None
    reason: str = ""
    since_at: datetime | None = None
    failing_since_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDescription:
    """A recorded change. `who`: the identity that made it, without rights the `address` of the client;
    `final`: why it cannot be undone."""

    id: str
    who: str
    request: str
    kind: str
    object: str
    undoable: bool
    at: datetime | None = None
    before: Any = None
    after: Any = None
    final: str = ""
    undoes: str = ""
    undone_by: str = ""
    address: str = ""


def plan_body(
    kind: OperationKind,
    action: str,
    choice: OperationChoice,
    *,
    to_topic: bool = False,
    due_at: datetime | None = None,
    shift: timedelta | None = None,
) -> dict[str, Any]:
    """Return the request body of a plan. Raises OptionError."""
    fields: dict[str, Any] = {}
    for name, value in choice.items():
        if name not in OperationChoice.__annotations__:
            allowed = ", ".join(OperationChoice.__annotations__)
            raise OptionError(f"{name}={value!r} selects nothing; allowed: {allowed}")
        if name in _TIMES:
            fields[_TIMES[name]] = epoch_ms(name, value)  # type: ignore[arg-type]
        else:
            fields[name] = list(value) if isinstance(value, tuple) else value
    body: dict[str, Any] = {"kind": kind, "action": action, "filter": fields}
    if to_topic:
        body["to_topic"] = True
    if due_at is not None:
        body["due_ms"] = epoch_ms("due_at", due_at)
    if shift is not None:
        body["shift_ms"] = shift // timedelta(milliseconds=1)
    return body
