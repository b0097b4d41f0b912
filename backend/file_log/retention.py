"""Periodic retention: deletes old segments off the hub and decides whether the disk accepts sends.

core/retention.py makes the decisions. Rules:
* The log first removes a segment from its set, on the hub, so that readers continue at the oldest remaining
  one. Then a native thread removes the files, with a pause after each.
* Freed space may become visible late, while a reader process has the file open. Until half of it is visible,
  or SETTLE_S have passed, low disk space is no reason to delete more.
* A segment with young dead letters is retained for them alone when a later segment is deleted. It is renamed
  durably first; then the log begins after it.
* Every deletion is logged with its reason and counted. So are every failure, and the segment that a hold
  retains.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, replace

import gevent
from gevent.lock import Semaphore

from backend.engine import StoreClock
from backend.file_log.core import names
from backend.file_log.core.retention import (
    BlockedSegment,
    Deletion,
    DiskAdmission,
    Hold,
    LogDisk,
    OldSegment,
    Reason,
    RetentionMoment,
    RetentionOptions,
    SegmentHold,
    apply_marks,
    decide_admission,
    describe_disk_shortage,
    plan_deletions,
    show_bytes,
)
from backend.file_log.storage import Storage
from backend.log_state import LogFilesState, LogSegment
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError, DiskFullError, StorageError
from ddmq_common.metrics.catalogue import (
    LOG_BYTES,
    LOG_CLOCK_AHEAD,
    LOG_DISK,
    LOG_DISK_FREE,
    LOG_RETENTION_FAILURES,
    LOG_SEGMENTS_DELETED,
    LOG_SEGMENTS_HELD,
)
from ddmq_common.metrics.registry import Registry
from ddmq_common.native_threads import in_thread

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
PAUSE_S = 0.05
SETTLE_S = 30.0
_NO_MARKS = {
    f"{mark}_free_{unit}": 0 for mark in ("clean", "refuse", "reserve") for unit in ("bytes", "percent")
}

Release = Callable[[OldSegment], Callable[[], None]]
"""Removes a segment from the log's set, on the hub; returns the blocking call that removes its files."""
Keep = Callable[[OldSegment], Callable[[], Callable[[], None]]]
"""Returns the blocking call that retains a segment for dead letters alone; that one returns the call which
records it on the hub."""


def local_hour(wall_ms: int) -> int:
    """Return the hour of the day in local time, 0 to 23."""
    return time.localtime(wall_ms / 1000).tm_hour


