"""The answers of requests about operations: plans, and operations with their progress.

Times are epoch milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from ddmq.server.admin.contract.forms import OptionalText
from ddmq.server.admin.contract.structs.answers import GroupsReached
from ddmq.server.http.parameters import Answer

OperationKind = Literal["dead_letters", "keys", "delays", "retries"]
ShownState = Literal["planned", "running", "stopping", "interrupted", "stopped", "done", "failed"]
Skipped = Annotated[dict[str, int], Meta(description="a number of items for each reason")]


class OperationSample(Answer, kw_only=True):
    """An item that matches: a dead letter (`queue`, `offset`: in the dead-letter topic), a key with its first
    message, a delayed message, or a retry (`level`: where it waits). Long texts are truncated."""

    topic: str
    key: str | UnsetType = UNSET
    queue: int | UnsetType = UNSET
    queue_id: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    waiting: int | UnsetType = UNSET
    since_ms: int | UnsetType = UNSET
    time_ms: int | UnsetType = UNSET
    due_ms: int | UnsetType = UNSET
    born_ms: int | UnsetType = UNSET
    held: bool | UnsetType = UNSET
    repeats: str | UnsetType = UNSET
    preview: str | UnsetType = UNSET
    level: int | UnsetType = UNSET
    step: int | UnsetType = UNSET
    deliveries: int | UnsetType = UNSET


class OperationOptions(Answer):
    """The arguments of an operation's action, as far as the request states them."""

    to_topic: bool | UnsetType = UNSET
    due_ms: int | UnsetType = UNSET
    shift_ms: int | UnsetType = UNSET


class OperationAnswer(Answer, kw_only=True):
    """A plan, or an operation with its progress.

    `counted`: the number of items that will be changed, a lower bound unless `exact`. `skipped`: of a plan,
    the items that cannot be changed; of an operation, those that it did not change. `reaches`: by topic.
    `command`: the command that makes the same plan. `process`: where it runs. `expires_ms`: null after the
    start. `rate`: the most changes per second; null: no limit. `at_ms`: the time of the last progress.
    """

    id: str
    kind: OperationKind
    action: str
    state: ShownState
    filter: Annotated[dict[str, Any], Meta(description="the names and values that the request stated")]
    options: OperationOptions
    counted: int
    exact: bool
    changed: int
    remaining: int
    skipped: Skipped
    sample: list[OperationSample]
    reaches: dict[str, GroupsReached]
    command: str
    process: str
    rate: int | None
    planned_ms: int
    expires_ms: int | None
    started_ms: int | None
    at_ms: int
    ended_ms: int | None
    error: OptionalText


class OperationPlannedAnswer(OperationAnswer, kw_only=True):
    """A plan with the token that starts it."""

    token: str


class OperationRow(Answer):
    """A plan or operation in a listing."""

    id: str
    kind: OperationKind
    action: str
    state: ShownState
    counted: int
    exact: bool
    changed: int
    skipped: Skipped
    planned_ms: int


class OperationsAnswer(Answer):
    """The plans of the process that answers, and all started operations, newest first."""

    operations: list[OperationRow]
