"""Decides which segments to delete and whether the disk still accepts sends. Pure: facts in, a decision out.

Rules:
* The log is deleted oldest first, and never the live segment.
* Age: the newest record is older than the limit; in the cleaning hour, or at any time under pressure.
* Size: the log is larger than its limit; at once.
* Disk: free space is under the cleaning mark; at once, even segments that have not expired.
* A hold retains the segment it points into and all after it, whatever the reason to delete them.
* Young dead letters retain only their own segments. When a later segment is deleted, the earlier ones with
  young dead letters become dead-letter segments: they are retained only for these, until they are old.
* Under the mark `refuse`, client sends are rejected. Writes that the system owes (acks, retries, fires) may
  still use the remaining space, down to the reserve, below which nothing is written.
docs/retention.md is the table for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ddmq_common.errors import ConfigError

GIB = 1 << 30
MIB = 1 << 20
HOUR_MS = 3_600_000
REOPEN_FACTOR = 1.1  # rejecting ends this far above the mark at which it began, so that it does not flap


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """The limits of retention. A mark is the smaller of its bytes and its share of the disk.

    `cleaning_hour` is local, None = any.
    """

    age_ms: int = field(default=72 * HOUR_MS, metadata={"min": 1_000})
    log_bytes_max: int | None = field(default=None, metadata={"min": 1})
    cleaning_hour: int | None = field(default=4, metadata={"min": 0, "max": 23})
    clean_free_bytes: int = field(default=20 * GIB, metadata={"min": 0})
    clean_free_percent: int = field(default=25, metadata={"min": 0, "max": 100})
    refuse_free_bytes: int = field(default=2 * GIB, metadata={"min": 0})
    refuse_free_percent: int = field(default=10, metadata={"min": 0, "max": 100})
    reserve_free_bytes: int = field(default=256 * MIB, metadata={"min": 0})
    reserve_free_percent: int = field(default=1, metadata={"min": 0, "max": 100})

    def __post_init__(self) -> None:
        for unit in ("bytes", "percent"):
            clean, refuse, reserve = (
                getattr(self, f"{mark}_free_{unit}") for mark in ("clean", "refuse", "reserve")
            )
            if not clean >= refuse >= reserve:
                raise ConfigError(
                    f"retention: clean_free_{unit} ({clean}) must be at least refuse_free_{unit} ({refuse}), "
                    f"and that at least reserve_free_{unit} ({reserve})"
                )


class LogDisk(NamedTuple):
    """The bytes of the file system that holds the log; `free` is the part that this process may still use."""

    free: int
    total: int


class OldSegment(NamedTuple):
    """One commit-log segment, `[start, end)` in log positions, with the data that decides its deletion."""

    start: int
    end: int
    bytes_on_disk: int
    newest_ms: int  # store time of its last record
    dead_letters_only: bool = False  # retained for its dead letters alone


class Hold(NamedTuple):
    """A log position from which the log must be retained, with a reason to show."""

    position: int
    reason: str


class Reason(IntEnum):
    """The reasons to delete a segment."""

    AGE = 0
    SIZE = 1
    DISK = 2


class Deletion(NamedTuple):
    """One segment to delete, or with `keep` to retain for its dead letters alone."""

    segment: OldSegment
    reason: Reason
    keep: bool = False


class BlockedSegment(NamedTuple):
    """A segment that is due for deletion, and the hold that retains it."""

    segment: OldSegment
    reason: Reason
    hold: Hold


class DiskAdmission(IntEnum):
    """The writes that the disk still accepts."""

    OPEN = 0
    CLIENTS_REFUSED = 1
    ALL_REFUSED = 2


class Marks(NamedTuple):
    """The free bytes at which cleaning, refusing and the reserve begin on one disk."""

    clean: int
    refuse: int
    reserve: int


def apply_marks(options: RetentionOptions, disk_total: int) -> Marks:
    """Apply the options to a disk of `disk_total` bytes."""
    return Marks(
        min(options.clean_free_bytes, disk_total * options.clean_free_percent // 100),
        min(options.refuse_free_bytes, disk_total * options.refuse_free_percent // 100),
        min(options.reserve_free_bytes, disk_total * options.reserve_free_percent // 100),
    )


class RetentionMoment(NamedTuple):
    """The time and disk on which a decision depends.

    `settling`: the space that the last round freed is not visible yet. `store_ms`: the clock of the store,
    which stays ahead of a wall clock that has stepped back; it gives the age of records stored ahead of the
    wall clock.
    """

    now_ms: int  # wall
    hour: int  # local, 0 to 23
    disk: LogDisk
    settling: bool = False
    store_ms: int = 0


SegmentHold = Callable[[OldSegment], Hold | None]
"""Returns the hold of young dead letters in a segment. Called only for segments that are due for deletion."""


def plan_deletions(
    segments: Sequence[OldSegment],
    moment: RetentionMoment,
    options: RetentionOptions,
    holds: Iterable[Hold],
    dead_letters: SegmentHold = lambda _: None,
) -> tuple[list[Deletion], BlockedSegment | None]:
    """Return the deletions to perform now, oldest first, and the first segment that a hold retains.

    `segments` ascend; the last one is live and stays.
    """
    lowest = min(holds, default=None)
    free, log_bytes = moment.disk.free, sum(segment.bytes_on_disk for segment in segments)
    plan: list[Deletion] = []
    passed: list[Deletion] = []  # segments with young dead letters, with no deletion after them yet
    blocked = None
    for segment in segments[:-1]:
        reason = _deletion_reason(segment, moment, options, free, log_bytes)
        if reason is None and not segment.dead_letters_only:
            break
        hold = lowest if lowest is not None and segment.end > lowest.position else dead_letters(segment)
        if hold is not None and reason is not None:
            blocked = blocked or BlockedSegment(segment, reason, hold)
        if hold is None:
            plan += [*passed, Deletion(segment, Reason.AGE if reason is None else reason)]
            passed = []
            free += segment.bytes_on_disk
            log_bytes -= segment.bytes_on_disk
        elif hold is lowest:
            break
        elif not segment.dead_letters_only:
            passed.append(Deletion(segment, reason or Reason.AGE, keep=True))
    return plan, blocked


def _deletion_reason(
    segment: OldSegment, moment: RetentionMoment, options: RetentionOptions, free: int, log_bytes: int
) -> Reason | None:
    pressure = free < apply_marks(options, moment.disk.total).clean and not moment.settling
    too_large = options.log_bytes_max is not None and log_bytes > options.log_bytes_max
    now_ms = moment.now_ms if segment.newest_ms <= moment.now_ms else moment.store_ms
    expired = now_ms - segment.newest_ms >= options.age_ms
    in_hour = options.cleaning_hour in (None, moment.hour)
    if expired and (in_hour or pressure or too_large):
        return Reason.AGE
    if too_large:
        return Reason.SIZE
    return Reason.DISK if pressure else None


def decide_admission(disk: LogDisk, options: RetentionOptions, before: DiskAdmission) -> DiskAdmission:
    """Return the writes that the disk accepts now; `before` is the previous answer."""
    _, refuse, reserve = apply_marks(options, disk.total)
    if disk.free < _reopen_mark(reserve, before is DiskAdmission.ALL_REFUSED):
        return DiskAdmission.ALL_REFUSED
    if disk.free < _reopen_mark(refuse, before is not DiskAdmission.OPEN):
        return DiskAdmission.CLIENTS_REFUSED
    return DiskAdmission.OPEN


def _reopen_mark(mark: int, refused: bool) -> int:
    return int(mark * REOPEN_FACTOR) if refused else mark


def describe_disk_shortage(
    state: DiskAdmission,
    disk: LogDisk,
    options: RetentionOptions,
    folder: str,
    blocked: BlockedSegment | None,
) -> str:
    """Describe why sends are refused, with the numbers and the remedy."""
    _, refuse, reserve = apply_marks(options, disk.total)
    refused, mark = (
        ("nothing is written", reserve)
        if state is DiskAdmission.ALL_REFUSED
        else ("client sends are refused", refuse)
    )
    blocker = f"; segment {blocked.segment.start} cannot go: {blocked.hold.reason}" if blocked else ""
    return (
        f"the disk of {folder} has {show_bytes(disk.free)} free of {show_bytes(disk.total)}, less than the "
        f"{show_bytes(mark)} below which {refused}, until {show_bytes(_reopen_mark(mark, True))} are free: "
        f"free space on it, or keep messages for less than {options.age_ms / HOUR_MS:g} h{blocker}"
    )


def show_bytes(count: int) -> str:
    """Format a number of bytes with a binary unit, such as `1.5 GiB` or `12.0 MiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"
