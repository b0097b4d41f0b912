"""The state of an engine's log files on a disk: plain data, for operators."""

from __future__ import annotations

from typing import NamedTuple


class LogSegment(NamedTuple):
    """A file of the log, `[start, end)` in log positions.

    `newest_ms`: the store time of its last record. `held_by`: why it must not be deleted; "": nothing keeps
    it.
    """

    start: int
    end: int
    bytes_on_disk: int
    newest_ms: int
    held_by: str
    dead_letters_only: bool


class LogFilesState(NamedTuple):
    """The disk of a log, its marks, its holds and its segments, the oldest first.

    Below `clean_bytes` of free space old segments are deleted, below `refuse_bytes` sends are rejected, and
    below `reserve_bytes` nothing is written. `holds`: log positions from which the log must be retained, with
    the reasons. `age_ms`, `log_bytes_max`: the limits of retention.
    """

    free_bytes: int
    total_bytes: int
    clean_bytes: int
    refuse_bytes: int
    reserve_bytes: int
    accepts_sends: bool
    age_ms: int
    log_bytes_max: int | None
    holds: list[tuple[int, str]]
    segments: list[LogSegment]
