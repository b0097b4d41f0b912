"""The answers about the disk and the files of the log."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from ddmq.server.admin.contract.structs.live_answers import Missing
from ddmq.server.http.parameters import Answer


class LogDiskRow(Answer):
    """The disk of the log. Below `clean_bytes` of free space old segments are deleted, below `refuse_bytes`
    sends are rejected, below `reserve_bytes` nothing is written. `age_ms`, `log_bytes_max`: the limits of
    retention."""

    free_bytes: int
    total_bytes: int
    clean_bytes: int
    refuse_bytes: int
    reserve_bytes: int
    accepts_sends: bool
    age_ms: int
    log_bytes_max: int | None


class LogHoldRow(Answer):
    """A log position from which the log must be retained."""

    position: int
    reason: str


class LogSegmentRow(Answer):
    """A segment, `[start, end)` in log positions. `held_by`: why it must not be deleted."""

    start: int
    end: int
    bytes: int
    newest_ms: int
    dead_letters_only: bool
    held_by: str | UnsetType = UNSET


class LogWriterRow(Answer):
    """The size of the message bodies that were stored in a topic since the processes started."""

    topic: str
    bytes: int


class LogAnswer(Answer):
    """The log: its disk, what fills it, and its segments, the oldest first.

    What is null is not known. `fill_bytes_per_s`: of message bodies, the mean of the last 10 minutes;
    `full_at_ms`: when sends would be rejected at this rate, if nothing was deleted.
    """

    engine: str
    disk: LogDiskRow | None
    log_bytes: int | None
    fill_bytes_per_s: int | None
    full_at_ms: int | None
    writers: list[LogWriterRow]
    holds: list[LogHoldRow]
    items: list[LogSegmentRow]
    next: str | None
    total: int
    exact: bool
    missing: Missing


class UnreadRow(Answer):
    """The number of messages in the deleted segments' time that a group has not finished."""

    group: str
    topic: str
    messages: int


class LogCleanedAnswer(Answer):
    """The segments that are deleted, or would be. `newest_ms`: the store time of their newest record.

    `held`: segments that are old enough, but must not be deleted. `exact` False: not all subscriptions were
    counted in `unread`.
    """

    dry_run: bool
    segments: int
    bytes: int
    newest_ms: int | None
    held: list[LogSegmentRow]
    unread: list[UnreadRow]
    exact: bool