class Retention:
    """Deletes the oldest segments of one log by age, size and free disk space.

    `segments()`: the segments, ascending, the last one live. `holds()`: the positions from which the log must
    be retained. `dead_letter_holds()`: the holds of dead letters under 3 days, called once a round.
    `deleted(segment, reason)` is called after each deletion. `unfreed()`: the bytes of deleted files that
    other processes still have open, so that the disk does not show them as free. Blocking.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        options: RetentionOptions,
        segments: Callable[[], Sequence[OldSegment]],
        release: Release,
        keep: Keep,
        holds: Callable[[], Iterable[Hold]],
        dead_letter_holds: Callable[[], SegmentHold],
        clock: Clock,
        store_clock: StoreClock,
        registry: Registry,
        *,
        deleted: Callable[[OldSegment, Reason], None] | None = None,
        unfreed: Callable[[], int] = int,
        hour: Callable[[int], int] = local_hour,
    ) -> None:
        self.options = options
        self.admission = DiskAdmission.OPEN
        self.send_error: DiskFullError | None = None  # the error for a client's send
        self.write_error: DiskFullError | None = None  # the error for everything else
        self.blocked: BlockedSegment | None = None
        self._storage = storage
        self._folder = folder
        self._segments = segments
        self._release = release
        self._keep = keep
        self._holds = holds
        self._dead_letter_holds = dead_letter_holds
        self._clock = clock
        self._store_clock = store_clock
        self._registry = registry
        self._deleted = deleted
        self._unfreed = unfreed
        self._hour = hour
        self._settle: tuple[float, int] = (
            0.0,
            0,
        )  # the end of settling, and the free bytes that end it earlier
        self._greenlet: gevent.Greenlet | None = None
        self._round = Semaphore()  # an older round's measurements must not replace a newer one's

    def start(self, interval_s: float = INTERVAL_S) -> None:
        """Run a round now, then every `interval_s`."""
        self._greenlet = gevent.spawn(self._run, interval_s)

    def stop(self) -> None:
        """Stop the rounds; a removal under way finishes in its thread. Blocks the calling greenlet."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _run(self, interval_s: float) -> None:
        while True:
            try:
                self.run_once(PAUSE_S)
            except Exception:  # a bug, but with no retention at all the disk would fill up
                self._registry.cell(LOG_RETENTION_FAILURES).value += 1
                log.exception("a round of retention failed")
            gevent.sleep(interval_s)

    def run_once(self, pause_s: float = 0.0) -> list[Deletion]:
        """Measure, decide and delete; return the deletions.

        One round runs at a time. Blocks the greenlet only.
        """
        with self._round:
            return self._run_round(pause_s)

    def _run_round(self, pause_s: float) -> list[Deletion]:
        try:
            disk = LogDisk(*in_thread(self._storage.space, self._folder))
            freed = disk._replace(free=disk.free + in_thread(self._unfreed))
            holds, dead_letters = list(self._holds()), self._dead_letter_holds()
            segments = self._segments()
            plan, blocked = plan_deletions(
                segments, self._measure_moment(freed), self.options, holds, dead_letters
            )
        except (OSError, DdmqError) as error:
            self._count_failure("nothing is deleted from %s this time: %s", self._folder, error)
            return []
        self._store_clock.update_gauge(self._registry.cell(LOG_CLOCK_AHEAD))
        self._registry.cell(LOG_BYTES).value = sum(segment.bytes_on_disk for segment in segments)
        self._set_blocked(blocked)
        self._set_admission(disk)
        deleted: list[Deletion] = []
        for deletion in plan:
            if not self._delete(deletion):
                break
            deleted.append(deletion)
            gevent.sleep(pause_s)
        self._begin_settling(disk, deleted)
        return deleted

    # --- for operators

    def read_state(self) -> LogFilesState:
        """Return the state of the disk and of the segments. Blocks the greenlet. Raises StorageError."""
        disk, holds, dead_letters = self._measure_disk(), list(self._holds()), self._dead_letter_holds()
        marks, segments = apply_marks(self.options, disk.total), self._segments()
        return LogFilesState(
            disk.free, disk.total, *marks, self.admission is DiskAdmission.OPEN, self.options.age_ms,
            self.options.log_bytes_max, [(hold.position, hold.reason) for hold in sorted(holds)],
            [*_with_holds(segments[:-1], holds, dead_letters), *map(_describe_segment, segments[-1:])],
        )  # fmt: skip

    def clean(self, before_ms: int, dry_run: bool) -> list[LogSegment]:
        """Delete the segments whose records were all stored before this time, apart from held ones; return
        them.

        Segments with young dead letters are not deleted. `dry_run`: only return them. Blocks the greenlet.
        Raises StorageError.
        """
        with self._round:
            disk = self._measure_disk()
            moment = self._measure_moment(disk)
            age_ms = max(moment.now_ms - before_ms + 1, 0)
            options = replace(
                self.options, age_ms=age_ms, cleaning_hour=None, log_bytes_max=None, **_NO_MARKS
            )
            plan, _ = plan_deletions(
                self._segments(), moment, options, list(self._holds()), self._dead_letter_holds()
            )
            cleaned = []
            for deletion in plan:
                if not dry_run and not self._delete(deletion):
                    break
                if not deletion.keep:
                    cleaned.append(_describe_segment(deletion.segment))
            return cleaned

    def _measure_disk(self) -> LogDisk:
        try:
            return LogDisk(*in_thread(self._storage.space, self._folder))
        except OSError as error:
            raise StorageError(f"the disk of {self._folder} cannot be measured: {error}") from error

    def _measure_moment(self, disk: LogDisk) -> RetentionMoment:
        now_ms = self._clock.wall_ms()
        until, enough = self._settle
        settling = self._clock.monotonic() < until and disk.free < enough
        return RetentionMoment(now_ms, self._hour(now_ms), disk, settling, self._store_clock.now_ms())

    def _begin_settling(self, disk: LogDisk, deleted: list[Deletion]) -> None:
        freed = sum(deletion.segment.bytes_on_disk for deletion in deleted if not deletion.keep)
        if freed:
            self._settle = (self._clock.monotonic() + SETTLE_S, disk.free + freed // 2)

    def _delete(self, deletion: Deletion) -> bool:
        segment, reason, keep = deletion
        try:
            if keep:
                in_thread(self._keep(segment))()
                log.info(
                    "segment %d is retained for dead letters alone: %s", segment.start, reason.name.lower()
                )
                return True
            in_thread(self._release(segment))
        except (OSError, DdmqError) as error:
            self._count_failure("segment %d cannot be deleted: %s", segment.start, error)
            return False
        self._registry.cell(LOG_SEGMENTS_DELETED, reason.name.lower()).value += 1
        log.info(
            "deleted segment %d (%s, newest record %s ms old): %s",
            segment.start,
            show_bytes(segment.bytes_on_disk),
            self._clock.wall_ms() - segment.newest_ms,
            reason.name.lower(),
        )
        if self._deleted is not None:
            self._deleted(segment, reason)
        return True

    def _set_blocked(self, blocked: BlockedSegment | None) -> None:
        if blocked is not None and (self.blocked is None or blocked.hold.reason != self.blocked.hold.reason):
            log.warning(
                "segment %d is due for deletion (%s) but held from log position %d on: %s",
                blocked.segment.start,
                blocked.reason.name.lower(),
                blocked.hold.position,
                blocked.hold.reason,
            )
        self.blocked = blocked
        self._registry.cell(LOG_SEGMENTS_HELD).value = int(blocked is not None)

    def _set_admission(self, disk: LogDisk) -> None:
        before, self.admission = self.admission, decide_admission(disk, self.options, self.admission)
        self._registry.cell(LOG_DISK_FREE).value = disk.free
        self._registry.cell(LOG_DISK).value = self.admission
        error = None
        if self.admission is not DiskAdmission.OPEN:
            error = DiskFullError(
                describe_disk_shortage(self.admission, disk, self.options, self._folder, self.blocked)
            )
        self.send_error = error
        self.write_error = error if self.admission is DiskAdmission.ALL_REFUSED else None
        if self.admission is not before:
            log.warning("%s", error or f"the disk of {self._folder} accepts sends again")

    def _count_failure(self, text: str, *arguments: object) -> None:
        self._registry.cell(LOG_RETENTION_FAILURES).value += 1
        log.error(text, *arguments)


def _with_holds(
    segments: Sequence[OldSegment], holds: Sequence[Hold], dead_letters: SegmentHold
) -> list[LogSegment]:
    """Describe segments with the hold that retains each, if there is one."""
    lowest = min(holds, default=None)
    rows = []
    for segment in segments:
        hold = lowest if lowest is not None and segment.end > lowest.position else dead_letters(segment)
        rows.append(_describe_segment(segment, "" if hold is None else hold.reason))
    return rows


def _describe_segment(segment: OldSegment, held_by: str = "") -> LogSegment:
    start, end, bytes_on_disk, newest_ms, dead_letters_only = segment
    return LogSegment(start, end, bytes_on_disk, newest_ms, held_by, dead_letters_only)


def record_limits(storage: Storage, directory: str, options: RetentionOptions) -> None:
    """Warn about retention limits that differ from the last writer's, and record these limits. Blocking.

    Each process has its own configuration, and any server process may become the writer: one that was started
    without the right file would delete by the wrong limits. No code depends on the recorded limits.
    """
    path = f"{directory}/{names.RETENTION}"
    mine = asdict(options)
    try:
        last = _read(storage, path)
        if last == mine:
            return
        drift = [
            f"{key} {last[key]} -> {value}" for key, value in mine.items() if last.get(key, value) != value
        ]
        if drift:
            log.warning(
                "this process retains the log in %s by other limits than the last writer did: %s;"
                " every process that may write it should have the same configuration (--config)",
                directory,
                ", ".join(drift),
            )
        _write(storage, path, mine)
    except OSError as error:
        log.warning("the limits of retention cannot be recorded in %s: %s", path, error)


def _read(storage: Storage, path: str) -> dict[str, object]:
    """Return the recorded limits; {} if there are none, or none that can be parsed."""
    if not storage.size(path):
        return {}
    with closing(storage.open(path)) as file:
        try:
            limits = json.loads(file.pread(file.size(), 0))
        except ValueError:
            return {}
    return limits if isinstance(limits, dict) else {}


def _write(storage: Storage, path: str, limits: dict[str, object]) -> None:
    with closing(storage.open(path + names.UNFINISHED, write=True)) as file:
        file.truncate(0)
        file.pwrite(json.dumps(limits).encode() + b"\n", 0)
    storage.rename(path + names.UNFINISHED, path)
